"""Rollup specs: which tables a query reads, how it is sliced, and when it runs.

A rollup is one SQL file, in the folder that names its engine (``trino/`` or ``spark/``), with a header
of YAML in its first comment lines. The header ends at the first line that is not a comment, or an empty one:

    -- name: rollups.route_by_month      # schema.table of the Iceberg table
    -- sources: [flights.flights]        # tables that the query reads, by the name after the dot
    -- slices: [origin]                  # partition columns; each slice is made again as a whole
    -- cron: "*/5 * * * *"
    --
    -- Grain: one row an origin, destination and month.
    SELECT origin, dest, count(*) AS flights FROM flights GROUP BY origin, dest

The query names its sources by their aliases, as if they were tables, and gets only those rows of them
that belong to the slices being made.

The folder of rollups beside the tables of a platform: what of it is good, and what is wrong with the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.folder import read_spec_file, shown_name
from gazette_platform.lake.spec.rules import (
    cron_errors,
    freshness_errors,
    is_sql_name,
    is_table_name,
    ownership_errors,
    shown,
)
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import parse_duration
from gazette_platform.yaml_specs.documents import check_yaml

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

ENGINES = ("trino", "spark")
Dialect = Literal["trino", "spark"]
STAGING_SCHEMA = "gazette_staging"
"""Where tables lie that are not committed yet; no rollup may be here."""

# Of each part of a rollup's name: its staging tables have longer ones.
_NAME_CHARACTERS_MAX = 100
_COMMENT = re.compile(r"\s*--(.*)")
_FILE_BYTES_MAX = 1 << 20
_SLICE_COLUMNS_MAX = 8
_SOURCES_MAX = 20


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    sources: tuple[str, ...] | dict[str, str]
    slices: tuple[str, ...] = ()
    cron: str = "* * * * *"
    retention: Literal["keep", "follow"] = "keep"
    comment: str = ""
    fresh_within: str = "25h"
    version: str = ""
    owners: tuple[str, ...] = ()
    tags: dict[str, str] = {}


class RollupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rollup. Build with `parse_rollup`, or have it checked by `check_rollup`."""

    name: str
    """``schema.table`` of the Iceberg table."""
    engine: Literal["trino", "spark", "python"]
    sql: str
    """The query; of a Python rollup, the source text of its function."""
    sources: dict[str, str]
    """``schema.table`` by the alias that the query has for it."""
    slices: tuple[str, ...] = ()
    """Partition columns of the table and of its sources; empty: all is made at once."""
    cron: str = "* * * * *"
    """When to look whether a source has changed; UTC."""
    retention: Literal["keep", "follow"] = "keep"
    """Whether rows go when the content that they were made of was pruned."""
    comment: str = ""
    fresh_within: str = "25h"
    """Go duration; the rollup is stale in Dagster if it was not made for longer."""
    version: str = ""
    """If given, marks a change of the code, in place of the query's text."""
    owners: tuple[str, ...] = ()
    """Email addresses, or `team:` and a name, for Dagster's catalog."""
    tags: dict[str, str] = {}
    """For Dagster's catalog."""

    @property
    def schema(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def table(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]

    @property
    def fresh_within_s(self) -> float:
        """`fresh_within` in seconds."""
        return parse_duration(self.fresh_within) / SECOND_NS

    @property
    def code_version(self) -> str:
        """16 hex digits that change when all rows have to be made again."""
        code = [
            self.engine if not self.version else "",
            self.version or self.sql,
            sorted(self.sources.items()),
            self.slices,
        ]
        return hashlib.sha256(msgspec.json.encode(code)).hexdigest()[:16]

    @property
    def query_comment(self) -> str:
        """The comment lines that the query begins with; of a Python rollup none."""
        if self.engine == "python":
            return ""
        found: list[str] = []
        for line in self.sql.splitlines():
            comment = _COMMENT.match(line)
            if comment is None:
                break
            found.append(comment[1].strip())
        return "\n".join(found).strip()

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of the spec."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def parse_rollup(text: str, *, engine: str) -> RollupSpec:
    """The rollup in the text of a file.

    Args:
        engine: ``trino`` or ``spark``.

    Raises: ValidationError: no header, unknown or missing keys, or a rule is broken; of several errors
        the message holds all, each with its key.
    """
    header, sql = _split(text)
    if not header.strip():
        raise ValidationError(
            "has no header: begin the file with comment lines such as `-- name: rollups.by_day` and "
            "`-- sources: [orders.orders]`"
        )
    try:
        check_yaml(header)
        read = msgspec.yaml.decode(header, type=_Header)
    except msgspec.ValidationError as err:
        raise ValidationError(
            f"{err} (docs/reference/rollup-spec.md has an example and all keys; an empty comment "
            "line ends the header)"
        ) from err
    except ValidationError as err:
        raise ValidationError(
            f"the header is not valid YAML: {err.message.removeprefix('yaml: ')} (an empty comment "
            "line ends it)"
        ) from err
    except (
        Exception
    ) as err:  # what constructors of YAML's scalars meet, such as a date of 2001-99-99
        raise ValidationError(
            f"the header is not valid YAML: {' '.join(str(err).split())}"
        ) from err
    spec = RollupSpec(
        name=read.name,
        engine="spark" if engine == "spark" else "trino",
        sql=sql,
        sources=_aliases(read.sources),
        slices=read.slices,
        cron=read.cron,
        retention=read.retention,
        comment=read.comment.strip(),
        fresh_within=read.fresh_within,
        version=read.version,
        owners=read.owners,
        tags=read.tags,
    )
    check_rollup(spec)
    return spec


def check_rollup(spec: RollupSpec) -> None:
    """Refuse a spec that breaks a rule.

    Raises: ValidationError: with all rules that it breaks.
    """
    errors = list(_errors(spec))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ValidationError("; ".join(map(str, errors)))


def load_rollup_specs(folder: Path) -> tuple[dict[str, RollupSpec], dict[str, ValidationError]]:
    """All rollups ``trino/*.sql`` and ``spark/*.sql`` below a folder, read again.

    Returns: specs by name, sorted, and errors by file: a bad file hides no good one. Rollups that need
        one another in a circle are errors. A missing folder is empty.
    """
    specs: dict[str, RollupSpec] = {}
    errors: dict[str, ValidationError] = {}
    origins: dict[str, str] = {}
    for engine in ENGINES:
        for path in sorted((folder / engine).glob("*.sql")):
            origin = f"{engine}/{shown_name(path)}"
            try:
                spec = parse_rollup(_read(path), engine=engine)
            except ValidationError as err:
                errors[origin] = err.within(origin)
                continue
            if spec.name in specs:
                errors[origin] = ValidationError(
                    f"{spec.name} is defined in {origins[spec.name]} already; rename or remove one",
                    path=origin,
                )
                continue
            specs[spec.name] = spec
            origins[spec.name] = origin
    for circle in _circles(specs):
        for name in circle:
            del specs[name]
            errors[origins[name]] = ValidationError(
                f"{name} is made of itself, by way of {' of '.join(circle)}", path=origins[name]
            )
    return dict(sorted(specs.items())), errors


def _read(path: Path) -> str:
    try:
        return read_spec_file(path, _FILE_BYTES_MAX, "a rollup").decode()
    except UnicodeDecodeError as err:
        raise ValidationError(f"is not UTF-8: {err.reason} at byte {err.start}") from err


def _split(text: str) -> tuple[str, str]:
    """The YAML of the header, and the query with all that comes after it."""
    lines = text.splitlines()
    header: list[str] = []
    for line in lines:
        found = _COMMENT.match(line)
        if found is None or not found[1].strip():
            break
        # One space belongs to the comment; more are YAML's.
        header.append(found[1].removeprefix(" "))
    return "\n".join(header), "\n".join(lines[len(header) :]).strip().rstrip(";").rstrip()


def _aliases(sources: tuple[str, ...] | dict[str, str]) -> dict[str, str]:
    if isinstance(sources, dict):
        return sources
    names = [source.rpartition(".")[2] for source in sources]
    counts = Counter(names)
    # Two of one name need aliases; that is reported when all is checked.
    return {
        source if counts[name] > 1 else name: source
        for name, source in zip(names, sources, strict=True)
    }


def _errors(spec: RollupSpec) -> Iterator[ValidationError]:
    if not is_table_name(spec.name, _NAME_CHARACTERS_MAX):
        yield ValidationError(
            f"{shown(spec.name)} is not schema.table (lower-case letters, digits, `_`)", path="name"
        )
    if spec.schema == STAGING_SCHEMA:
        yield ValidationError(
            f"the schema {STAGING_SCHEMA} is for tables that are being made; use another",
            path="name",
        )
    if not 1 <= len(spec.sources) <= _SOURCES_MAX:
        yield ValidationError(f"needs 1 to {_SOURCES_MAX} tables", path="sources")
    # What is too much is reported once, and not checked one by one, which may take hours.
    for alias, source in list(spec.sources.items())[:_SOURCES_MAX]:
        yield from _source_errors(spec, alias, source)
    if len(spec.slices) > _SLICE_COLUMNS_MAX:
        yield ValidationError(f"has more than {_SLICE_COLUMNS_MAX} columns", path="slices")
    for index, column in enumerate(spec.slices[:_SLICE_COLUMNS_MAX]):
        if not is_sql_name(column):
            yield ValidationError(
                f"{shown(column)} is not a column name (lower-case letters, digits, `_`)",
                path=f"slices[{index}]",
            )
        if column in spec.slices[:index]:
            yield ValidationError(f"{column!r} is repeated", path=f"slices[{index}]")
    yield from cron_errors(spec.cron)
    yield from freshness_errors(spec.fresh_within, lambda: spec.fresh_within_s)
    yield from ownership_errors(spec.owners, spec.tags)
    if not spec.sql:
        yield ValidationError("has no query after its header")


def _source_errors(spec: RollupSpec, alias: str, source: str) -> Iterator[ValidationError]:
    path = f"sources.{alias if is_sql_name(alias) else shown(alias)}"
    if not is_table_name(source):
        yield ValidationError(
            f"{shown(source)} is not schema.table (lower-case letters, digits, `_`)", path=path
        )
    if source == spec.name:
        yield ValidationError("a rollup cannot be made of itself", path=path)
    if not is_sql_name(alias):
        yield ValidationError(
            f"{shown(alias)} is not a name that a query can have for a table; give names to all: "
            "`sources: {flights: flights.flights, …}`",
            path=path,
        )
    elif spec.engine != "python" and not re.search(rf"\b{alias}\b", spec.sql, re.IGNORECASE):
        yield ValidationError(
            f"the query does not read {alias}; it names sources by their aliases, such as "
            f"`FROM {alias}`",
            path=path,
        )


def _circles(specs: Mapping[str, RollupSpec]) -> Iterator[list[str]]:
    """Rollups that need one another, one circle after another until none is left."""
    graph = {name: {s for s in spec.sources.values() if s in specs} for name, spec in specs.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as err:
            circle = list(dict.fromkeys(err.args[1]))
            for name in circle:
                graph.pop(name, None)
            graph = {name: needs - set(circle) for name, needs in graph.items()}
            yield circle
        else:
            return


@final
@dataclass(frozen=True, slots=True)
class RollupFolder:
    """What a folder says: a bad file hides no good one."""

    specs: Mapping[str, RollupSpec] = field(default_factory=dict)
    """By name, sorted."""
    errors: Mapping[str, ValidationError] = field(default_factory=dict)
    """By file, or by the name of a table of a table spec that a rollup would be."""

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of any spec, and with what is refused, and why."""
        texts = [f"{name}:{spec.digest}" for name, spec in self.specs.items()]
        texts += [f"{file}:{error}" for file, error in sorted(self.errors.items())]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_rollup_folder(folder: str, tables: Container[str]) -> RollupFolder:
    """The rollups of a folder that can be beside the tables of table specs, read again.

    Args:
        folder: see `load_rollup_specs`; empty: there are none.
        tables: names that no rollup may have; see `SpecFolder.tables`.
    """
    if not folder:
        return RollupFolder()
    found, errors = load_rollup_specs(Path(folder))
    for name in [name for name in found if name in tables]:
        errors[name] = ValidationError(
            f"there is a raw or typed table {name}, or a view: give the rollup another name",
            path=name,
        )
        del found[name]
    return RollupFolder(found, errors)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query to check."""

    name: str
    """Of the table that it makes."""
    sql: str
    dialect: Dialect
    sources: Mapping[str, str]
    """Tables by alias."""
    slices: Sequence[str] = ()
    """Columns that it has to give."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFaults:
    """What is wrong with a query, and the columns that it gives."""

    syntax: str = ""
    """Why it cannot be parsed. The engine may still take it."""
    names: tuple[str, ...] = ()
    """Tables and columns that it names, or has to give, and that do not exist."""
    columns: tuple[str, ...] | None = None
    """Names of all columns that it gives, in lower case; None: not known."""
