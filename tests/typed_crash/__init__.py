"""Crashes of typed tables on real servers: `python -m tests.typed_crash --seed 7`, or `make typed-crash`.

A *case* is a typed table of its own, with its journals and a *history*: a list of steps that follow from the seed
(`plan`). Some append messages through a broker: plain ones, transactions that span runs, repeated appends, records that
are none (`messages`). Others run a *life*: a process that runs, backfills or reprocesses the table once, and is ended by
SIGKILL or whose neighbours answer wrongly at one of its calls, is held up there while others publish, or is ended between
the first two calls between which none was killed yet (`life`, `engine`, and `faults` and `pairs` of `tests.lake_crash`).
Maintenance, damage by hand (`tables`) and changes of the spec come between. When a history is over, lives without faults go
on until there is nothing to do (`player`). Then Spark says what is in the tables, `oracle` knows from what was appended alone
what there should be, and `verdict` compares.

A run costs an etcd, a broker, a metastore and a Spark.
"""
