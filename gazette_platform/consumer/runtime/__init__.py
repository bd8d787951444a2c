"""Run the replicas of shards that are assigned to this process.

`ShardReplica` is one replica, from its assignment to its end. As standby it plays the recovery log; as primary it
opens the store, reads, and makes transactions. `consumer/transaction` decides what to do when, and this package does it.
The *host* of a replica, which knows etcd, gives it hints and takes its status.
Promise: an error fails one shard, with its cause in the status, and leaves the others alone.
Cost: two tasks for a shard and one for a source. Messages are read, sequenced and consumed in batches.
"""
