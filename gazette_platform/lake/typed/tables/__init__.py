"""A typed table and its quarantine, as runs open, write, change and settle them together.

`table` creates both, or brings them to what the spec says, and finishes what an interrupted run left; `progress` reads how
far the table has come, and accepts that a person rolled it back. `upserts`
merges changes by key, and publishes with rows removed.

Data files: workers write Parquet and return, for each file, what the table's manifests need (`writing`), so the driver reads
no data file. `lake.typed.rows.placing` splits rows by the table's partition spec, `stored_rows` reads rows without those that engines
deleted. Files that no commit names are invisible, and maintenance removes them.

Guarantee: every change is one conditional commit (`lake.iceberg`); after a crash the next opening settles what remains.
"""
