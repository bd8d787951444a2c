"""Journals as tables: which fragments make which table, and their registration in the metastore.

Nouns: a *table spec* selects journals and names columns; a *layout* is the shape of their
directories, from which Hive partitions follow; a *source* lists fragments; a *registrar* moves a
table on by one bounded tick. Guarantee: registration is idempotent and never moves or rewrites a
file. Cost of a tick: a List call, a ListFragments call a journal, two metastore calls, and reading
each new fragment once to count its rows. The lake is a client: it knows nothing of brokers' inside,
nor of Dagster.
"""

from gazette_platform.lake.audit import Audit, Auditor, Finding, FindingKind
from gazette_platform.lake.exact import ensure_exact_view, excluded_files
from gazette_platform.lake.layout import Layout, PartitionColumn, StoreRoots, partition_key
from gazette_platform.lake.planning import Limits
from gazette_platform.lake.registration import (
    JournalProgress,
    PartitionUpdate,
    Registrar,
    RegistrationCursor,
    TableReport,
)
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.source import BrokerSource, FragmentSource
from gazette_platform.lake.table_spec import (
    TableSpec,
    load_table_specs,
    parse_table_spec,
    specs_digest,
)

__all__ = [
    "Audit",
    "Auditor",
    "BrokerSource",
    "Finding",
    "FindingKind",
    "FragmentSource",
    "JournalProgress",
    "LakeSettings",
    "Layout",
    "Limits",
    "PartitionColumn",
    "PartitionUpdate",
    "Registrar",
    "RegistrationCursor",
    "StoreRoots",
    "TableReport",
    "TableSpec",
    "ensure_exact_view",
    "excluded_files",
    "load_table_specs",
    "parse_table_spec",
    "partition_key",
    "specs_digest",
]
