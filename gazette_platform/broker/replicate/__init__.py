"""A journal's replicas, kept alike: the primary's side (`replicator`), its streams (`pipeline`), what both decide (`fsm`)."""
