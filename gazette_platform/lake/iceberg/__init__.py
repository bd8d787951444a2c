"""Iceberg tables: catalogs, the one way to change a table, and what lies beside it.

A *catalog* (a Hive Metastore, a REST server, or a database) names the newest metadata file of each table. Every
change writes another metadata file and asks the catalog to name that instead, on conditions that it checks in the same step:
a change that lost the race changes nothing. Typed tables publish on the condition that a tag has not moved, and rollups
on the condition that the table still covers what it did when the run began.

Cost: a change reads the newest metadata, and writes a metadata file and the manifests that differ.
"""
