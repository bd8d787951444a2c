"""What queries may call tables, and what DuckDB makes of that. Pure.

How queries name journals that have no table spec, and what DuckDB makes of these names. Pure.

A query says ``journal('events/')``. That is a macro: it selects from a view whose name holds the argument in
hexadecimal digits, because DuckDB ignores the case of names. If the view is missing, DuckDB's error has its name,
so the argument is known without a parser of our own, whatever the statement: a CTE, a COPY, a view, a parameter.

Tables of journals without a table spec: one is inferred from samples of their content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from gazette_platform.errors import GazetteError, LakeError, SchemaMismatch, ValidationError
from gazette_platform.lake.inference.infer import Inference, format_of, infer_spec, refusal
from gazette_platform.lake.inference.sampling import (
    BrokerContent,
    Sample,
    SampleLimits,
    require_whole_lines,
    sample_lines,
    served,
    spread,
)
from gazette_platform.lake.spec.folder import or_meant
from gazette_platform.lake.spec.formats import Kind
from gazette_platform.lake.spec.layout import Layout
from gazette_platform.ops.text import counted
from gazette_platform.protocol import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.client import Client, JournalListing
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import JournalSpec

OFFSETS_SUFFIX: Final = "$offsets"
"""Behind a table's name: the same table with the columns `_journal`, `_offset` and `_fragment`."""
HISTORY_SUFFIX: Final = "$history"
"""Behind a typed table's name: the rows that runs have published."""
TAIL_SUFFIX: Final = "$tail"
"""Behind a typed table's name: what no run has published yet."""
DELETES_SUFFIX: Final = "$deletes"
"""Behind a typed table's name: deletions that runs have kept; none, but of a table of changes."""
RESERVED: Final = frozenset({"information_schema", "pg_catalog"})
"""Schemas of DuckDB's own."""


def typed_of(specs: Mapping[str, TableSpec]) -> dict[str, TableSpec]:
    """Specs by the names of their typed tables, except for names that others have, or DuckDB."""
    return {
        spec.typed.name: spec
        for spec in specs.values()
        if spec.typed is not None
        and spec.typed.name not in specs
        and spec.typed.name.partition(".")[0] not in RESERVED
    }


def names_of(specs: Mapping[str, TableSpec], typed: Iterable[str]) -> dict[str, str]:
    """Full names by what queries may call tables.

    A short name that two have is none. But that of a raw table does not mean the typed one of the same name.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tables in ([*specs], [*typed]):
        shorts = [name.partition(".")[2] for name in tables]
        for name, short in zip(tables, shorts, strict=True):
            names[name] = name
            if shorts.count(short) == 1 and short not in taken:
                names[short] = name
        taken.update(shorts)
    return names


def key_of(name: str) -> str:
    """What a query calls a table, as in `names_of`; DuckDB adds what else it is called there.

    >>> key_of('"orders$offsets"'), key_of("Shop.orders AS o"), key_of("memory.shop.orders")
    ('orders', 'shop.orders', 'shop.orders')
    """
    name = name.partition(" AS ")[0].replace('"', "").lower()
    for suffix in (OFFSETS_SUFFIX, HISTORY_SUFFIX, TAIL_SUFFIX, DELETES_SUFFIX):
        name = name.removesuffix(suffix)
    return ".".join(name.split(".")[-2:])


def quoted(name: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


MACRO: Final = (
    "CREATE OR REPLACE TEMP MACRO journal(name, offsets := false) AS TABLE SELECT * FROM query_table("
    "'\"journal:' || hex(name::VARCHAR) || CASE WHEN offsets THEN '$offsets' ELSE '' END || '\"')"
)
"""Makes `journal` a table function."""
MACRO_WITHOUT_VIEWS: Final = (
    "CREATE OR REPLACE TEMP MACRO journal(name, offsets := false) AS TABLE SELECT 1"
)
"""The same for a database that is only asked which tables a query names."""

_MISSING: Final = re.compile(r'Table with name "?journal:(?P<digits>[0-9A-F]*)')
_DESCRIBES: Final = frozenset({b"describe", b"desc", b"summarize"})
# No name of a journal has one of these, and each selector of more than one label does.
_OF_SELECTORS: Final = frozenset(":,()! ")


def called(name: str) -> str:
    """Return how a query calls a table of journals.

    >>> called("events/"), called("it's")
    ("journal('events/')", "journal('it''s')")
    """
    return "journal('" + name.replace("'", "''") + "')"


def view_of(name: str) -> str:
    """Return the name of the view that the macro selects from.

    >>> view_of("a/B")
    'journal:612F42'
    """
    return f"journal:{name.encode().hex().upper()}"


def data_of(name: str) -> str:
    """Return the name of the data set below the view."""
    return f"data of {view_of(name)}"


def journal_missing(error: str) -> str | None:
    """Return the argument of `journal` whose view DuckDB did not find; None if the error is another one.

    >>> journal_missing("Catalog Error: Table with name journal:612F42 does not exist!")
    'a/B'
    """
    found = _MISSING.search(error)
    if found is None:
        return None
    try:
        return bytes.fromhex(found["digits"]).decode()
    except ValueError:  # the query names such a table itself
        return None


def selectors_of(name: str) -> list[str]:
    """Return the selectors that an argument of `journal` may mean, the likeliest first.

    >>> selectors_of("events/"), selectors_of("events/a")
    (['name:prefix=events/'], ['name=events/a'])
    >>> selectors_of("name:prefix=events/,region=eu")
    ['name:prefix=events/,region=eu']

    A name may look like a selector of one label:

    >>> selectors_of("region=eu")
    ['name=region=eu', 'region=eu']
    """
    if not name.strip():
        return []
    if _OF_SELECTORS & set(name):
        return [name]
    named = f"name:prefix={name}" if name.endswith("/") else f"name={name}"
    return [named, name] if "=" in name else [named]


def describable(query: str, tokens: Sequence[tuple[int, object]]) -> str:
    """Return a query with FROM after each DESCRIBE of `journal(…)`, where DuckDB's grammar takes a plain name only.

    Args:
        query: of DuckDB's SQL.
        tokens: of `duckdb.tokenize`: where each begins, in bytes. Comments are not tokens.
    """
    text = query.encode()
    begins = [begin for begin, _ in tokens]
    words = [text[begin:end].lower() for begin, end in pairwise([*begins, len(text)])]
    places = [
        begins[i + 1]
        for i in range(len(words) - 2)
        if _word(words[i]) in _DESCRIBES
        and _word(words[i + 1]) == b"journal"
        and words[i + 2].startswith(b"(")
    ]
    for place in reversed(places):
        text = text[:place] + b"FROM " + text[place:]
    return text.decode()


def _word(token: bytes) -> bytes:
    found = re.match(rb"\w+", token)
    return found[0] if found is not None else b""


# Of the spec, until it is saved.
_NAME: Final = "journals.inferred"
_SHOWN: Final = 3
_LIMITS: Final = SampleLimits()
# Of each place in all journals together, if they are few: 2 MiB are read whole, in about a second.
_BYTES_OF_FEW: Final = 512 << 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InferredTable:
    """Journals as a table, by a spec that was inferred."""

    name: str
    """As a query calls it: ``journal('events/')``."""
    inference: Inference
    samples: tuple[Sample, ...]
    """What was read to infer it."""
    journals: int
    """How many match and hold content."""
    journals_read: int
    """How many were looked into."""

    @property
    def spec(self) -> TableSpec:
        """The spec, named as queries call the table."""
        return msgspec.structs.replace(self.inference.spec, name=self.name)

    @property
    def is_read_whole(self) -> bool:
        """Whether all content was read to infer the spec."""
        of_journals = {sample.journal: sample.journal_bytes for sample in self.samples}
        read = sum(sample.end - sample.begin for sample in self.samples)
        return self.journals_read == self.journals and read == sum(of_journals.values())


def infer_table(client: Client, name: str) -> InferredTable:
    """Infer a table of the journals that `name` means: one journal, a prefix that ends in ``/``, or a selector.

    Raises: ValidationError: no journal matches. SchemaMismatch: there is no record yet, or content is neither
        JSON nor CSV, or some is of each. LakeError, TransportError: a journal cannot be read.
    """
    table = called(name)
    selector, listings = _matching(client, name)
    journals = [listing.spec for listing in listings]
    able = {journal.name for journal in served(journals)}
    heads = client.run(
        client.asynchronous.write_heads([each for each in listings if each.name in able])
    )
    content = BrokerContent(client)
    lines: dict[str, list[bytes]] = {}
    samples: list[Sample] = []
    holding = [journal for journal in journals if heads.get(journal.name)]
    chosen = spread(holding, _LIMITS.journals_max)
    limits = replace(_LIMITS, sample_bytes=_sample_bytes(len(chosen)))
    for journal in chosen:
        lines[journal.name], read = sample_lines(content, [journal], limits)
        samples += read
    every = [line for of_one in lines.values() for line in of_one]
    if not any(line.strip() for line in every):
        require_whole_lines(every, samples)
        raise SchemaMismatch(
            f"{table}: {counted(len(journals), 'journal')} without a record, so there are no columns: append some "
            f"first (`gazctl journals append -l name={journals[0].name} -i FILE`)"
        )
    inference = infer_spec(
        _NAME,
        selector,
        every,
        journals if _have_one_layout(journals) else (),
        data_format=_format(table, lines),
        called=table,
    )
    return InferredTable(
        name=table,
        inference=inference,
        samples=tuple(samples),
        journals=len(holding),
        journals_read=len(lines),
    )


def _sample_bytes(journals: int) -> int:
    """Return how many bytes to read of each place in a journal: the fewer journals, the more."""
    return max(_LIMITS.sample_bytes, _BYTES_OF_FEW // max(journals, 1))


def _matching(client: Client, name: str) -> tuple[str, list[JournalListing]]:
    """Return the first selector that `name` may mean and that matches journals, and these.

    Raises: ValidationError: there is none; names journals that may be meant.
    """
    table = called(name)
    readings = selectors_of(name)
    for selector in readings:
        try:
            parsed = LabelSelector.parse(selector)
        except ValidationError as err:
            if len(readings) > 1:  # it looks like a selector, and is a name
                continue
            raise ValidationError(
                f"{table}: not a journal's name, a prefix that ends in `/`, or a selector such as "
                f"`name:prefix=events/,region=eu`: {err}"
            ) from err
        if found := list(client.list(parsed)):
            return selector, found
    try:
        names = [listing.name for listing in client.list()]
    except GazetteError:  # a token may allow some journals only
        names = []
    prefixes = {each[: i + 1] for each in names for i, sign in enumerate(each) if sign == "/"}
    raise ValidationError(
        f"{table}: no such journals (`gazctl journals list` shows which there are; a name that ends in `/` is a "
        f"prefix){or_meant([name], {*names, *prefixes})}"
    )


def _have_one_layout(journals: Sequence[JournalSpec]) -> bool:
    """Whether types of partition columns can be inferred. Without, they are found in paths, as strings."""
    try:
        Layout.of_journals(journal.name for journal in journals)
    except LakeError:
        return False
    return True


def _format(table: str, lines: Mapping[str, list[bytes]]) -> Literal["json", "csv"]:
    """Return the format that all journals have.

    Raises: SchemaMismatch: one has none, or another one.
    """
    journals: dict[tuple[Literal["json", "csv"], str], list[str]] = {}
    for journal, of_one in lines.items():
        found = format_of(of_one)
        if what := refusal(found):
            raise SchemaMismatch(
                f"{table}: the content of {journal} {what}, or name other journals"
            )
        if found.kind is not Kind.EMPTY:
            is_json = found.kind is Kind.JSON_LINES
            kind: Literal["json", "csv"] = "json" if is_json else "csv"
            journals.setdefault((kind, "" if is_json else found.delimiter or ","), []).append(
                journal
            )
    if len(journals) > 1:
        told = "; ".join(
            f"{kind.upper()}{f' with {delimiter!r}' if delimiter not in {'', ','} else ''}: {', '.join(each[:_SHOWN])}"
            f"{' …' if len(each) > _SHOWN else ''}"
            for (kind, delimiter), each in sorted(journals.items())
        )
        first = next(iter(journals.values()))[0]
        raise SchemaMismatch(
            f"{table}: journals have different formats, and a table has one ({told}): name those of one format, "
            f"such as {called(first)}"
        )
    return next(iter(journals))[0]
