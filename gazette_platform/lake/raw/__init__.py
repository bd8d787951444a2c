"""Raw tables: persisted fragments as Hive partitions of external tables, counted once and never rewritten.

A tick *lists* new fragments, *plans* which Hive partitions they belong to, *registers* these in the metastore, and keeps an
*account* of each partition: which offsets it holds, and how many records. *Pruning* follows fragments that were deleted,
*repair* and *set-aside* move files out of the table, and an *audit* compares brokers, files and accounts. Guarantee: each step may be
repeated after a crash and counts nothing twice.
"""
