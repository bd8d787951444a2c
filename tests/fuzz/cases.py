"""Cases and their steps, and the files that replay them."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Case", "Step", "load_cases", "save_cases"]

Step = dict[str, Any]
"""What to do, under ``do``, with its arguments; see `driver.Driver`."""


@dataclass(frozen=True, slots=True)
class Case:
    """An input: named, and repeatable.

    `steps` are performed in order. Each begins when the one before was answered or has given up.
    """

    name: str
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(_brief(step) for step in self.steps[:4])})"


def _brief(step: Step) -> str:
    return str(step.get("method") or step.get("target") or step["do"]).rpartition("/")[2]


def save_cases(path: Path, cases: Iterable[Case], *, found: str = "") -> None:
    """Write cases into a file that `load_cases` reads.

    Args:
        path: of the file.
        cases: to be kept.
        found: why they are kept, for whoever reads the file.
    """
    kept = [{"name": case.name, "steps": _plain(case.steps)} for case in cases]
    path.write_text(json.dumps({"found": found, "cases": kept}, indent=1, ensure_ascii=True))


def load_cases(path: Path) -> list[Case]:
    """The cases of a file."""
    content = json.loads(path.read_text())
    return [Case(entry["name"], _rich(entry["steps"])) for entry in content["cases"]]


def _plain(value: Any) -> Any:
    """A value as JSON can have it. Bytes are compressed, since most are repetitions of a few."""
    if isinstance(value, bytes):
        if value.isascii() and len(value) < 200:
            return {"ascii": value.decode()}
        return {"deflated": base64.b64encode(zlib.compress(value, 9)).decode()}
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _rich(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"ascii"}:
            return value["ascii"].encode()
        if value.keys() == {"deflated"}:
            return zlib.decompress(base64.b64decode(value["deflated"]))
        return {key: _rich(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rich(entry) for entry in value]
    return value
