"""Break the modules that decide, one small change at a time, and list the changes that no test notices.

    make mutants                                 # all mutants of all modules of tests/mutants.toml: hours
    make mutants MODULES="broker/append/fsm.py"  # all mutants of one module
    make mutants SAMPLE=200 SEED=26              # 200 mutants, drawn over all modules

It works in a temporary clone of a commit. Mutants that are known to survive are in tests/mutants.toml
with the reason; any other survivor fails the run. The mutants are cosmic-ray's.

The seed ranks mutants by a hash. Therefore a larger sample contains the smaller one, and a change to one
module leaves the draw in the other modules nearly as it was. Each mutant has the same chance, so a module
has as much weight as it has mutants.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import re
import sys
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TextIO

from broken_clone import Clone, Outcome, clone_of, limit_s
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

LIST = Path("tests") / "mutants.toml"

# Of cosmic-ray's operators those whose mutants differ in what they do: each comparison is moved by one
# and turned round, not replaced by all others.
_OPERATORS = re.compile(
    r"core/(AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|NumberReplacer|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is"
    r"|In_NotIn|NotIn_In)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|Mod_FloorDiv))"
)

# Lines without a decision: imports for annotations alone, and whether values are frozen or have slots.
_UNDECIDED = ("TYPE_CHECKING", "@dataclass")


@dataclass(frozen=True, order=True)
class Mutant:
    """One small change of one module."""

    module: str
    operator: str
    occurrence: int
    """Which of the places in the module that the operator fits, from 0."""
    number: int
    """Number of the line, from 1."""
    line: str
    """The source line as it is, without indentation."""

    def changed(self, source: str) -> str:
        """Return the text of the module with the change."""
        changed: str | None = mutate_code(
            source, get_operator(f"core/{self.operator}")(), self.occurrence
        )
        if changed is None:
            raise ValueError(f"{self.module} has no such mutant: {self}")
        return changed

    def is_listed(self, entry: dict[str, str]) -> bool:
        """Whether an entry of the list is about it."""
        return (entry["module"], entry["line"], entry["operator"]) == (
            self.module,
            self.line,
            self.operator,
        )


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, sorted."""
    tree, lines = get_ast(source), source.splitlines()
    found = []
    for name in filter(_OPERATORS.fullmatch, operator_names()):
        operator = get_operator(name)()
        places = (
            (node, at[0]) for node in ast_nodes(tree) for at in operator.mutation_positions(node)
        )
        for occurrence, (node, (number, _)) in enumerate(places):
            line = lines[number - 1].strip()
            # Without operands, "*" announces arguments. Its mutants do not compile.
            is_sum = node.parent is not None and node.parent.type in ("term", "arith_expr")
            if ("BinaryOperator" in name and not is_sum) or any(w in line for w in _UNDECIDED):
                continue
            found.append(Mutant(module, name.removeprefix("core/"), occurrence, number, line))
    return sorted(found)


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants, sorted; all of them if there are fewer."""

    def rank(mutant: Mutant) -> bytes:
        text = f"{seed}:{mutant.module}:{mutant.operator}:{mutant.occurrence}"
        return hashlib.sha256(text.encode()).digest()

    return sorted(sorted(mutants, key=rank)[:count])


def main() -> int:
    """Returns: 0 if every mutant was noticed, or is listed with a reason."""
    options = _options()
    survivors: list[Mutant] = []
    with clone_of(options.revision) as clone:
        listed = tomllib.loads((clone.root / LIST).read_text())
        tests: dict[str, list[str]] = listed["tests"]
        if unknown := [module for module in options.modules if module not in tests]:
            print(f"mutants: {LIST} names no tests of {', '.join(unknown)}")
            return 2
        modules = options.modules or list(tests)
        mutants = [mutant for name in modules for mutant in mutants_of(name, clone.read(name))]
        chosen = draw(mutants, options.sample or len(mutants), options.seed)
        print(f"mutants: trying {len(chosen)} of {len(mutants)}", flush=True)
        with Path(options.out).open("w") as out:
            for module, group in groupby(chosen, lambda mutant: mutant.module):
                survivors += _try_module(list(group), tests[module], clone, out)
    new = [m for m in survivors if not any(map(m.is_listed, listed.get("survivor", [])))]
    print(
        f"mutants: {'ok' if not new else 'FAILED'} tried={len(chosen)} "
        f"noticed={len(chosen) - len(survivors)} "
        f"listed={len(survivors) - len(new)} survived={len(new)}"
    )
    return 1 if new else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help="paths below gazette_platform/; default: all")
    parser.add_argument("--sample", type=int, help="try this number of mutants; default: all")
    parser.add_argument("--seed", type=int, default=0, help="which mutants a sample contains")
    parser.add_argument("--revision", default="HEAD", help="the commit to break; default: HEAD")
    parser.add_argument("--out", default="/dev/null", help="write each result here as a JSON line")
    return parser.parse_args()


def _try_module(mutants: list[Mutant], tests: list[str], clone: Clone, out: TextIO) -> list[Mutant]:
    """Return the mutants of one module that no test noticed."""
    module = mutants[0].module
    source = clone.read(module)
    clean_s = clone.clean_run_s(tests)
    survivors, verdicts = [], Counter[str]()
    for mutant in mutants:
        changed = mutant.changed(source)
        with clone.broken(module, changed):
            outcome = clone.run(tests, limit_s(clean_s))
        if outcome.verdict == "killed" and not outcome.noticed_by:
            # Without a failed test, pytest did not start: by the mutant, or by a broken environment.
            clone.clean_run_s(tests)
        diff = _difference(source, changed)
        verdicts[outcome.verdict] += 1
        print(json.dumps(_result(mutant, tests, diff, outcome)), file=out, flush=True)
        if outcome.verdict == "survived":
            survivors.append(mutant)
            print(f"\n{module}:{mutant.number} [{mutant.operator}]\n{diff}")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"{module}: {counts} (the tests take {clean_s:.1f} s)", flush=True)
    return survivors


def _result(mutant: Mutant, tests: list[str], diff: str, outcome: Outcome) -> dict[str, object]:
    return asdict(mutant) | {
        "diff": diff,
        "verdict": outcome.verdict,
        "noticed_by": outcome.noticed_by,
        "duration_s": round(outcome.duration_s, 2),
        "tests": tests,
    }


def _difference(source: str, changed: str) -> str:
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=1, lineterm="")
    return "\n".join(list(lines)[2:])


if __name__ == "__main__":
    sys.exit(main())
