"""The decisions of a shard's life, without the store, journals and etcd that they are about.

Nouns: transaction, barrier, batches of committed messages and progress (`transaction`); what this process
does about its replica, and who serves a shard (`assignments`). The caller reports what has happened, and
does what they say.
"""
