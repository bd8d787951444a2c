"""A typed table and its quarantine, as runs open, change and settle them together.

`opening` and `table` create both, or bring them to what the spec says, and finish what an interrupted run left; `progress`
reads how far the table has come. `replacing` publishes with rows removed, `upserts` merges changes by key, and `rollback`
accepts that a person rolled the table back.

Guarantee: every change is one conditional commit (`lake.iceberg`); after a crash the next opening settles what remains.
"""
