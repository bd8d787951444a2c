"""The decisions of a shard's life, without the store, the journals and the etcd that they are about.

`transaction` decides when to consume, commit and acknowledge, and keeps batches and progress. `assignments` decides what
this process does about its replica, and who serves a shard.
Promise: no I/O and no clock, so tests can play every order of events. The caller reports events and carries out the answers.
Cost: a few comparisons for a batch of messages.
"""
