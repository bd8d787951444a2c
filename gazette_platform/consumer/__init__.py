"""Stateful, exactly-once consumers of journals.

Nouns: shard (a unit of work with state of its own), replica (a process's share in a shard), primary
(slot 0, which consumes), hot standby (one that follows the recovery log), transaction, checkpoint.
Guarantee: a shard's state and what it publishes reflect each committed message once. `protocol` is
the words of the wire, `cluster` what etcd holds, `shard` the decisions of a shard's life, and
`recoverylog` keeps the files of a store in a journal, so that any process can go on with them.
Users write an `application`, which changes a `store`, and publishes by a `publisher`; `runtime` runs it.
`service` answers who serves a shard, and changes shards; `client` asks it. A `process` is a member of a group:
it follows assignments, and has `runtime` and `service` do the rest. Users' programs begin at `gazette_platform.app`.
"""
