"""A gateway for Kafka's clients: they produce to journals and consume from them.

A topic is a set of journals, and its records are lines of them; `docs/concepts/kafka.md` gives the mapping and what it
costs. Everything but `config` and `topics` needs the extra ``kafka``.

`server` accepts connections, `wire` decodes requests and encodes answers, and each kind of request has an `Api` in the module
that answers it (`calls`, `coordinator`). `topics`, `records`, `access`, `calls.sequences` and `calls.topic_configs` decide, without I/O.
"""
