"""Stream-sum under faults: `python -m tests.soak --seed 7 --minutes 10`, or `make soak`.

Three brokers, three consumers, an etcd and a PostgreSQL, all processes, with proxies between them, sum streams in eight
shards on RocksDB, SQLite, JSON and PostgreSQL, and pass the sums on in one after them (`summer`, `specs`; one of the
consumers takes batches), while a plan that follows from the seed (`plan`) kills them, stops them past their leases, cuts
them off and has them leave (`nemesis`, on the processes of `consumers`). Chunkers in this process publish streams, and
each waits for its sum; a fourth of them by a clock that jumps (`producers`). When the plan is over and all sums have
come, `verdict` compares all that was published with all that should have been, in both journals: no sum is wrong, none is
missing, none is duplicated, and none was later than 40 seconds. No shard may have failed except its database, and no
process may have ended but by what was done to it.
"""
