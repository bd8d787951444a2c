"""The service `consumer.Shard`: who serves a shard, how far it is, and changes of shards.

Nouns: resolution (who serves a shard, and our replica if we do), proxying (another process answers a call through us),
claims (what the caller may ask about).
Promise: an answer is true of one revision of etcd, which its header names. A change has reached our own view before it is
answered. Any process of the group answers any call.
Cost: no call of etcd for a resolution, one transaction for a change, and one more hop if another process serves the shard.
"""
