"""Iceberg tables: catalogs, the one way to change a table, and maintenance.

A *catalog* (a Hive Metastore, a REST server, or a database) names the newest metadata file of each table. Every
change writes another metadata file and asks the catalog to name that instead, on conditions that it checks in the same step:
a change that lost the race changes nothing.

Typed tables and rollups publish by the same loop (`publishing.publish_snapshot`). A typed table requires that its tag has
not moved since the run began, and a rollup that it still covers what it did then. Both move main and the tag together.

Cost: a change reads the newest metadata, and writes a metadata file and the manifests that differ.
"""
