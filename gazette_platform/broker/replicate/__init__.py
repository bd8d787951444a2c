"""Replication: keep the replicas of a journal at the end of its primary's spool.

The primary streams content to its replicas and then proposes a fragment; all of them agree, or the append has no known
outcome and the next sync settles it. `fsm` decides for both sides without I/O, `pipeline` holds the primary's streams, and
`replicator` opens, syncs and replaces them as the assignment changes. docs/internals/replication.md gives the reasons.

Guarantee: what is acknowledged is at every replica, byte for byte by SHA-1; no sync moves a replica before all have said how
much they have. Cost: a stream and two tasks for each replica of a journal that takes appends, and none for idle ones; a batch
of appends is one message of content, one proposal and one answer.
"""
