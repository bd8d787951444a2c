"""Journals as tables: which fragments make which table, and their registration in the metastore.

Nouns: a *table spec* selects journals and names columns; a *layout* is the shape of their
directories, from which Hive partitions follow; a *source* lists fragments; a *registrar* moves a
table on by one bounded tick; an *auditor* compares it with the files; a *repairer* moves files aside
that others cover, a *quarantine* those that a person names; a *shrinker* has the metastore follow prunes. Guarantee: registration is idempotent; no file is rewritten or deleted. Cost of a
tick: a List call, a ListFragments call a journal, two metastore calls, and reading each new fragment
once to count its rows. The lake is a client: it knows nothing of brokers' inside, nor of Dagster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.lake.accounting import PartitionAccount, PartitionUpdate
    from gazette_platform.lake.audit import Audit, Auditor
    from gazette_platform.lake.exact import ensure_views, excluded_files
    from gazette_platform.lake.findings import Finding, FindingKind
    from gazette_platform.lake.fit import FitChecker, json_columns, missing_columns, without_columns
    from gazette_platform.lake.layout import Layout, PartitionColumn, StoreRoots, partition_key
    from gazette_platform.lake.listing import SweepPoint
    from gazette_platform.lake.planning import Limits
    from gazette_platform.lake.progress import JournalCursor, RegistrationCursor
    from gazette_platform.lake.registration import JournalProgress, Registrar, TableReport
    from gazette_platform.lake.repair import MovedFile, Repair, Repairer
    from gazette_platform.lake.settings import LakeSettings
    from gazette_platform.lake.shrinking import Look, Shrinker
    from gazette_platform.lake.source import BrokerSource, FragmentSource, all_fragments
    from gazette_platform.lake.spec_folder import (
        RefusedSpec,
        SpecFolder,
        load_table_specs,
        read_spec_folder,
    )
    from gazette_platform.lake.table_spec import TableSpec, parse_table_spec

__all__ = [
    "Audit",
    "Auditor",
    "BrokerSource",
    "Finding",
    "FindingKind",
    "FitChecker",
    "FragmentSource",
    "JournalCursor",
    "JournalProgress",
    "LakeSettings",
    "Layout",
    "Limits",
    "Look",
    "MovedFile",
    "PartitionAccount",
    "PartitionColumn",
    "PartitionUpdate",
    "RefusedSpec",
    "Registrar",
    "RegistrationCursor",
    "Repair",
    "Repairer",
    "Shrinker",
    "SpecFolder",
    "StoreRoots",
    "SweepPoint",
    "TableReport",
    "TableSpec",
    "all_fragments",
    "ensure_views",
    "excluded_files",
    "json_columns",
    "load_table_specs",
    "missing_columns",
    "parse_table_spec",
    "partition_key",
    "read_spec_folder",
    "without_columns",
]

_HOMES = {
    "accounting": ("PartitionAccount", "PartitionUpdate"),
    "audit": ("Audit", "Auditor"),
    "exact": ("ensure_views", "excluded_files"),
    "findings": ("Finding", "FindingKind"),
    "fit": ("FitChecker", "json_columns", "missing_columns", "without_columns"),
    "layout": ("Layout", "PartitionColumn", "StoreRoots", "partition_key"),
    "listing": ("SweepPoint",),
    "planning": ("Limits",),
    "progress": ("JournalCursor", "RegistrationCursor"),
    "registration": ("JournalProgress", "Registrar", "TableReport"),
    "repair": ("MovedFile", "Repair", "Repairer"),
    "settings": ("LakeSettings",),
    "shrinking": ("Look", "Shrinker"),
    "source": ("BrokerSource", "FragmentSource", "all_fragments"),
    "spec_folder": ("RefusedSpec", "SpecFolder", "load_table_specs", "read_spec_folder"),
    "table_spec": ("TableSpec", "parse_table_spec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        # Imported when first used: SQL in this process needs few of them, and no metastore.
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        return found
