"""The service `consumer.Shard`: who serves a shard, how far it is, and changes of shards.

Nouns: resolution (who serves a shard, and the replica if we do), local replica (our part in a shard),
proxying (a call that another process answers through us), claims (what the caller may ask about).
Guarantee: what is answered is true of one revision of etcd, which is in the header of the answer; a
change has reached our own view before it is answered. Any process answers any call.
"""
