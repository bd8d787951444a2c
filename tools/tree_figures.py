#!/usr/bin/env python3
"""Measure how the code is cut: lines, modules, importers, comments; or draw functions at random.

tools/tree_figures.py                    figures of the product, as a table
tools/tree_figures.py --ones             modules with one importer, and why each is apart
tools/tree_figures.py --draw 12 --seed 31   functions without their places, to be placed by a reader
tools/tree_figures.py --draw 12 --seed 31 --places   where they are
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import tokenize
import tomllib
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
_MODULE_LINES_MAX = 600


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


def imports(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[str, str, bool]]:
    """Yield what a module imports: a module, a name in it or "", and whether it is imported late."""
    late = {
        node
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from package import module` uses the module, and of the package nothing.
            for alias in node.names:
                within = f"{node.module}.{alias.name}"
                found = (within, "") if within in known else (node.module, alias.name)
                yield *found, node in late
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", node in late) for alias in node.names)


def importers(known: Mapping[str, Module]) -> Mapping[str, dict[str, bool]]:
    """Return the modules that import each module, and whether all of these do so late, in a function.

    A package that hands a name of one of its modules on imports it for others. These are the importers; the package is one only
    if nothing of this tree asks it for the name: it then hands it to users.
    """
    handed = {
        (name, asked): source
        for name, module in known.items()
        if module.path.name == "__init__.py"
        for source, asked, _ in imports(module, known)
        if source.startswith(f"{name}.") and asked in _listed(module)
    }
    found: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for name, module in known.items():
        for imported, asked, late in imports(module, known):
            source = handed.get((imported, asked), imported)
            if source in known and source != name and (name, asked) not in handed:
                found[source][name] = late and found[source].get(name, True)
    for (name, _), source in handed.items():
        if not found[source]:
            found[source][name] = False
    return found


def _listed(module: Module) -> set[str]:
    """Return the names in `__all__`."""
    return {
        str(name)
        for node in module.tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        for name in ast.literal_eval(node.value)
    }


def ones(known: Mapping[str, Module]) -> dict[str, tuple[str, str]]:
    """Return the modules with one importer, each with that, and what keeps the two apart, if anything does."""
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    pure = next(set(rule["source_modules"]) for rule in linted["contracts"] if rule["id"] == "pure")
    found = {}
    for name, users in importers(known).items():
        if len(users) != 1:
            continue
        ((user, late),) = users.items()
        lines = known[name].text.count("\n") + known[user].text.count("\n")
        if known[name].path.name == "__init__.py":
            reason = "a package of its own"
        elif known[user].path.name == "__init__.py" and user != PRODUCT:
            reason = "its package needs it, or hands it to users"
        elif name.rpartition(".")[0] != user.rpartition(".")[0]:
            reason = "of another package"
        elif lines > _MODULE_LINES_MAX:
            reason = f"too long together: {lines}"
        elif (name in pure) != (user in pure):
            reason = "one is pure"
        else:
            reason = "imported late" * late
        found[name] = (user, reason)
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
    alone = ones(known)
    lines = sum(module.text.count("\n") for module in known.values())
    found = {
        "modules": f"{len(known):,}",
        "lines": f"{lines:,}",
        "modules with one importer": f"{len(alone):,}",
        "... that nothing keeps apart": f"{sum(not reason for _, reason in alone.values()):,}",
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
    crowded: defaultdict[Path, int] = defaultdict(int)
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
    parser.add_argument("--ones", action="store_true", help="list modules with one importer")
    options = parser.parse_args()
    if options.ones:
        for name, (user, reason) in sorted(ones({one.name: one for one in modules()}).items()):
            print(f"{name} <- {user}  {reason or 'nothing keeps them apart'}")
        return
    if not options.draw:
        for name, value in figures().items():
            print(f"{name:<34} {value:>12}")
        return
    for number, (module, node) in enumerate(drawn(options.draw, options.seed), 1):
        place = f" {module.path.relative_to(ROOT)}:{node.lineno}" if options.places else ""
        print(f"{number}.{place}\n{ast.get_source_segment(module.text, node)}\n")


if __name__ == "__main__":
    main()
