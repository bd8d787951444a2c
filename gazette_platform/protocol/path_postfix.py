"""Templates of path postfixes: where below its journal a fragment is stored.

A journal's spec may say ``date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}``, and its
fragments land in Hive partitions. What templates see: ``.Spool`` (the fragment's fields,
``FirstAppendTime`` in UTC, ``Registers``) and ``.JournalSpec``, with Go's promotion of embedded
fields.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, Protocol, cast

from gazette_platform.gotemplate import (
    ZERO_TIME,
    GoObject,
    Method,
    NamedInt,
    Template,
    time_object,
)
from gazette_platform.ops.durations import format_duration
from gazette_platform.protocol.enums import CompressionCodec, JournalFlag, SuspendLevel
from gazette_platform.protocol.fragments import Fragment
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSet

if TYPE_CHECKING:
    from datetime import datetime
    from enum import IntEnum

    from gazette_platform.gotemplate.runtime import Value


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
