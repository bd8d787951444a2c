"""Rollups: Iceberg tables that queries make of raw tables, or of other rollups.

Nouns: a *rollup spec* is a query with a header; a *slice* is a part of the table that is made as a
whole; a *cover* lists the offsets of the journals that a slice was made from; a *plan* follows from comparing
covers with the sources. Guarantee: a slice is made again exactly when what it was made of has
changed, and a commit that does not follow on the covers it was planned from is refused.
"""

from gazette_platform.lake.rollups.engines import PythonRollup, rollup
from gazette_platform.lake.rollups.planning import (
    Covers,
    Plan,
    Sealed,
    Seen,
    SliceCover,
    SourceState,
    make_plan,
)
from gazette_platform.lake.rollups.spec import (
    RollupFolder,
    RollupSpec,
    check_rollup,
    load_rollup_specs,
    parse_rollup,
    read_rollup_folder,
)

__all__ = [
    "Covers",
    "Plan",
    "PythonRollup",
    "RollupFolder",
    "RollupSpec",
    "Sealed",
    "Seen",
    "SliceCover",
    "SourceState",
    "check_rollup",
    "load_rollup_specs",
    "make_plan",
    "parse_rollup",
    "read_rollup_folder",
    "rollup",
]
