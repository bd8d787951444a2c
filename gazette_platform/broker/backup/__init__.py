"""Keys of etcd as one file: `gazette backup` makes it, `gazette restore` brings it back.

Nouns: backup (the file), key, cluster (brokers with one etcd prefix), scope (the prefixes that a backup covers).
Guarantee: a backup is of one revision of etcd; a restore never overwrites a key, and can be interrupted and repeated.
Cost: memory for a page of keys, and a number for each journal whose head is noted.
"""

from __future__ import annotations

from gazette_platform.broker.backup.file import BackupFile, Cluster, Header, Record, Summary
from gazette_platform.broker.backup.make import make_backup
from gazette_platform.broker.backup.restore import Restore, restore_backup

__all__ = [
    "BackupFile",
    "Cluster",
    "Header",
    "Record",
    "Restore",
    "Summary",
    "make_backup",
    "restore_backup",
]
