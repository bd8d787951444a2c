"""Typed tables: each committed message of their journals exactly once, as a typed row of an Iceberg table.

Nouns, besides those of `lake.spec.typed`: an *evolution* has the steps that turn an existing table into what its spec
says, or why it cannot (`evolution`; `iceberg_types` says what a spec means in Iceberg). A *run* reads of each journal a *range* of bytes, in *tasks* that run side by side; *screening* decides which of their messages are committed and new, in *rounds* of *orders* to workers; the *state* says how far a table has come, and is published with the rows or not at all.

A *job* is what all workers of a run receive. A *handle* is the catalog of one table; to *publish* is one change of its metadata, so that what workers have *written*
becomes rows, with the state after it; *quarantine* is the table beside it, of rejected records. An *amendment* makes rows again of
messages that were read: a *backfill* out of journals, *reprocessing* out of quarantine.

`status` says how far a table trails its journals, and why, and compares what runs recorded with the rows that manifests count: it reads
metadata only, and the keys of a table with a key. `recount` reads the journals again, and finds each message that is missing or present twice.

What decides is apart from what reads and writes. `gazctl lake run` and Dagster make typed tables. ARCHITECTURE.md follows a row
through the modules.
"""
