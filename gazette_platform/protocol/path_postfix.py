"""Templates of path postfixes: where below its journal a fragment is stored.

A journal's spec may say ``date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}``, and its
fragments land in Hive partitions. What templates see: ``.Spool`` (the fragment's fields,
``FirstAppendTime`` in UTC, ``Registers``) and ``.JournalSpec``, with Go's promotion of embedded
fields. Times are formatted as Go's ``time.Time`` formats them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, Protocol, cast

from gazette_platform.gotemplate import GoObject, Method, NamedInt, Template
from gazette_platform.ops.text import SECOND_NS, format_duration
from gazette_platform.protocol.enums import CompressionCodec, JournalFlag, SuspendLevel
from gazette_platform.protocol.fragments import Fragment
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import IntEnum

    from gazette_platform.gotemplate import Value


ZERO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

# The reference time's pieces. Longer ones first where one begins another; `Jan` and `Mon` are words
# only if no small letter follows, and a fraction only if no digit does.
_LAYOUT: Final = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST"
    r"|002|01|02|03|04|05|06"
    r"|2006|15|PM|pm"
    r"|__2|_2(?!006)"
    r"|[-Z]07:00:00|[-Z]070000|[-Z]07:00|[-Z]0700|[-Z]07"
    r"|[.,](?:0+|9+)(?![0-9])"
    r"|1|2|3|4|5"
)


def _zone(piece: str, _: datetime) -> str:
    if piece[0] == "Z":
        return "Z"
    return "+" + piece[1:].replace("7", "0")


def _fraction(piece: str, at: datetime) -> str:
    digits = f"{at.microsecond * 1000:09d}"[: len(piece) - 1].ljust(len(piece) - 1, "0")
    if piece[1] == "9":
        digits = digits.rstrip("0")
        return piece[0] + digits if digits else ""
    return piece[0] + digits


def _weekday(at: datetime) -> int:
    """Day of the week, Sunday is 0."""
    return at.isoweekday() % 7


_PIECES: Final[dict[str, Callable[[datetime], str]]] = {
    "2006": lambda at: f"{at.year:04d}",
    "06": lambda at: f"{at.year % 100:02d}",
    "January": lambda at: _MONTHS[at.month - 1],
    "Jan": lambda at: _MONTHS[at.month - 1][:3],
    "01": lambda at: f"{at.month:02d}",
    "1": lambda at: f"{at.month}",
    "Monday": lambda at: _DAYS[_weekday(at)],
    "Mon": lambda at: _DAYS[_weekday(at)][:3],
    "02": lambda at: f"{at.day:02d}",
    "_2": lambda at: f"{at.day:2d}",
    "2": lambda at: f"{at.day}",
    "002": lambda at: f"{at.timetuple().tm_yday:03d}",
    "__2": lambda at: f"{at.timetuple().tm_yday:3d}",
    "15": lambda at: f"{at.hour:02d}",
    "03": lambda at: f"{at.hour % 12 or 12:02d}",
    "3": lambda at: f"{at.hour % 12 or 12}",
    "04": lambda at: f"{at.minute:02d}",
    "4": lambda at: f"{at.minute}",
    "05": lambda at: f"{at.second:02d}",
    "5": lambda at: f"{at.second}",
    "PM": lambda at: "PM" if at.hour >= 12 else "AM",
    "pm": lambda at: "pm" if at.hour >= 12 else "am",
    "MST": lambda _: "UTC",
}


def format_time(at: datetime, layout: str) -> str:
    """Format an instant in UTC by a layout that shows Go's reference time.

    >>> format_time(datetime(2024, 1, 2, 5, 6, tzinfo=UTC), "date=2006-01-02/hour=15")
    'date=2024-01-02/hour=05'
    """
    at = at.astimezone(UTC)

    def piece(match: re.Match[str]) -> str:
        text = match[0]
        known = _PIECES.get(text)
        if known is not None:
            return known(at)
        return _fraction(text, at) if text[0] in ".," else _zone(text, at)

    return _LAYOUT.sub(piece, layout)


def _unix_ns(at: datetime) -> int:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_NS + since.microseconds * 1000


def time_object(at: datetime) -> GoObject:
    """What templates see of an instant."""
    at = at.astimezone(UTC)
    unix_ns = _unix_ns(at)
    weekday = _weekday(at)
    computed: dict[str, Value | Method] = {
        "Format": Method(lambda layout: format_time(at, layout), (str,)),
        "Unix": Method(lambda: unix_ns // SECOND_NS),
        "UnixMilli": Method(lambda: unix_ns // 1_000_000),
        "UnixMicro": Method(lambda: unix_ns // 1_000),
        "UnixNano": Method(lambda: unix_ns),
        "Year": Method(lambda: at.year),
        "Month": Method(lambda: NamedInt(at.month, _MONTHS[at.month - 1], "time.Month")),
        "Day": Method(lambda: at.day),
        "YearDay": Method(lambda: at.timetuple().tm_yday),
        "Weekday": Method(lambda: NamedInt(weekday, _DAYS[weekday], "time.Weekday")),
        "Hour": Method(lambda: at.hour),
        "Minute": Method(lambda: at.minute),
        "Second": Method(lambda: at.second),
        "Nanosecond": Method(lambda: at.microsecond * 1000),
        "IsZero": Method(lambda: at == ZERO_TIME),
        "UTC": Method(lambda: made),
        "String": Method(lambda: _text(at)),
    }
    made = GoObject("time.Time", computed, text=_text(at))
    return made


def _text(at: datetime) -> str:
    return format_time(at, "2006-01-02 15:04:05.999999999 -0700 MST")


class _Suspend(Protocol):
    @property
    def level(self) -> SuspendLevel: ...
    @property
    def offset(self) -> int: ...


class _FragmentSettings(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def codec(self) -> CompressionCodec: ...
    @property
    def refresh_interval_ns(self) -> int: ...
    @property
    def retention_ns(self) -> int: ...
    @property
    def flush_interval_ns(self) -> int: ...
    @property
    def path_postfix_template(self) -> str: ...


class _Spec(Protocol):
    """What templates see of a `JournalSpec`, which validates by this module and so lies above."""

    @property
    def name(self) -> str: ...
    @property
    def replication(self) -> int: ...
    @property
    def labels(self) -> LabelSet: ...
    @property
    def fragment(self) -> _FragmentSettings: ...
    @property
    def flags(self) -> JournalFlag: ...
    @property
    def max_append_rate(self) -> int: ...
    @property
    def suspend(self) -> _Suspend | None: ...


_ZERO_FRAGMENT: Final = Fragment("", 0, 0, codec=CompressionCodec.INVALID)


class PathPostfixTemplate:
    """A parsed template of path postfixes."""

    def __init__(self, text: str) -> None:
        """Parse `text` and try it over zero values.

        Raises: ValidationError: it does not parse, or names fields or methods that do not exist.
        """
        self._template = Template(text)
        self._template.execute(_ZERO_DATA)

    @property
    def text(self) -> str:
        """The template's source."""
        return self._template.text

    def evaluate(
        self,
        fragment: Fragment,
        first_append_time: datetime,
        registers: LabelSet,
        spec: _Spec,
    ) -> str:
        """The postfix of a fragment.

        Args:
            first_append_time: aware; at this broker, of the fragment's first commit. Brokers near
                an hour's edge may differ, so that the same fragment is stored under two postfixes.

        Returns: the text as is. Whether it is a valid path shows in `Fragment.validate`.
        Raises: ValidationError: the template fails on these values.
        """
        spool = _spool_object(fragment, first_append_time, registers)
        return self._template.execute(_data_object(spool, _spec_object(spec)))


@lru_cache(256)
def validate_path_postfix_template(text: str) -> None:
    """Check a template; the empty one is fine.

    Raises: ValidationError.
    """
    PathPostfixTemplate(text)


def _enum(member: IntEnum) -> NamedInt:
    return NamedInt(int(member), member.name, type(member).__name__)


def _duration(nanoseconds: int) -> NamedInt:
    return NamedInt(nanoseconds, format_duration(nanoseconds), "time.Duration")


def _label_set_object(labels: LabelSet) -> GoObject:
    firsts = {name: next(iter(group)).value for name, group in labels.by_name().items()}
    return GoObject("LabelSet", {"ValueOf": Method(lambda name: firsts.get(name, ""), (str,))})


def _fragment_object(fragment: Fragment) -> GoObject:
    digest = GoObject(
        "SHA1Sum",
        {
            "Part1": int.from_bytes(fragment.sum[:8], "big"),
            "Part2": int.from_bytes(fragment.sum[8:16], "big"),
            "Part3": int.from_bytes(fragment.sum[16:], "big"),
            "IsZero": Method(lambda: not any(fragment.sum)),
        },
    )
    members: dict[str, Value | Method] = {
        "Journal": fragment.journal,
        "Begin": fragment.begin,
        "End": fragment.end,
        "Sum": digest,
        "CompressionCodec": _enum(fragment.codec),
        "BackingStore": fragment.backing_store,
        "ModTime": fragment.mod_time,
        "PathPostfix": fragment.path_postfix,
        "ContentLength": Method(lambda: fragment.content_length),
    }
    # The codec of the zero value has no extension, but a template that asks for the name is fine.
    named = fragment is not _ZERO_FRAGMENT
    members["ContentName"] = Method(lambda: fragment.content_name if named else "")
    return GoObject("Fragment", members)


def _spool_object(fragment: Fragment, first_append_time: datetime, registers: LabelSet) -> GoObject:
    return GoObject(
        "Spool",
        {
            "Fragment": _fragment_object(fragment),
            "FirstAppendTime": time_object(first_append_time),
            "Registers": _label_set_object(registers),
        },
        embedded=("Fragment",),
    )


def _spec_object(spec: _Spec) -> GoObject:
    settings = spec.fragment
    suspend = None
    if spec.suspend is not None:
        suspend = GoObject(
            "Suspend", {"Level": _enum(spec.suspend.level), "Offset": spec.suspend.offset}
        )
    return GoObject(
        "JournalSpec",
        {
            "Name": spec.name,
            "Replication": spec.replication,
            "LabelSet": _label_set_object(spec.labels),
            "Fragment": GoObject(
                "JournalSpec_Fragment",
                {
                    "Length": settings.length,
                    "CompressionCodec": _enum(settings.codec),
                    "RefreshInterval": _duration(settings.refresh_interval_ns),
                    "Retention": _duration(settings.retention_ns),
                    "FlushInterval": _duration(settings.flush_interval_ns),
                    "PathPostfixTemplate": settings.path_postfix_template,
                },
            ),
            "Flags": _enum(spec.flags),
            "MaxAppendRate": spec.max_append_rate,
            "Suspend": suspend,
        },
        embedded=("LabelSet",),
    )


def _data_object(spool: GoObject, spec: GoObject) -> GoObject:
    return GoObject(
        "path postfix data",
        {"Spool": spool, "JournalSpec": spec},
        embedded=("Spool", "JournalSpec"),
    )


_ZERO_SPEC: Final = cast(
    "_Spec",
    SimpleNamespace(
        name="",
        replication=0,
        labels=EMPTY_LABELS,
        fragment=SimpleNamespace(
            length=0,
            codec=CompressionCodec.INVALID,
            refresh_interval_ns=0,
            retention_ns=0,
            flush_interval_ns=0,
            path_postfix_template="",
        ),
        flags=JournalFlag.NOT_SPECIFIED,
        max_append_rate=0,
        suspend=None,
    ),
)

_ZERO_DATA: Final = _data_object(
    _spool_object(_ZERO_FRAGMENT, ZERO_TIME, EMPTY_LABELS), _spec_object(_ZERO_SPEC)
)
