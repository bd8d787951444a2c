"""Checks of typed tables: completeness and status.

`status` says how far a table trails its journals, and why, and compares what runs recorded with the rows that manifests count.
`recount` reads the journals again, and finds each message that is missing or present twice.

Cost: `status` reads metadata only, and the keys of a table with a key; `recount` reads all content.
"""
