"""Journals as tables: which fragments make which table, and their registration in the metastore.

Nouns: a *table spec* selects journals and names columns; a *layout* is the shape of their
directories, from which Hive partitions follow; a *source* lists fragments; a *registrar* moves a
table on by one bounded tick; an *auditor* compares it with the files; a *repairer* moves files aside
that others cover, a *set-aside* those that a person names; a *shrinker* has the metastore follow prunes. Guarantee: registration is idempotent; no file is rewritten or deleted. Cost of a
tick: a List call, a ListFragments call a journal, two metastore calls, and reading each new fragment
once to count its rows. The lake is a client: it knows nothing of brokers' inside, nor of Dagster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.lake.engines.spark import running_session, start_session
    from gazette_platform.lake.engines.trino import TrinoSession
    from gazette_platform.lake.raw.account_book import PartitionAccount
    from gazette_platform.lake.raw.audits.consistency import Audit, Auditor
    from gazette_platform.lake.raw.audits.fit import (
        FitChecker,
        json_columns,
        missing_columns,
        without_columns,
    )
    from gazette_platform.lake.raw.listing import SweepPoint
    from gazette_platform.lake.raw.partition_updates import PartitionUpdate
    from gazette_platform.lake.raw.planning import JournalCursor, Limits, RegistrationCursor
    from gazette_platform.lake.raw.reconcile import Finding, FindingKind
    from gazette_platform.lake.raw.registration import JournalProgress, Registrar, TableReport
    from gazette_platform.lake.raw.repair import MovedFile, Repair, Repairer
    from gazette_platform.lake.raw.shrinking import Look, Shrinker
    from gazette_platform.lake.raw.views import ensure_views, excluded_files
    from gazette_platform.lake.reading.fragment_source import (
        BrokerSource,
        FragmentSource,
        all_fragments,
    )
    from gazette_platform.lake.settings import LakeSettings
    from gazette_platform.lake.spec.folder import (
        RefusedSpec,
        SpecFolder,
        load_table_specs,
        read_spec_folder,
    )
    from gazette_platform.lake.spec.layout import Layout, PartitionColumn, StoreRoots, partition_key
    from gazette_platform.lake.spec.table_spec import TableSpec, parse_table_spec

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
    "TrinoSession",
    "all_fragments",
    "ensure_views",
    "excluded_files",
    "json_columns",
    "load_table_specs",
    "missing_columns",
    "parse_table_spec",
    "partition_key",
    "read_spec_folder",
    "running_session",
    "start_session",
    "without_columns",
]

_HOMES = {
    "engines.spark": "running_session start_session",
    "engines.trino": "TrinoSession",
    "raw.partition_updates": "PartitionUpdate",
    "raw.account_book": "PartitionAccount",
    "raw.audits.consistency": "Audit Auditor",
    "raw.views": "ensure_views excluded_files",
    "raw.reconcile": "Finding FindingKind",
    "raw.audits.fit": "FitChecker json_columns missing_columns without_columns",
    "spec.layout": "Layout PartitionColumn StoreRoots partition_key",
    "raw.listing": "SweepPoint",
    "raw.planning": "Limits JournalCursor RegistrationCursor",
    "raw.registration": "JournalProgress Registrar TableReport",
    "raw.repair": "MovedFile Repair Repairer",
    "settings": "LakeSettings",
    "raw.shrinking": "Look Shrinker",
    "reading.fragment_source": "BrokerSource FragmentSource all_fragments",
    "spec.folder": "RefusedSpec SpecFolder load_table_specs read_spec_folder",
    "spec.table_spec": "TableSpec parse_table_spec",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        # Imported when first used: SQL in this process needs few of them, and no metastore.
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        return found
