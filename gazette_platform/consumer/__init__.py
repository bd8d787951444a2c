"""Stateful, exactly-once consumers of journals.

Nouns: shard (a unit of work with its own state), replica (one process's copy of a shard), primary (the replica in slot 0,
which consumes), hot standby (a replica that follows the recovery log), transaction, checkpoint.
Promise: the state of a shard and what it publishes reflect each committed message exactly once, whatever crashes.
Cost: one commit of the store and one append for each output journal per transaction. Messages are handled in batches.

Users write an `application`, which changes a `store` and publishes. `transaction` and `recoverylog` decide, without I/O;
`runtime` runs one replica; `resolver` answers who serves a shard, and `shard_api` changes of shards; `process` joins
a group and runs its allocator; `etcd_hints` keeps hints and status of a replica; `assignments` is what etcd holds, and what follows from it; `protocol` has the messages; `client` calls a group. Users' programs begin at `gazette_platform.app`.
"""
