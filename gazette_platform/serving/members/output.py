"""The logs and metrics of members as those of one process. Pure.

Counters, histograms and summaries add up. Gauges do not in general, as a write head that two processes know
of, so each keeps its value and gets the label ``process``.

A process that is started again counts from zero. What its former run had counted stays in the sums, as of the
last page that was read: else a sum would fall, and Prometheus would take that for a restart of all processes
and count everything twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LINE_BYTES_MAX: Final = 64 << 10
"""Longer lines are cut into several."""


def named_line(line: bytes, name: str, *, is_json: bool) -> str:
    r"""Return a line of a member's output with the name of the member in it.

    Args:
        line: as read, with or without its line break.
        is_json: whether each line of the log is a JSON object. Lines that are none become one.

    >>> named_line(b"2026-11-28 INFO ready\n", "b-1", is_json=False)
    'b-1: 2026-11-28 INFO ready\n'
    >>> named_line(b'{"level": "info", "msg": "ready"}\n', "b-1", is_json=True)
    '{"process": "b-1", "level": "info", "msg": "ready"}\n'
    >>> named_line(b"Traceback:", "b-1", is_json=True)
    '{"process": "b-1", "msg": "Traceback:"}\n'
    """
    text = line.decode(errors="replace").rstrip("\r\n")
    if not is_json:
        return f"{name}: {text}\n"
    begin = f'{{"process": {json.dumps(name)}'
    if text.startswith('{"') and text.endswith("}"):
        return f"{begin}, {text[1:]}\n"
    return f'{begin}, "msg": {json.dumps(text)}}}\n'


_SUMMED: Final = frozenset(("counter", "histogram", "summary"))


@final
class _Family:
    """One metric of all processes."""

    def __init__(self, head: list[str], kind: str) -> None:
        self.head = head
        self.kind = kind
        self.samples: dict[str, float] = {}


@final
class Totals:
    """Adds up pages in the text form of Prometheus, as `prometheus_client` writes it."""

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}
        # Sums of runs that have ended; their gauges are gone.
        self._ended: dict[str, _Family] = {}

    def ended(self, name: str) -> None:
        """Keep what a run of a process had counted. Its next page begins from zero."""
        page = self._last.pop(name, None)
        if page is not None:
            _add(self._ended, page, "")

    def page(self, pages: Mapping[str, bytes]) -> bytes:
        """Return the page of all.

        Args:
            pages: by name of the process. The counts of processes that do not answer now stay as they were.
        """
        self._last.update(pages)
        families = {name: _copied(family) for name, family in self._ended.items()}
        for name, last in self._last.items():
            _add(families, last, name if name in pages else "")
        return "".join(_lines(families.values())).encode()


def _copied(family: _Family) -> _Family:
    copied = _Family(family.head, family.kind)
    copied.samples = dict(family.samples)
    return copied


def _add(families: dict[str, _Family], page: bytes, process: str) -> None:
    """Add a page.

    Args:
        process: whose gauges these are; empty: leave them out.
    """
    family, head = _Family([], ""), list[str]()
    for line in page.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families.setdefault(name, _Family([*head, line], kind))
            head = []
        elif line.startswith("#"):
            head.append(line)
        elif line:
            sample, _, value = line.rpartition(" ")
            if family.kind in _SUMMED:
                family.samples[sample] = family.samples.get(sample, 0.0) + float(value)
            elif process:
                family.samples[_labelled(sample, process)] = float(value)


def _labelled(sample: str, process: str) -> str:
    """Add the label of a process, whose name has no characters that need quoting."""
    name, bracket, labels = sample.partition("{")
    label = f'process="{process}"'
    return f"{name}{{{label},{labels}" if bracket else f"{name}{{{label}}}"


def _lines(families: Iterable[_Family]) -> Iterable[str]:
    for family in families:
        if not family.samples and family.kind not in _SUMMED:
            continue
        yield from (f"{line}\n" for line in family.head)
        for sample, value in family.samples.items():
            yield f"{sample} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]
