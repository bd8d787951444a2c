"""Where fragments lie: from journal name and path postfix to Hive partition and location.

A *layout* is the shape that all fragments of a table share: a sequence of segments, each
a literal or a key. ``flights/origin=JFK/part=000`` with postfix ``date=2026-01-02`` has the layout
``flights/{origin}/{part}/{date}``. Keys become partition columns in that order, and the directory of
a fragment is the location of its Hive partition.

The layout that journals' fragments will have, derived from their specs before any is persisted.

A person may *set aside* a fragment's file. It then lies in the folder ``_aside`` of its journal, below that in the
folders in which it lay before. Brokers list it there and serve it to readers, for whom nothing changes. Engines skip
folders whose names begin with ``_``, and no Hive partition is in one. So a broker's listing shows what is aside; accounts
note it, too, so that a listing which is older than the move changes nothing. The reason is in a *note*: a file beside it,
whose name begins with a dot, which brokers skip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final, final
from urllib.parse import unquote

from typing_extensions import override

from gazette_platform.errors import LakeError, PartitionConflict, ValidationError
from gazette_platform.lake.spec.table_spec import Partition, TableSpec, check_clash
from gazette_platform.protocol import Fragment, LabelSet, parse_store_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from gazette_platform.protocol import JournalSpec

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
# As metastores' tables have room for.
_VALUE_CHARACTERS_MAX = 256
# Spark reads NULL; Trino, and SQL in this process, the text.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Segments of a table's directories: a literal as it is, a key as ``{key}``."""

    segments: tuple[str, ...]

    @classmethod
    def of_directory(cls, directory: str) -> Layout:
        """The layout of one directory ``journal[/postfix]``.

        Raises: LakeError: a key occurs twice, or has no value, or Hive's for NULL.
        """
        segments: list[str] = []
        keys: set[str] = set()
        for segment in directory.split("/"):
            key, equals, value = segment.partition("=")
            if not equals or not _KEY.match(key):
                segments.append(segment)
                continue
            if key.lower() in keys:
                raise LakeError(
                    f"{directory}: key {key!r} occurs twice; rename one in the journal name or in "
                    "the path postfix template"
                )
            if not value:
                raise LakeError(f"{directory}: key {key!r} has no value, which Hive cannot hold")
            if value == _NULL:
                raise LakeError(
                    f"{directory}: key {key!r} has the value that stands for NULL in Hive, which engines read "
                    "each in its own way: give the journal or the path postfix another one"
                )
            keys.add(key.lower())
            segments.append(f"{{{key}}}")
        return cls(tuple(segments))

    @classmethod
    def of_journals(cls, journals: Iterable[str]) -> Layout:
        """The layout that all `journals` share, without postfix.

        Raises: LakeError: they differ in a segment that is not ``key=value``; says how to name it.
        """
        first, layout = "", None
        for journal in journals:
            if layout is None:
                first, layout = journal, cls.of_directory(journal)
                continue
            _require_same(layout, cls.of_directory(journal), first, journal)
        if layout is None:
            raise LakeError("a layout needs at least one journal")
        return layout

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout whose `str` is `text`."""
        return cls(tuple(text.split("/")))

    @override
    def __str__(self) -> str:
        return "/".join(self.segments)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys, in order, as written in the path."""
        return tuple(s[1:-1] for s in self.segments if s.startswith("{"))

    @property
    def base(self) -> str:
        """The literal segments before the first key, joined: the folder of the whole table."""
        literals: list[str] = []
        for segment in self.segments:
            if segment.startswith("{"):
                break
            literals.append(segment)
        return "/".join(literals)

    def match(self, directory: str) -> tuple[str, ...]:
        """Values of the keys in `directory`, in order, as written.

        Raises: LakeError: the directory has another layout; says where.
        """
        _require_same(self, Layout.of_directory(directory), str(self), directory)
        return tuple(
            actual.partition("=")[2]
            for segment, actual in zip(self.segments, directory.split("/"), strict=True)
            if segment.startswith("{")
        )


def _require_same(expected: Layout, actual: Layout, first: str, second: str) -> None:
    if expected == actual:
        return
    for index, (a, b) in enumerate(zip(expected.segments, actual.segments, strict=False)):
        if a == b:
            continue
        if a.startswith("{") or b.startswith("{"):
            raise LakeError(
                f"{first} and {second} differ in segment {index + 1} ({a} and {b}): journals of one "
                "table need the same keys in the same order (select fewer, or make two tables)"
            )
        raise LakeError(
            f"{first} and {second} differ in segment {index + 1} ({a!r} and {b!r}), which is not "
            f"key=value: name it, for example `{_suggest(first, index)}`, or make a table of each"
        )
    raise LakeError(
        f"{first} and {second} have {len(expected.segments)} and {len(actual.segments)} segments: "
        "journals of one table need the same keys in the same order (has the path postfix template "
        "changed? then make a new table)"
    )


def _suggest(path: str, index: int) -> str:
    segments = path.split("/")
    segments[index] = f"kind={segments[index]}"
    return "/".join(segments)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """A partition column: the path's `key`, the table's `column`, its Hive `type`."""

    key: str
    column: str
    type: str
    comment: str = ""

    def value(self, text: str) -> str:
        """The metastore's value for the `text` found in a path.

        >>> PartitionColumn(key="hour", column="hour", type="int").value("05")
        '5'

        Raises: LakeError: the text is not of the column's type.
        """
        if len(text) > _VALUE_CHARACTERS_MAX:
            raise LakeError(
                f"{self.key}={text[:60]}… has more than {_VALUE_CHARACTERS_MAX} characters, which no "
                "metastore takes: give the journal a shorter name"
            )
        try:
            match self.type:
                case "date":
                    return date.fromisoformat(text).isoformat()
                case "tinyint" | "smallint" | "int" | "bigint":
                    return _integer(text, _BITS[self.type])
                case _:
                    return text
        except ValueError as err:
            raise LakeError(
                f"{self.key}={text} is not a {self.type}: correct the type of {self.key!r} under "
                "`partitions` of the table spec"
            ) from err


def _integer(text: str, bits: int) -> str:
    """The value as engines write it, who fail at the whole table for one that is too large.

    Raises: ValueError: it is not an integer of so many bits.
    """
    value, half = int(text), 1 << (bits - 1)
    if not -half <= value < half:
        raise ValueError(text)
    return str(value)


def path_keys(journals: Sequence[JournalSpec]) -> list[str]:
    """Return the keys of partition columns that the fragments of `journals` lie under, in order.

    Raises: LakeError: their names have different shapes, or there are none.
    """
    keys = list(Layout.of_journals(journal.name for journal in journals).keys)
    # Every key of a template is a column, also one that is not made by `Format`.
    for template in sorted({journal.fragment.path_postfix_template for journal in journals}):
        keys += re.findall(r"(?:\A|/)(\w+)=", template)
    return list(dict.fromkeys(keys))


def partition_columns(spec: TableSpec, layout: Layout) -> tuple[PartitionColumn, ...]:
    """Partition columns of the keys of `layout`, as the spec names and types them.

    Raises: ValidationError: the spec describes a key that the paths lack, or a name clashes with a
        data column.
    """
    described = {p.name: p for p in spec.partitions}
    missing = sorted(described.keys() - set(layout.keys))
    if missing:
        raise ValidationError(
            f"{spec.name}: partition key {missing[0]!r} is in no journal name or path postfix "
            f"(found: {', '.join(layout.keys) or 'none'}); correct `partitions`"
        )
    data = spec.data_names
    columns: list[PartitionColumn] = []
    for key in layout.keys:
        partition = described.get(key, Partition(name=key))
        check_clash(key, partition.column, data, path=spec.name)
        columns.append(
            PartitionColumn(
                key=key, column=partition.column, type=partition.type, comment=partition.comment
            )
        )
    names = [c.column for c in columns]
    for name in names:
        if names.count(name) > 1:
            raise ValidationError(f"{spec.name}: two partition columns are called {name!r}")
    return tuple(columns)


def journal_values(
    layout: Layout, columns: Sequence[PartitionColumn], journal: str
) -> list[str] | None:
    """Values of the partition columns that the journal's own name gives, in order.

    Args:
        layout: of the table.
        columns: of the table, in the order of the layout's keys.
        journal: its name.

    Returns: values of the first columns, perhaps of none; None: the journal is not of this layout.
    """
    segments = journal.split("/")
    try:
        texts = Layout(layout.segments[: len(segments)]).match(journal)
        return [c.value(t) for c, t in zip(columns, texts, strict=False)]
    except LakeError:
        return None


def partition_key(columns: Iterable[PartitionColumn], values: Iterable[str]) -> str:
    """The key of a Hive partition: ``column=value/…``, ``all`` if there are none.

    Distinct partitions have distinct keys. Dagster, whose keys are parts of them, gives ``|``, ``,`` and ``...``
    a meaning of their own in ranges and multi-partitions, so they (and ``%``) are percent-encoded.

    >>> column = PartitionColumn(key="host", column="host", type="string")
    >>> partition_key([column], ["a...b%"])
    'host=a%2E%2E%2Eb%25'
    """
    parts = [f"{c.column}={_escape(v)}" for c, v in zip(columns, values, strict=True)]
    return "/".join(parts) or "all"


def partition_values(key: str) -> tuple[str, ...]:
    """The values in the key of a Hive partition, as `partition_key` was given them.

    >>> partition_values("host=a%2E%2E%2Eb%25/hour=05"), partition_values("all")
    (('a...b%', '05'), ())
    """
    return () if key == "all" else tuple(unquote(p.partition("=")[2]) for p in key.split("/"))


def _escape(value: str) -> str:
    for plain, escaped in (
        ("%", "%25"), ("/", "%2F"), ("|", "%7C"), (",", "%2C"), ("...", "%2E%2E%2E"),
    ):  # fmt: skip
        value = value.replace(plain, escaped)
    return value


@final
class StoreRoots:
    """Where fragment stores lie for the engines: setting ``lake.store_roots``.

    Brokers know ``file:///`` under a root of their own, and engines want ``file:///abs/path/``; any
    other store is by default its own location.

    Args:
        roots: fragment-store URL → table location; both end in ``/``. The longest match wins.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        for store, location in roots.items():
            for url in (store, location):
                if "://" not in url or not url.endswith("/"):
                    raise ValidationError(
                        f"{url!r} is not a URL that ends in `/`", path="lake.store_roots"
                    )
        self._roots = sorted(roots.items(), key=lambda item: -len(item[0]))

    def location(self, store: str, directory: str) -> str:
        """The location, without a trailing slash, of ``directory`` in the fragment store `store`.

        ``find`` and ``replace`` arguments of the store's URL apply, as brokers apply them.

        Raises: LakeError: a file store that no root maps.
        """
        url = parse_store_url(store)
        base = f"{url.scheme}://{url.host}{url.path}"
        arguments = {name.lower(): value for name, value in url.args.items()}
        find = arguments.get("find", "")
        if find and directory:
            # Brokers rewrite whole paths, so a text to find may end with the directory's slash.
            directory = f"{directory}/".replace(find, arguments.get("replace", ""), 1)
        for known, location in self._roots:
            if base.startswith(known):
                return f"{location}{base[len(known) :]}{directory}".rstrip("/")
        if url.scheme == "file":
            raise LakeError(
                f"fragment store {store} is a folder that only brokers know: map it with "
                'GAZETTE_LAKE_STORE_ROOTS, e.g. {"file:///": "file:///srv/fragments/"}'
            )
        return f"{base}{directory}".rstrip("/")


def is_same_location(first: str, second: str) -> bool:
    """Whether two locations are one: metastores rewrite ``file:///x`` as ``file:/x``.

    >>> is_same_location("file:/a", "file:///a/"), is_same_location("file:/a", "s3://a")
    (True, False)
    """
    return plain_location(first) == plain_location(second)


def plain_location(location: str) -> str:
    """A location as it compares with others."""
    return re.sub(r"\Afile:/+", "file:/", location).rstrip("/")


def require_location(table: str, key: str, registered: str, found: str) -> None:
    """Refuse fragments of a registered Hive partition that lie elsewhere.

    Raises: PartitionConflict: both places, and what may have led to it.
    """
    if not is_same_location(registered, found):
        raise PartitionConflict(
            f"{table}: Hive partition {key} is at {registered}, but fragments lie in {found} (has "
            "the store of the journal changed? then list the old store behind the new one in its spec, "
            "and they are copied there; or do two directories have one value? then rename a key)"
        )


def expected_directory(journal: JournalSpec, at: datetime) -> str:
    """Where a fragment goes that is first appended to at `at`, below the prefix of its store.

    Raises: LakeError: the postfix template needs what only brokers know, such as registers.
    """
    text = journal.fragment.path_postfix_template
    if not text:
        return journal.name
    fragment = Fragment(journal.name, 0, 0, codec=journal.fragment.codec)
    from gazette_platform.protocol.path_postfix import PathPostfixTemplate  # noqa: PLC0415  slow to import

    try:
        postfix = PathPostfixTemplate(text).evaluate(fragment, at, LabelSet(), journal)
    except ValidationError as err:
        raise LakeError(
            f"{journal.name}: its path postfix is not known before a fragment is persisted ({err})"
        ) from err
    return f"{journal.name}/{postfix}" if postfix else journal.name


def expected_layout(journals: Sequence[JournalSpec], at: datetime) -> Layout:
    """The layout that fragments of all `journals` will share.

    Raises: LakeError: they will not share one; says in what they differ. Or the layout is not known.
    """
    Layout.of_journals(journal.name for journal in journals)
    return Layout.of_journals(expected_directory(journal, at) for journal in journals)


def expected_location(journals: Sequence[JournalSpec], layout: Layout, roots: StoreRoots) -> str:
    """The folder that will hold the table's Hive partitions, as engines know it.

    Raises: LakeError: no store, or one that no root maps.
    """
    stores = [store for journal in journals for store in journal.fragment.stores]
    if not stores:
        raise LakeError(
            f"{journals[0].name} has no fragment store, so no engine can read it: give it one "
            "under `fragment.stores` of the journal's spec"
        )
    return roots.location(stores[0], layout.base)


ASIDE: Final = "_aside"
"""Name of the folder, in that of a journal, of files that were set aside."""


def directory_of(fragment: Fragment) -> str:
    """The fragment's directory below the prefix of its store."""
    return fragment.content_path.rpartition("/")[0]


def is_aside(fragment: Fragment) -> bool:
    """Whether brokers list the fragment as one that was set aside."""
    postfix = fragment.path_postfix
    return postfix == ASIDE or postfix.startswith(f"{ASIDE}/")


def aside_directory(journal: str, directory: str) -> str:
    """Where files of a directory of a journal lie while they are aside.

    >>> aside_directory("a/b", "a/b/date=2026-01-02"), aside_directory("a/b", "a/b")
    ('a/b/_aside/date=2026-01-02', 'a/b/_aside')
    """
    return f"{journal}/{ASIDE}{directory[len(journal) :]}"


def home_directory(fragment: Fragment) -> str:
    """The directory of a fragment below the prefix of its store; of one that is set aside, its former one."""
    directory = directory_of(fragment)
    if not is_aside(fragment):
        return directory
    journal = fragment.journal
    return journal + directory[len(journal) + 1 + len(ASIDE) :]


def note_path(path: str) -> str:
    """Where the note about a file is.

    >>> note_path("a/b/_aside/0-9.gz")
    'a/b/_aside/.0-9.gz.json'
    """
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.json"
