"""A table spec out of samples of journals, and a report of what was seen and decided.

Takes bytes and specs of journals, gives text: nothing is asked of a server here.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

import yaml

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.inference.profile import (
    InferredType,
    Profile,
    Profiler,
    infer_type,
    propose_typed,
    set_aside_of,
)
from gazette_platform.lake.spec.formats import (
    OVER_LINES,
    WINDOWS,
    ContentFormat,
    Kind,
    csv_rows,
    decoded,
    header_of,
    is_header,
    recognize,
    remedy,
    title,
)
from gazette_platform.lake.spec.layout import path_keys
from gazette_platform.lake.spec.rules import COLUMNS_MAX, is_column_name, is_key
from gazette_platform.lake.spec.table_spec import TableSpec, fields_below, parse_table_spec
from gazette_platform.lake.spec.typed import SCHEMA as TYPED_SCHEMA
from gazette_platform.lake.spec.types import parse_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.lake.inference.profile import Proposal
    from gazette_platform.protocol import JournalSpec

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")
_NAME_CHARACTERS_MAX = 100
_LEFT_OUT_SHOWN = 5
_LINES_RECOGNISED = 1000
# What a path postfix such as `date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}` always renders.
_POSTFIX_FORMAT = re.compile(r"(?:\A|/)(\w+)=\{\{[^{}]*Format\s+[\"`]([^\"`]+)[\"`]\s*\}\}(?=/|\Z)")
_FORMAT_TYPES = {"2006-01-02": "date"} | dict.fromkeys(("2006", "01", "02", "15", "04"), "int")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InferredColumn:
    """A column of an inferred spec, and what it was inferred of."""

    name: str
    key: str
    type: str
    seen: int
    """Records that have a value."""
    nulls: int
    missing: int
    """Records without the key."""
    kinds: Mapping[str, int]
    remarks: tuple[str, ...] = ()


@final
@dataclass(slots=True, kw_only=True)
class Inference:
    """A spec that `parse_table_spec` takes, and what to know of it."""

    text: str
    """YAML."""
    spec: TableSpec
    columns: list[InferredColumn]
    records: int
    unread: list[bytes] = field(default_factory=list)
    """Lines that are not records."""
    remarks: list[str] = field(default_factory=list)
    """On the data."""

    def named(self, name: str) -> str:
        """Return the YAML of the same spec under another name."""
        return f"name: {_scalar(name)}\n{self.text.partition(chr(10))[2]}"


@final
@dataclass(frozen=True, slots=True)
class _Target:
    """What the table is to be."""

    name: str
    selector: str
    format: str
    called: str
    """In errors."""


@final
@dataclass(slots=True)
class _Partitions:
    """Partition columns of the journals' paths."""

    columns: dict[str, str] = field(default_factory=dict)
    """Column by key of the path."""
    types: dict[str, str] = field(default_factory=dict)


def infer_spec(
    name: str,
    selector: str,
    lines: Sequence[bytes],
    journals: Sequence[JournalSpec] = (),
    *,
    data_format: Literal["json", "csv", ""] = "",
    is_typed: bool = False,
    called: str = "",
) -> Inference:
    """Infer a spec.

    Args:
        name: schema.table.
        selector: of the journals, as text.
        lines: whole lines of their content.
        journals: their specs, from which partition columns follow.
        data_format: of the content; empty: found out.
        is_typed: whether the spec is to have a section `typed:`.
        called: what errors call the table; empty: its name.

    Raises: SchemaMismatch: no line is of the format, or there is none. LakeError: the journals
        have no layout in common. ValidationError: the name or the selector is none.
    """
    called = called or name
    if not any(line.strip() for line in lines):
        raise SchemaMismatch(
            f"{called}: there is nothing to infer columns from; append some records first"
        )
    found_format = format_of(lines)
    # What looks like JSON may be rows of CSV, for who says so.
    may_be = {Kind.JSON_ARRAY, Kind.JSON_VALUES} if data_format else ()
    if (what := refusal(found_format)) and found_format.kind not in may_be:
        raise SchemaMismatch(f"{called}: the content of the first journal {what}")
    partitions = _partitions(journals)
    if (data_format or ("json" if found_format.kind is Kind.JSON_LINES else "csv")) == "csv":
        target = _Target(name, selector, "csv", called)
        of_csv = _infer_csv(target, lines, found_format, partitions)
        if is_typed:
            of_csv.remarks.append(
                "typed tables are made of JSON records, so there is no section `typed:`"
            )
        return of_csv
    records, others = decoded(lines)
    if not records:
        raise SchemaMismatch(
            f"{called}: no line is a JSON object (the first one begins {others[0][:60]!r}); give "
            "`--data csv`, or select other journals"
        )
    profiler = Profiler()
    for record in records:
        profiler.add(record)
    found = _infer_json(_Target(name, selector, "json", called), profiler, partitions)
    marked = sum(line.startswith(codecs.BOM_UTF8) for line in lines)
    if marked:
        found.remarks.insert(
            0,
            f"{marked} lines begin with a byte order mark, as files of Windows do: Spark passes over it, "
            "Trino only at the begin of a fragment, and else reads a row of NULLs; the check `fits_spec` "
            "counts it: leave it out when you append",
        )
    found.remarks += _of_encoding(found_format)
    if is_typed:
        _add_typed(found, profiler.records, lines)
    found.unread = others
    if others:
        found.remarks.insert(
            0, f"{len(others)} lines are not JSON objects; they are rows of NULL in both engines"
        )
    return found


def format_of(lines: Sequence[bytes]) -> ContentFormat:
    """Return the format of lines of one journal, the first ones at its beginning."""
    return recognize(b"\n".join(lines[:_LINES_RECOGNISED]))


def refusal(found: ContentFormat) -> str:
    r"""Return what content is that cannot be a table, and what to do about it; empty if it can be one.

    >>> refusal(recognize(b"\x1f\x8b\x08..."))
    'is compressed by gzip: append it decompressed (`gazctl journals append --decompress`)'
    """
    # Only characters beyond ASCII are lost; the rest is worth showing.
    if found.encoding == WINDOWS and found.kind in {Kind.JSON_LINES, Kind.CSV}:
        return ""
    what = remedy(found)
    return f"is {title(found)}: {what}" if what else ""


def _add_typed(found: Inference, records: Profile, lines: Sequence[bytes]) -> None:
    """Add to the spec what the records show about a typed table."""
    proposal = propose_typed(found.spec, records)
    text = found.text + _section(found.spec, proposal)
    found.spec = parse_table_spec(text)
    found.text = text
    aside = set_aside_of(found.spec, lines)
    if aside:
        found.remarks.append(aside)
    if proposal.uuid == "none":
        found.remarks.append(f"`uuid: none`: {proposal.why_uuid}")


def _section(spec: TableSpec, proposal: Proposal) -> str:
    """The text of a section `typed:`."""
    lines = ["typed:"]
    if spec.schema == TYPED_SCHEMA or len(spec.table) > _NAME_CHARACTERS_MAX:
        lines.append(f"  name: {TYPED_SCHEMA}.{spec.table[: _NAME_CHARACTERS_MAX - 6]}_typed")
    lines += [f"  # {proposal.why_uuid}", f"  uuid: {_scalar(proposal.uuid)}"]
    if proposal.columns:
        lines.append("  columns:")
    for column in proposal.columns:
        given: dict[str, str | bool] = {
            "name": column.name,
            "from": column.key,
            "type": column.type,
            "truncate": column.truncate,
        }
        entry = {key: value for key, value in given.items() if value}
        lines += [f"    # {column.name}: {column.why}", f"    - {_flow(entry)}"]
    if proposal.time:
        lines.append(f"  # If it is large, and asked by time: partitions: [day({proposal.time})]")
    return "\n".join(lines) + "\n"


def _infer_json(target: _Target, profiler: Profiler, partitions: _Partitions) -> Inference:
    records = profiler.records.kinds["object"]
    remarks: list[str] = []
    if profiler.is_cut:
        remarks.append("records have too many different keys to look at all of them")
    fields = _usable_fields(profiler.records.fields, remarks)
    types = {key: infer_type(profile) for key, profile in fields.items()}
    names = _names(types)
    taken = {text.lower() for key, column in names.items() for text in (key, column)}
    columns = [
        InferredColumn(
            name=names[key],
            key=key,
            type=types[key].text,
            seen=profile.seen,
            nulls=profile.nulls,
            missing=records - profile.seen - profile.nulls,
            kinds=dict(profile.kinds),
            remarks=tuple(
                f"{place}: {text}" if place else text for place, text in types[key].remarks
            ),
        )
        for key, profile in fields.items()
    ]
    if not columns:
        raise SchemaMismatch(f"{target.called}: no record has a key that can be a column")
    text = _yaml(target, columns, _apart(partitions, taken, remarks))
    return _inference(text, columns, records, remarks)


def _usable_fields(fields: Mapping[str, Profile], remarks: list[str]) -> dict[str, Profile]:
    """Fields that can be columns: of keys that differ in case only the one with most values."""
    usable: dict[str, Profile] = {}
    kept: dict[str, str] = {}
    odd: list[str] = []
    # Most values first, then as they appeared.
    for key in sorted(fields, key=lambda each: -fields[each].seen):
        if not is_key(key):
            odd.append(key)
        elif key.lower() in kept:
            remarks.append(
                f"keys {key!r} and {kept[key.lower()]!r} differ in case only, which Trino ignores: "
                "the first is left out"
            )
        elif len(usable) == COLUMNS_MAX:
            remarks.append(f"there are more than {COLUMNS_MAX} keys; the rarer are left out")
            break
        else:
            kept[key.lower()] = key
            usable[key] = fields[key]
    if odd:
        shown = ", ".join(repr(key[:40]) for key in odd[:_LEFT_OUT_SHOWN])
        remarks.append(f"keys that not all readers can take are left out: {shown}")
    return {key: profile for key, profile in fields.items() if key in usable}


def _names(types: Mapping[str, InferredType]) -> dict[str, str]:
    """A column name for each key: the key itself where it is one.

    A column with another name than its key shares that name with no field of a struct, to which
    Trino would apply its key as well.
    """
    names = {key: key for key in types if is_column_name(key)}
    taken = {name.lower() for name in names}
    taken |= {key.lower() for key in types}
    taken |= {each for found in types.values() for each in fields_below(parse_type(found.text))}
    for key in types:
        if key not in names:
            names[key] = _free(_as_name(key), taken)
            taken.add(names[key])
    return names


def _as_name(text: str) -> str:
    """A column name like `text`.

    >>> _as_name("Straße no."), _as_name("prénom"), _as_name("2nd"), _as_name("…")
    ('strasse_no', 'prenom', '_2nd', 'column')
    """
    # Folding makes ss of ß, which has no decomposition. Accents are characters of their own then, and would be `_`.
    letters = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(each for each in letters if not unicodedata.combining(each))
    name = _NOT_IN_NAMES.sub("_", plain).strip("_")[:_NAME_CHARACTERS_MAX]
    if not name:
        return "column"
    return f"_{name}" if name[0].isdigit() else name


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _partitions(journals: Sequence[JournalSpec]) -> _Partitions:
    """Partition columns of all `journals`, and types of those that a postfix template fixes."""
    found = _Partitions()
    if not journals:
        return found
    formats = [
        dict(_POSTFIX_FORMAT.findall(journal.fragment.path_postfix_template))
        for journal in journals
    ]
    for key in path_keys(journals):
        found.columns[key] = key.lower()
        types = {_FORMAT_TYPES.get(each.get(key, ""), "string") for each in formats}
        found.types[key] = types.pop() if len(types) == 1 else "string"
    return found


def _apart(partitions: _Partitions, taken: set[str], remarks: list[str]) -> _Partitions:
    """Partition columns renamed so that they differ from the data's."""
    for key, column in partitions.columns.items():
        if column in taken:
            partitions.columns[key] = _free(f"fragment_{column}", taken)
            remarks.append(
                f"{key!r} is a key of records and of the path: the column of the path is called "
                f"{partitions.columns[key]}"
            )
        taken.add(partitions.columns[key])
    return partitions


def _of_encoding(found: ContentFormat) -> list[str]:
    """Return a remark on text that is not in UTF-8."""
    if found.encoding != WINDOWS:
        return []
    return [
        f"it is {title(found)}, and engines read UTF-8: other characters than those of ASCII are lost; {remedy(found)}"
    ]


def _infer_csv(
    target: _Target, lines: Sequence[bytes], found: ContentFormat, partitions: _Partitions
) -> Inference:
    texts = [
        line.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\r")
        for line in lines
        if line.strip()
    ]
    delimiter = found.delimiter or ","
    every = list(csv_rows(texts, delimiter))
    rows = [row for row in every if row]
    if not rows:
        raise SchemaMismatch(
            f"{target.called}: lines are neither JSON objects nor CSV (the first one begins "
            f"{texts[0][:60]!r}); raw tables are of `json` or `csv`"
        )
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width > COLUMNS_MAX:
        raise SchemaMismatch(
            f"{target.called}: lines have {width} fields, and a table has at most {COLUMNS_MAX} columns (the first "
            f"one begins {texts[0][:60]!r}): are they CSV at all?"
        )
    if width == 1 and not any(delimiter in text for text in texts):
        raise SchemaMismatch(
            f"{target.called}: lines are neither JSON objects nor have they several fields (the first one "
            f"begins {texts[0][:60]!r}); raw tables are of `json` or `csv`"
        )
    remarks = ["columns of CSV go by position, and are strings: cast them in SQL"]
    if len(rows) < len(every):
        remarks.append(
            f"{len(every) - len(rows)} lines have a carriage return amid, which ends a line for the "
            "engines"
        )
    if len(every) < len(texts):
        remarks.append(
            f"some quoted fields have line breaks, and engines read each line as a row; {OVER_LINES}"
        )
    if count < len(rows):
        remarks.append(f"{len(rows) - count} of {len(rows)} lines do not have {width} fields")
    header = header_of(rows, width)
    remarks += _of_encoding(found)
    if header:
        remarks.append(
            "rows that name the columns are header rows, wherever they stand (`header: true`)"
        )
        rows = [row for row in rows if not is_header(row, header)]
    names = _column_names(header, width)
    taken = set(map(str.lower, names))
    columns = [
        InferredColumn(
            name=column,
            key=header[index] if header else column,
            type="string",
            seen=sum(1 for row in rows if index < len(row) and row[index] != ""),
            nulls=0,
            missing=sum(1 for row in rows if index >= len(row) or row[index] == ""),
            kinds={"text": len(rows)},
        )
        for index, column in enumerate(names)
    ]
    text = _yaml(target, columns, _apart(partitions, taken, remarks), _of_csv(delimiter, header))
    return _inference(text, columns, len(rows), remarks)


def _of_csv(delimiter: str, header: Sequence[str]) -> dict[str, str | bool]:
    """Return what a spec says of CSV that is not as most is."""
    given: dict[str, str | bool] = {} if delimiter == "," else {"delimiter": delimiter}
    return {**given, "header": True} if header else given


def _column_names(header: Sequence[str], width: int) -> list[str]:
    """Return names of columns, after a header if there is one."""
    taken: set[str] = set()
    names: list[str] = []
    for index in range(width):
        text = header[index] if header else f"c{index + 1}"
        name = _free(_as_name(text), taken)
        taken.add(name)
        names.append(name)
    return names


def _inference(
    text: str, columns: list[InferredColumn], records: int, remarks: list[str]
) -> Inference:
    spec = parse_table_spec(text)
    return Inference(text=text, spec=spec, columns=columns, records=records, remarks=remarks)


def _yaml(
    target: _Target,
    columns: Iterable[InferredColumn],
    partitions: _Partitions,
    more: Mapping[str, str | bool] = {},
) -> str:
    """The spec's text, a column a line, with remarks as comments above."""
    head: dict[str, str | bool] = {
        "name": target.name,
        "selector": target.selector,
        "format": target.format,
        **more,
    }
    lines = [f"{key}: {_scalar(value)}" for key, value in head.items()]
    lines.append("columns:")
    for column in columns:
        lines += [f"  # {column.name}{_at(remark)}" for remark in column.remarks]
        entry = {"name": column.name}
        if column.key != column.name:
            entry["from"] = column.key
        lines.append(f"  - {_flow({**entry, 'type': column.type})}")
    described = [
        {
            "name": key,
            **({"as": column} if column != key.lower() else {}),
            **({"type": partitions.types[key]} if partitions.types[key] != "string" else {}),
        }
        for key, column in partitions.columns.items()
    ]
    entries = [entry for entry in described if len(entry) > 1]
    if entries:
        lines += ["partitions:", *(f"  - {_flow(entry)}" for entry in entries)]
    return "\n".join(lines) + "\n"


def _at(remark: str) -> str:
    place, colon, text = remark.partition(": ")
    return f"{place}: {text}" if colon and place[:1] in ".[{" else f": {remark}"


def _flow(entry: Mapping[str, object]) -> str:
    text = yaml.safe_dump(
        dict(entry), default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 30
    )
    return str(text).strip()


def _scalar(value: object) -> str:
    return _flow({"k": value}).removeprefix("{k: ").removesuffix("}")
