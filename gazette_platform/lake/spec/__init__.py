"""Specs of tables: what a user writes in YAML, and the rules that it must keep.

A *table spec* selects journals and names the format and the columns of a raw table; its section `typed:` describes the
Iceberg table that runs derive from the same journals. A *layout* says which Hive partition a fragment belongs to. All of it is
values and rules: the only I/O is reading a folder of files, and one bad file never hides the good ones.
"""
