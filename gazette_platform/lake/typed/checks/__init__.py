"""Checks and maintenance of typed tables: completeness, status, small files, old snapshots.

`completeness` compares what runs recorded with the rows that manifests count; `recount` reads the journals again, and finds
each message that is missing or present twice. `status` says how far a table trails its journals, and why. `maintenance`
merges small files, and removes old snapshots and unreferenced files, after it fenced runs that began long ago.

Cost: `status`, and `completeness` of a table without a key, read metadata only; `recount` reads all content.
"""
