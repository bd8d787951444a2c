"""Write docs/internals/modules.md, the map of packages and modules, from their docstrings.

    python tools/gen_modules.py          write it
    python tools/gen_modules.py --check  fail if the page differs from what it would write

It takes the first sentence of each docstring. Of `cli` and `testing` it lists packages only: the reference of commands
and the guide to testing describe those better.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gazette_platform"
PAGE = ROOT / "docs" / "internals" / "modules.md"
PACKAGES_ONLY = {"cli", "testing"}
INTRO = """\
# Packages and modules

Generated from docstrings by `make gen`. [ARCHITECTURE.md](../../ARCHITECTURE.md) shows how the parts work together, and
[the layers](../../CONTRIBUTING.md#layers) say which may import which.
"""


def first_sentence(source: str) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    paragraph = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n", 1)[0].split())
    # A dot inside of a name or number is followed by no space, nor is an abbreviation by a capital.
    return (
        re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", paragraph, maxsplit=1)[0]
        .replace("|", "\\|")
        .replace("``", "`")
    )


def rows_of(package: Path) -> Iterator[str]:
    """Yield the rows of a package's table: its modules, then its packages with theirs."""
    inside = sorted(
        path for path in package.iterdir() if (path / "__init__.py").exists() and path.name != "pb"
    )
    if package.relative_to(PACKAGE).parts[0] not in PACKAGES_ONLY:
        for path in sorted(package.glob("*.py")):
            if not path.stem.startswith("__"):
                yield f"| `{path.relative_to(PACKAGE).with_suffix('')}` | {first_sentence(path.read_text())} |"
    for path in inside:
        yield f"| **`{path.relative_to(PACKAGE)}/`** | {first_sentence((path / '__init__.py').read_text())} |"
        yield from rows_of(path)


def page() -> str:
    """Return the whole page."""
    lines = [INTRO]
    packages = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    modules = sorted(path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
    lines += ["| module | is |", "|---|---|"]
    lines += [f"| `{path.stem}` | {first_sentence(path.read_text())} |" for path in modules]
    for package in packages:
        lines += [
            "",
            f"## {package.name}",
            "",
            first_sentence((package / "__init__.py").read_text()),
        ]
        rows = list(rows_of(package))
        if rows:
            lines += ["", "| module | is |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Exit code: 0 done or equal, 1 the page is stale."""
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == wanted:
            return 0
        print(f"gen-check: {PAGE.relative_to(ROOT)} is stale; run `make gen`", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    print(f"gen: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
