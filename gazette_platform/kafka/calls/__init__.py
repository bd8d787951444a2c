"""Kafka's calls about topics and their records: each module answers some of them, as the `Api`s of its class say.

`produce` appends, one journal after the other, and `sequences` says what was appended before; `fetch` reads, from where
`offsets` has begun; `topics` lists, makes and changes topics, whose configs `topic_configs` translates. Calls of consumer groups
and transactions are in `coordinator`.
"""
