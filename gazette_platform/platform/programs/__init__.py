"""Programs that the platform starts by ``python -m``: the metastore, guards, Dagster's servers, runs of typed tables."""
