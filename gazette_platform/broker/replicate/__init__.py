"""Brings the replicas of a journal into step: `replicator` is the primary's side, `pipeline` its streams, `fsm` decides for both.

Guarantee: what is acknowledged is at every replica, byte for byte by SHA-1. If a replica fails, the outcome of what is
under way is unknown until the next sync, which moves no replica before all have said how much they have.

Cost: a stream and two tasks for each replica of a journal that takes appends; none for idle journals, or with one
replica. A batch of appends is one message of content, one proposal and one answer from each replica.
"""
