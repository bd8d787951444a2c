"""Replication: keep the replicas of a journal at the end of its primary's spool.

The primary streams content to its replicas and then proposes a fragment; all of them agree, or the append has no known
outcome and the next sync settles it. `fsm` decides for both sides without I/O, `pipeline` holds the primary's streams, and
`replicator` opens, syncs and replaces them as the assignment changes. docs/internals/replication.md gives the reasons.

Cost: one stream to each replica of a journal; batches of small appends share one proposal.
"""
