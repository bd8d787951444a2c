"""README.md, as tests read it: its code, and what it promises."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

__all__ = ["ROOT", "Readme", "bullets", "missing_lines", "rows", "section"]

ROOT = Path(__file__).parents[2]


def section(text: str, heading: str) -> str:
    """Return what stands below a heading of the second level, up to the next one."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


def bullets(text: str) -> list[str]:
    """Return the items of lists, each on one line."""
    items = re.findall(r"^- (.*?)(?=^- |^\S|^$|\Z)", text, re.DOTALL | re.MULTILINE)
    return [" ".join(item.split()) for item in items]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of the first table, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def missing_lines(expected: str, output: str) -> list[str]:
    """Return lines of `expected` that no line of `output` matches, in which … stands for any text."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    missing = []
    for wanted in filter(str.strip, expected.splitlines()):
        parts = [re.escape(" ".join(part.split())) for part in wanted.split("…")]
        pattern = re.compile(r"\s*.*?\s*".join(parts))
        if not any(pattern.fullmatch(line) for line in lines):
            missing.append(wanted)
    return missing


class Readme:
    """The file of this checkout."""

    def __init__(self) -> None:
        self.text = (ROOT / "README.md").read_text("utf-8")

    def python(self, word: str) -> str:
        """Return the one block of Python that has a word."""
        return self._block("python", word)

    def shell(self, word: str) -> str:
        """Return the one block of commands that has a word."""
        return self._block("bash", word)

    def _block(self, language: str, word: str) -> str:
        blocks = re.findall(rf"^```{language}\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)
        (found,) = [block for block in blocks if word in block]
        return textwrap.dedent(found)
