"""Data files of typed tables: write rows by partition, read them back, describe them for manifests.

Workers write Parquet and return, for each file, what the table's manifests need (`writing`), so the driver reads no data
file. `partition_values` splits rows by the table's partition spec, `stored_rows` reads rows without those that engines
deleted, and `sinks` takes rows that become no file. Files that no commit names are invisible, and maintenance removes them.
"""
