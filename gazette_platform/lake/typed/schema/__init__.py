"""Schemas of typed tables: what a spec means in Iceberg, and what an existing table can become.

`iceberg_types` translates the types and partitions of a spec. `evolution` compares a table with its spec and returns the
steps to follow it, or why existing rows cannot. `mounting` writes statements for engines that do not ask the table's
catalog: they show the table as it is now, by its metadata file.
"""
