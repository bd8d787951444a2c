"""Arguments that commands share: which journals, as names or a selector; instants; and names for a shell that completes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self, final

import typer
from typing_extensions import override

from gazette_platform.errors import GazetteError, JournalNotFound, ShardNotFound, ValidationError
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import LabelSelector, LabelSet, parse_duration

if TYPE_CHECKING:
    from gazette_platform.lake import TableSpec

TableOrJson = Literal["table", "json"]
"""Formats of what people and programs read."""
Listing = Literal["table", "yaml", "json", "proto"]
"""Formats of listings of specs."""

UNIX_TIME_MAX: Final = (1 << 63) - 1
"""Greatest second that a request can name."""

_RELATIVE = re.compile(r"@?-(.+)", re.DOTALL)
_ABSOLUTE = re.compile(r"@?([0-9]{1,19})", re.ASCII)
_DAYS = re.compile(r"([0-9]{1,6})d(.*)", re.ASCII | re.DOTALL)
_DAY_S = 86_400
_EXPECTED = "expected Unix seconds, @-1h30m for that long ago, or 2026-01-31T12:00:00Z"


def parse_instant(text: str, now_s: float) -> int:
    """The Unix second that `text` means, rounded down.

    Args:
        text: Unix seconds, with or without ``@``; ``@-1h`` or ``@-2d12h`` before now; or a date or
            time of ISO 8601, which is UTC unless it has an offset.
        now_s: the current Unix time.

    Raises: ValidationError: it is none of these, or before 1970, or beyond 64 bits.

    >>> parse_instant("@-1h", 10_000)
    6400
    >>> parse_instant("1970-01-02", 0)
    86400
    """
    if found := _ABSOLUTE.fullmatch(text):
        instant = int(found[1])
    elif found := _RELATIVE.fullmatch(text):
        instant = int(now_s - _ago_s(found[1], text))
    else:
        instant = _iso(text)
    if not 0 <= instant <= UNIX_TIME_MAX:
        raise ValidationError(f"{text} is not a time since 1970 ({_EXPECTED})")
    return instant


def _ago_s(text: str, whole: str) -> float:
    days_s, rest = 0, text
    if found := _DAYS.fullmatch(text):
        days_s, rest = int(found[1]) * _DAY_S, found[2]
    try:
        nanoseconds = parse_duration(rest) if rest or not days_s else 0
    except ValidationError as err:
        raise ValidationError(f"{whole}: {err} ({_EXPECTED})") from err
    if nanoseconds < 0:
        raise ValidationError(f"{whole} has two signs ({_EXPECTED})")
    return days_s + nanoseconds / 1e9


def _iso(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
        # A time without offset is UTC, as all that commands print; not that of this machine.
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as err:
        raise ValidationError(f"{text!a} is not a time ({_EXPECTED})") from err


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration that an option gave. Raises: ValidationError: shows one that can be."""
    try:
        return parse_duration(text) / 1e9
    except ValidationError as err:
        raise ValidationError(f"{err} (write it as 500ms, 10s or 1h30m)", path=option) from err


def instant_option(text: str | int) -> int:
    """An instant, for the parser of an option, which parses defaults too. Raises: typer.BadParameter."""
    try:
        return parse_instant(str(text), SystemClock().unix_s())
    except ValidationError as err:
        raise typer.BadParameter(str(err)) from err


# Whoever pressed the key waits.
_ANSWERED_S = 2.0


def offers(names: Iterable[str], incomplete: str) -> list[str]:
    """What may follow: journals, and directories of several of them, as shells offer files.

    >>> offers(["a/one", "a/two/x", "a/two/y", "b/c/d"], "a/")
    ['a/one', 'a/two/']
    >>> offers(["b/c/d"], "")
    ['b/c/d']
    """
    below: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.startswith(incomplete):
            head, slash, _ = name[len(incomplete) :].partition("/")
            below.setdefault(incomplete + head + slash, []).append(name)
    # A directory of one journal is a detour.
    return [found[0] if len(found) == 1 else offer for offer, found in below.items()]


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of journals that begin so, by asking the broker of the command line; else none."""
    from gazette_platform.client import AsyncClient, ClientConfig  # noqa: PLC0415  completion only

    options = ctx.parent.params if ctx.parent is not None else {}
    keys = ("cert_file", "cert_key_file", "trusted_ca_file", "auth_keys", "auth_token", "zone")
    directory, slash, _ = incomplete.rpartition("/")
    labels = LabelSet().with_added("name", directory + slash, prefix=True)
    selector = LabelSelector(include=labels if slash else LabelSet())

    async def ask() -> list[str]:
        address = options["address"]
        if address == platforms.DEFAULT_BROKER:
            address = platforms.complete(os.environ, say=_hush).get("BROKER_ADDRESS") or address
        config = ClientConfig(
            address=address, **{key: options[key] for key in keys if options.get(key)}
        )
        async with asyncio.timeout(_ANSWERED_S), AsyncClient(config) as client:
            return [journal.name for journal in await client.list(selector)]

    try:
        return offers(asyncio.run(ask()), incomplete)
    except (GazetteError, OSError, TimeoutError, KeyError):
        return []  # an empty completion is not an error: the command itself reports the fault


def complete_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of raw tables that begin so, of the folder of specs of the command line; else none."""
    return [name for name in _specs(ctx) if name.startswith(incomplete)]


def complete_all_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of raw and typed tables that begin so; see `complete_tables`."""
    return sorted({*complete_tables(ctx, incomplete), *complete_typed_tables(ctx, incomplete)})


def complete_typed_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of typed tables that begin so; see `complete_tables`."""
    names = (spec.typed.name for spec in _specs(ctx).values() if spec.typed is not None)
    return [name for name in names if name.startswith(incomplete)]


def _hush(_note: str) -> None:
    """A shell that completes a line has no place for notes."""


def _specs(ctx: typer.Context) -> Mapping[str, TableSpec]:
    try:
        from gazette_platform.lake.settings import LakeSettings  # noqa: PLC0415  completion only
        from gazette_platform.lake.spec.folder import read_spec_folder  # noqa: PLC0415  as well

        environment = platforms.complete(os.environ, say=_hush)
        folder = ctx.params.get("tables") or LakeSettings.from_environment(environment).tables
        return read_spec_folder(Path(folder)).specs if folder else {}
    except (ImportError, GazetteError, OSError):
        return {}


_OPTION = typer.Option(
    "-l",
    "--selector",
    metavar="SELECTOR",
    help="Labels of the journals, as in 'name:prefix=a/, env in (dev, test), !private'.",
)

SelectorOrNames = Annotated[str | None, _OPTION]
"""Of commands that take names as well. An empty selector is one, and matches all."""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        autocompletion=complete_names,
        help="Journals by name, instead of a selector. A name that ends in / means all journals below it.",
    ),
]


ShardSelector = Annotated[
    str | None,
    typer.Option(
        "-l",
        "--selector",
        metavar="SELECTOR",
        help="Labels of the shards, as in 'id in (shard-000, shard-001), env=dev, !private'.",
    ),
]
"""An empty selector is one, and matches all."""

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", show_default=False, help="Shards by their IDs, in place of a selector."
    ),
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The journals that a command line asked for."""

    noun: ClassVar[str] = "journals"
    label: ClassVar[str] = "name"
    """That holds the name of each."""
    called: ClassVar[str] = "names"
    """The names, in errors."""
    neither: ClassVar[str] = (
        "name a journal, or give --selector (`gazctl journals list` shows all journals)"
    )
    """The error if neither names nor a selector are given."""
    not_found: ClassVar[type[JournalNotFound | ShardNotFound]] = JournalNotFound

    selector: LabelSelector
    text: str
    """As the user wrote it, for errors."""
    names: tuple[str, ...] = ()
    """Those that have to exist, each."""

    @classmethod
    def of(
        cls, names: Sequence[str] | None, selector: str | None, *, is_needed: bool = True
    ) -> Self:
        """What names and ``--selector`` say.

        Args:
            is_needed: whether saying neither is an error; else it means all.

        Raises: typer.BadParameter: both were given, or neither though it is needed.
            ValidationError: the selector cannot be parsed, or a name is none.
        """
        if names and selector is not None:
            raise typer.BadParameter(f"give {cls.called} or --selector, and not both")
        if not names:
            if selector is None and is_needed:
                raise typer.BadParameter(cls.neither)
            return cls(parse_selector(selector or ""), selector or "")
        labels = LabelSet()
        for name in sorted(set(names)):
            labels = labels.with_added(cls.label, name, prefix=cls._is_prefix(name))
        selected = LabelSelector(include=labels)
        selected.validate()
        exact = tuple(name for name in names if not cls._is_prefix(name))
        return cls(selected, ", ".join(names), exact)

    @classmethod
    def _is_prefix(cls, name: str) -> bool:
        """Whether a name means all below it. Raises: typer.BadParameter: it is empty."""
        if not name:
            raise typer.BadParameter("the name of a journal is empty")
        return name.endswith("/")

    def check(self, found: Iterable[str]) -> None:
        """Check what was found for it.

        Raises: JournalNotFound, ShardNotFound: one that was named does not exist. ValidationError: nothing was found.
        """
        known = set(found)
        missing = [name for name in self.names if name not in known]
        if missing:
            raise self.not_found(journal=", ".join(missing))
        if not known:
            raise ValidationError(
                f"no {self.noun} match the selector ({self.text}); {self._hint()}`gazctl {self.noun} list` shows the "
                f"{self.noun} there are"
            )

    def _hint(self) -> str:
        """What a person may have meant whose selector matches nothing: a name alone asks for a label of that name."""
        is_name = "/" in self.text and not set(self.text) & set("=, !()")
        return f"a journal is selected by its name as -l name={self.text}; " if is_name else ""


@final
class ShardSelection(Selection):
    """The shards that a command line asked for."""

    __slots__ = ()

    noun = "shards"
    label = "id"
    called = "IDs"
    neither = "Missing option '--selector', or IDs of shards"
    not_found: ClassVar[type[JournalNotFound | ShardNotFound]] = ShardNotFound

    @override
    @classmethod
    def _is_prefix(cls, name: str) -> bool:
        return False

    @override
    def _hint(self) -> str:
        return ""


def parse_selector(text: str) -> LabelSelector:
    """The selector that ``--selector`` gave.

    Raises: ValidationError: it cannot be parsed; shows one that can.
    """
    try:
        return LabelSelector.parse(text)
    except ValidationError as err:
        raise ValidationError(
            f"{err} (write it as 'name:prefix=a/, env in (dev, test), !private')",
            path="--selector",
        ) from err
