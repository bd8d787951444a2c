"""A platform of its own for benchmarks of the lake, as `gazette up` starts it, and its journals."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gazette_platform.lake.settings import LakeSettings
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform.control import start_detached, stop_platform
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.platform.platform import (
    PlatformOptions,
    check_extras,
    environment_of,
    install_tools,
)
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from gazette_platform.platform.layout import Endpoints, PlatformState

__all__ = ["LakePlatform", "lake_journal", "lake_platform"]

_POSTFIX = (
    'append_date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
    '/append_hour={{ .Spool.FirstAppendTime.Format "15" }}'
)
_LENGTH_BYTES = 32 << 20
_REFRESH_S = 30


@dataclass(frozen=True, slots=True)
class LakePlatform:
    """A platform that is up."""

    layout: PlatformDir
    endpoints: Endpoints
    settings: LakeSettings
    environment: Mapping[str, str]
    """Variables that let programs find it."""


class _Quiet:
    """An observer that says nothing."""

    def changed(self, state: PlatformState) -> None:
        """The state of a component changed."""

    def ready(self, endpoints: Endpoints) -> None:
        """All components are ready."""


@contextmanager
def lake_platform(
    folder: Path, *, without: Collection[str] = (), tables: Mapping[str, str] | None = None
) -> Iterator[LakePlatform]:
    """A platform in `folder`, until the end of the scope.

    Args:
        folder: of the platform.
        without: components to leave out.
        tables: texts of table specs by file name, which exist before Dagster looks.

    Raises: SetupError: a tool is missing, or a component does not start; says which.
    """
    options = PlatformOptions(without=frozenset(without))
    check_extras(options)
    install_tools(options)
    layout, observer = PlatformDir.at(folder), _Quiet()
    layout.make()
    for name, text in (tables or {}).items():
        (layout.tables / name).write_text(text)
    try:
        endpoints = start_detached(layout, options, observer)
        environment = environment_of(layout, endpoints, has_trino=options.has("trino"))
        settings = LakeSettings.from_environment(environment)
        yield LakePlatform(layout, endpoints, settings, environment)
    finally:
        stop_platform(layout, observer)


def lake_journal(name: str, *, flush_interval_s: int) -> JournalSpec:
    """A journal as the demo's are: gzip, in a folder an hour of the store ``file:///``."""
    fragment = FragmentSpec(
        length=_LENGTH_BYTES,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=_REFRESH_S * SECOND_NS,
        flush_interval_ns=flush_interval_s * SECOND_NS,
        path_postfix_template=_POSTFIX,
    )
    return JournalSpec(name=name, replication=1, fragment=fragment)
