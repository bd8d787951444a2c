"""Keep constructions that are hard to read out of everything people read.

    python tools/plain_words.py            fail if a folder has more of them than its allowance
    python tools/plain_words.py --list gazette_platform/lake told
                                           list them, below a path and for one rule (both optional)
    python tools/plain_words.py --update   lower the allowances to what is left

It reads Markdown outside code, and of Python the comments, the strings (docstrings, errors, logs, help) and the names
of tests. `tools/plain_words.toml` holds an allowance per folder, which may only fall: `--update` refuses to raise the
sum. A folder without an entry has none. Allowances are per folder, not per file, so that modules can move within one.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ALLOWANCES = ROOT / "tools" / "plain_words.toml"

_PARTICIPLES = (
    "appended|asked|begin|closed|counted|do|done|give|given|go|made|make|merge|merged|moved|open|"
    "persisted|read|said|say|sent|set|stored|take|taken|write|written"
)
RULES: dict[str, tuple[str, str]] = {
    # name: pattern, what to write instead
    "told": (
        r"\b(told|tells?|telling)\b(?! (\w+ ){0,3}apart)",
        "say, report, notify, pass, return",
    ),
    "anew": (r"(?<![-_])\banew\b", "again, from scratch"),
    "of which": (r"\b(of which|of whom|by which|of whose)\b", "whose, or a second sentence"),
    "whose is of": (r"\bwhose \w+( \w+)? (is|are) of\b", "a second sentence"),
    "behind": (
        (
            r"(?<!is )(?<!are )(?<!was )(?<!be )(?<!far )(?<!bytes )"
            r"\bbehind (its?|them|that|those|all|what|which|this|each|one|everything|every|content|offsets?|"
            r"(a|the) (commit|gap|hole|last|first|other|next|later|spool|end|head|write|batch|append|fragment))\b"
        ),
        "after",
    ),
    "but for": (r"\bbut for\b", "except, unless"),
    "is no": (
        r"(?<!there )\b(is|are|was|were) no (?!longer\b|more than\b|less\b|such\b|matter\b|better\b|worse\b|different\b|\w+er than\b|faster\b|slower\b|later\b|earlier\b)\w",
        "is not a",
    ),
    "be there": (
        r"\b(is|are|was|were|be|been) there\b(?! (is|are|was|a|an|any|no|to)\b)",
        "exist, be present, be left",
    ),
    "have done": (
        rf"\b(has|have|having) (it|them|the \w+|a \w+|its \w+|each \w+|Spark|Trino) ({_PARTICIPLES})\b",
        "name the actor and what it does",
    ),
    "beforehand": (r"\bbeforehand\b", "before, in advance"),
    "of before": (r"\bof before\b", "existing, earlier, former"),
    "one's": (r"\b(one's own|of one's)\b", "your, its"),
    "nobody": (r"\b(nobody|somebody)\b", "name the actor, or use no one"),
    "be it": (r"\bbe it\b", "whether"),
    "that which": (r"\bthat which\b", "what, or a noun"),
    "what there is": (r"\bwhat there (is|are|was|were)\b", "a noun"),
}
COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, (pattern, _) in RULES.items()}
# Pages that a tool writes from texts that are checked where they are written, this list, and its tests.
SKIPPED = re.compile(
    r"_pb2(_grpc)?\.py$|^docs/reference/cli\.md$|^docs/internals/modules\.md$|^tools/plain_words\.py$"
    r"|^tests/unit/test_plain_words\.py$|^tests/unit/data/"
)
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}


@dataclass(frozen=True)
class Finding:
    """A place that a rule is about."""

    path: str
    line: int
    rule: str
    text: str


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of comments, strings and names of tests."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT_TOKENS:
            if re.fullmatch(r"""["']\w+["']""", token.string):
                continue  # a name, as in `__all__` or an annotation
            # Before Python 3.12 an f-string is one token, with the expressions in it.
            is_format = re.match(r"[rR]?[fF]", token.string)
            yield (
                token.start[0],
                re.sub(r"{[^{}]*}", "{}", token.string) if is_format else token.string,
            )
        elif token.type == tokenize.NAME:
            if before in {"def", "class"} and token.string.lower().startswith("test"):
                yield token.start[0], token.string.replace("_", " ")
            before = token.string


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of paragraphs, without blocks and spans of code."""
    in_code = False
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"`[^`]*`", "`", line)


def findings_of(path: str, source: str) -> Iterator[Finding]:
    """Yield what the rules find in one file, in order of lines."""
    texts = texts_of_python(source) if path.endswith(".py") else texts_of_markdown(source)
    for first, text in texts:
        for rule, pattern in COMPILED.items():
            for match in pattern.finditer(text):
                above = text.count("\n", 0, match.start())
                begin = text.rfind("\n", 0, match.start()) + 1
                line = text[begin:].split("\n", 1)[0].strip()
                yield Finding(path, first + above, rule, line)


def folder_of(path: str) -> str:
    """Return the folder that a file counts for: a part of the product, a tier of tests, or the file at the root."""
    parts = path.split("/")
    return "/".join(parts[: min(2, len(parts) - 1)]) or path


def all_findings() -> list[Finding]:
    """Return the findings in all files of the repository, new ones included."""
    listed = subprocess.run(
        [
            "/usr/bin/env",
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "*.md",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [
        finding
        for path in sorted(set(filter(None, listed)))
        if not SKIPPED.search(path) and (ROOT / path).is_file()
        for finding in findings_of(path, (ROOT / path).read_text())
    ]


def over(found: Counter[str], allowed: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return each folder with more findings than its allowance: how many, and the allowance."""
    return {
        folder: (count, allowed.get(folder, 0))
        for folder, count in sorted(found.items())
        if count > allowed.get(folder, 0)
    }


def update(found: Counter[str], allowed: dict[str, int]) -> int:
    """Write the allowances. Exit code 1 if their sum would rise, as after new texts."""
    if allowed and found.total() > sum(allowed.values()):
        print(
            f"plain-words: {found.total()} findings, {sum(allowed.values())} allowed: rewrite the new ones",
            file=sys.stderr,
        )
        return 1
    lines = [f'"{folder}" = {count}\n' for folder, count in sorted(found.items())]
    ALLOWANCES.write_text(
        "# Written by `python tools/plain_words.py --update`; see there.\n" + "".join(lines)
    )
    print(f"plain-words: {found.total()} left in {len(found)} folders")
    return 0


def main(arguments: list[str]) -> int:
    """Exit code: 0 nothing new, 1 a folder exceeds its allowance."""
    findings = all_findings()
    if arguments[:1] == ["--list"]:
        below, rule = [*arguments[1:], "", ""][:2]
        for each in findings:
            if each.path.startswith(below) and rule in {"", each.rule}:
                print(f"{each.path}:{each.line}: [{each.rule}] {each.text}")
        return 0
    found = Counter(folder_of(each.path) for each in findings)
    allowed = tomllib.loads(ALLOWANCES.read_text()) if ALLOWANCES.exists() else {}
    if arguments == ["--update"]:
        return update(found, allowed)
    exceeded = over(found, allowed)
    for folder, (count, allowance) in exceeded.items():
        print(
            f"plain-words: {folder} has {count}, {allowance} allowed; `python tools/plain_words.py --list {folder}` lists them",
            file=sys.stderr,
        )
        rules = Counter(each.rule for each in findings if folder_of(each.path) == folder)
        for rule, number in rules.most_common(5):
            print(f"  {rule} ({number}): write {RULES[rule][1]}", file=sys.stderr)
    if exceeded:
        print(
            "Rewrite what you added. If you moved files between folders, run `python tools/plain_words.py --update`.",
            file=sys.stderr,
        )
    return bool(exceeded)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
