"""Runs the replicas of shards that are assigned to this process.

`ShardReplica` is one replica, from its assignment to its end: as standby it plays the recovery log, as
primary it opens the store, reads, and makes transactions. What to do when is decided in
`consumer/shard`; here it is done. Its *host*, who knows etcd, gives it hints and takes its status.

A shard costs two tasks and one a source; a transaction one commit of its store, and an append for each
journal that was published to. Messages are read, sequenced and consumed in batches.
"""
