"""Content of journals for tables: how to fetch it, what records are in it, and whether their values fit.

Files are read where engines read them; a broker is the fallback. Cost: one listing of a journal, and one read of each file that
is needed.

One parser makes Arrow columns of lines, all or none (`json_columns`; of CSV, `raw_rows`), and
`sifting` finds the good ones of a block that was refused. What becomes of the others is the policy of the caller: NULL in raw
tables (`raw_rows`), quarantine in typed ones. `scanners` counts what does not fit, needs no columns, and so no Arrow.
"""
