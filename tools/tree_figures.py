#!/usr/bin/env python3
"""Measure how the code is cut: lines, modules, importers, comments; or draw functions at random.

tools/tree_figures.py                    figures of the product, as a table
tools/tree_figures.py --draw 12 --seed 31   functions without their places, to be placed by a reader
tools/tree_figures.py --draw 12 --seed 31 --places   where they are
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
PRODUCT = "gazette_platform"
# Where a reader needs the reasons: appends, replication, spools, epochs, allocation, recovery logs, publishing, registration.
DELICATE = (
    "broker/append", "broker/replicate", "broker/spool", "broker/crash", "allocator",
    "consumer/recoverylog", "lake/iceberg", "lake/raw",
)  # fmt: skip
_BODY_LINES_MIN = 6


class Module(NamedTuple):
    """A module of the product."""

    name: str
    path: Path
    text: str
    tree: ast.Module


def modules() -> Iterator[Module]:
    """Yield all hand-written modules."""
    for path in sorted((ROOT / PRODUCT).rglob("*.py")):
        if "_pb2" not in path.name:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text()
            yield Module(name, path, text, ast.parse(text))


def importers(known: Mapping[str, Module]) -> Mapping[str, set[str]]:
    """Return the modules that import each module, whether at the top or within a function."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, module in known.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                # `from package import module` uses the module, and of the package nothing.
                found_in = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [node.module] * (not known.keys() >= set(found_in)) + found_in
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for imported in names:
                if imported in known and imported != name:
                    found[imported].add(name)
    return found


def comment_lines(text: str) -> int:
    """Return how many lines hold nothing but a comment that is meant for readers."""
    lines = text.splitlines()
    return sum(
        token.type == tokenize.COMMENT
        and lines[token.start[0] - 1].strip().startswith("#")
        and "----" not in token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def import_lines(module: Module) -> int:
    """Return how many lines are imports, or list names."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__")
    )


def figures() -> dict[str, str]:
    """Return the figures by name."""
    known = {module.name: module for module in modules()}
    users = importers(known)
    lines = sum(module.text.count("\n") for module in known.values())
    found = {
        "modules": f"{len(known):,}",
        "lines": f"{lines:,}",
        "modules with one importer": f"{sum(len(users[name]) == 1 for name in known):,}",
        "share of imports": f"{sum(map(import_lines, known.values())) / lines:.1%}",
    }
    for folder in DELICATE:
        texts = [
            module.text
            for module in known.values()
            if (ROOT / PRODUCT / folder) in module.path.parents
        ]
        count = sum(text.count("\n") for text in texts)
        if count:
            found[f"comments in {folder}"] = f"{sum(map(comment_lines, texts)) / count:.1%}"
    crowded = defaultdict(int)
    for module in known.values():
        crowded[module.path.parent] += 1
    worst = max(crowded, key=lambda folder: crowded[folder])
    found["most modules in a folder"] = f"{crowded[worst]} ({worst.relative_to(ROOT)})"
    return found


def drawn(count: int, seed: int) -> list[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return functions drawn at random, the same for the same seed and tree."""
    functions = [
        (module, node)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= _BODY_LINES_MIN
    ]
    return random.Random(seed).sample(functions, count)  # noqa: S311  it must be repeatable


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draw", type=int, metavar="N", help="draw so many functions")
    parser.add_argument("--seed", type=int, default=31, help="of the draw (default: 31)")
    parser.add_argument("--places", action="store_true", help="print where the functions are, too")
    options = parser.parse_args()
    if not options.draw:
        for name, value in figures().items():
            print(f"{name:<34} {value:>12}")
        return
    for number, (module, node) in enumerate(drawn(options.draw, options.seed), 1):
        place = f" {module.path.relative_to(ROOT)}:{node.lineno}" if options.places else ""
        print(f"{number}.{place}\n{ast.get_source_segment(module.text, node)}\n")


if __name__ == "__main__":
    main()
