"""SQL engines over the same tables: DuckDB in this process, Trino, Spark, and statements for other engines.

`trino` and `spark` connect to servers of the platform or of the user, with the user's logins and properties; secrets come
from the environment and are shown nowhere. `duckdb` answers queries in this process, from fragments and the live tail,
without a metastore. `ddl` writes CREATE statements that mount a raw table in an engine that does not ask our metastore.

Cost: Spark takes seconds to start a JVM, unless it is a server of Spark Connect; each query on Trino opens a connection.
"""
