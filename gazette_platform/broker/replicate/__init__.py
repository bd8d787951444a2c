"""A journal's replicas, kept alike: the primary's side (`replicator`) and the machines of both sides.

`pipeline_fsm`, `replica_fsm` and `synced` decide, without clock or I/O.
"""
