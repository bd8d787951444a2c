"""Crashes of registration on real servers: `python -m tests.lake_crash --seed 7`, or `make lake-crash`.

A *case* is a table of its own, with its journals, its store (a folder or S3) and a *history*: a list of
*steps* that follow from the seed (`plan`). Some store fragments, as brokers from before would have: late,
over one another, in the hour beside; some append through the broker; others run a *life* of the
registrar, a process that is ended by SIGKILL, or whose neighbours answer wrongly, at one of its calls
(`registrar`, `faults`), or between the first two calls between which none was killed yet (`pairs`). When a history is over, lives without faults go on until they have nothing to
do (`player`). At the end all tables are asked for by Trino, Spark and DuckDB, in one statement each
(`engines`); `oracle` knows from the plan alone what they must say, and `verdict` compares that with
their answers, with accounts, and with the events in Dagster.

A run costs an etcd, a broker, an S3 server, a metastore, a Trino and a Spark.
"""
