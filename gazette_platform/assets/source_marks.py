"""Has a source of a rollup, or of a typed table, changed since it last looked?

The *mark* of a rollup is a digest over the newest materialization of each of its sources, over what their
checks ``no_overlap`` say, and over its own code. A run notes the mark *before* it reads, so what arrives
meanwhile lets it run again and nothing is missed. It only says that looking is worth while: what is made is
decided by offsets. No time is compared.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from dagster import AssetCheckKey, AssetKey

from gazette_platform.assets.checks import OVERLAP_CHECK, is_red, newest_evaluations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import DagsterInstance

# Metadata key under which a rollup notes its mark.
SOURCES_KEY = "gazette/sources_mark"
_DATA_VERSION = "dagster/data_version"


class Sourced(Protocol):
    """What is made of other tables: a rollup, or a typed table."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        ...

    @property
    def sources(self) -> Mapping[str, str]:
        """Tables that it is made of."""
        ...

    @property
    def cron(self) -> str:
        """When it is made."""
        ...

    @property
    def code_version(self) -> str:
        """Marks a change of its code."""
        ...

    @property
    def retention(self) -> str:
        """What becomes of rows whose raw content goes."""
        ...


def sources_mark(instance: DagsterInstance, spec: Sourced) -> str:
    """The mark of what is made of sources as these are now.

    Returns: 16 hex digits, or empty text if one of them was never materialized.
    """
    marks = [spec.code_version, spec.retention]
    for source in sorted(spec.sources.values()):
        key = AssetKey(source.split("."))
        mark = _source_mark(instance, key)
        if not mark:
            return ""
        marks += [mark, _overlaps(instance, key)]
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]


def sources_missing(instance: DagsterInstance, spec: Sourced) -> list[str]:
    """Return the sources that were never materialized."""
    names = sorted(spec.sources.values())
    return [name for name in names if not _source_mark(instance, AssetKey(name.split(".")))]


def noted_mark(instance: DagsterInstance, rollup: AssetKey) -> str:
    """The mark that the newest materialization of a rollup noted; empty: there is none."""
    for record in instance.fetch_materializations(rollup, limit=1).records:
        materialization = record.asset_materialization
        if materialization is not None and SOURCES_KEY in materialization.metadata:
            return str(materialization.metadata[SOURCES_KEY].value)
    return ""


def _source_mark(instance: DagsterInstance, source: AssetKey) -> str:
    """Of an asset without partitions its data version, which runs that change nothing leave alone."""
    for record in instance.fetch_materializations(source, limit=1).records:
        materialization = record.asset_materialization
        if materialization is not None:
            version = (materialization.tags or {}).get(_DATA_VERSION)
            is_whole = materialization.partition is None
            return version if version and is_whole else str(record.storage_id)
    return ""


def _overlaps(instance: DagsterInstance, source: AssetKey) -> str:
    """What check ``no_overlap`` says; empty while it is green, or yellow: nothing is known to be wrong.

    When it turns red a rollup may have read rows twice, before the exact view left them out.
    """
    key = AssetCheckKey(source, OVERLAP_CHECK)
    evaluation = newest_evaluations(instance, [key]).get(key)
    return str(evaluation.description) if evaluation is not None and is_red(evaluation) else ""
