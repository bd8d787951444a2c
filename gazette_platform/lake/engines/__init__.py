"""SQL engines over the same tables: DuckDB in this process, Trino, Spark, and DDL for engines that are not ours."""
