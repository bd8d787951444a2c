"""Raw tables: persisted fragments as Hive partitions of external tables, counted once and never rewritten.

A tick *lists* new fragments, *plans* which Hive partitions they belong to, *registers* these in the metastore, and keeps an
*account* of each: which offsets it holds, and how many records. `reconcile` compares accounts with what brokers list: what is
missing is counted and added, what is lost was *pruned* or waits, and what was counted too often is *repaired*. `account_book` is
the one place that changes accounts, under a lock. An *audit* shows people what differs, and *set aside* takes a file out of a
table because a person says so. Guarantee: each step may be repeated after a crash, and counts nothing twice.
"""
