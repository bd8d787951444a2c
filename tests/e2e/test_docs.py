"""Runs the snippets of the docs as a reader would: in order, in one empty folder, on a live platform.

The info string of a fenced block says what to do with it; blocks without one of these words are
for the eye only.

    ```bash run              run by bash; it must exit 0
    ```bash run fails        run by bash; it must not exit 0, and must show no traceback
    ```bash run until=40     run again until it exits 0 and prints what is expected, at most 40 s
    ```python run            run by this environment's Python
    ```yaml file=NAME        written to NAME (any language)
    ```text output           each line is in what the block before printed; … stands for anything

Commands of this environment are first on PATH. Platforms that a page leaves up are taken down.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from readme_text import missing_lines

from gazette_platform.testing.waiting import patient, wait_until

ROOT = Path(__file__).resolve().parents[2]
BLOCK_TIMEOUT_S = 720
_FENCE = re.compile(r"^( *)```(\S+)?[ \t]*(.*?)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """A fenced block that says what to do with it."""

    language: str
    words: tuple[str, ...]
    body: str
    line: int
    """Of the opening fence, from 1."""

    @property
    def file(self) -> str:
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), "")

    @property
    def until_s(self) -> float:
        return float(
            next((w.removeprefix("until=") for w in self.words if w.startswith("until=")), "0")
        )


def snippets_of(text: str) -> list[Snippet]:
    found = []
    for match in _FENCE.finditer(text):
        indent, language, info, body = match.groups()
        words = tuple(shlex.split(info))
        if words:
            body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
            line = text.count("\n", 0, match.start()) + 1
            found.append(Snippet(language=language or "", words=words, body=body, line=line))
    return found


def platform_roots(workdir: Path) -> list[Path]:
    return [path.parent for path in workdir.rglob("supervisor.json")]


class Page:
    """One page under test, in its folder."""

    def __init__(self, name: str, workdir: Path) -> None:
        self.name = name
        self.workdir = workdir
        self.env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
            # Examples are run from the root of a checkout, which the folder of the test is not.
            "PYTHONPATH": str(ROOT),
        }

    def run(self, snippet: Snippet) -> tuple[int, str]:
        command = {"bash": ["bash", "-euo", "pipefail"], "python": [sys.executable]}[
            snippet.language
        ]
        # To a file, not a pipe: what --detach leaves running would hold a pipe open.
        log = self.workdir / ".snippet.log"
        with log.open("wb") as out:
            done = subprocess.run(
                [*command, "-c", snippet.body],
                cwd=self.workdir,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=patient(BLOCK_TIMEOUT_S),
            )
        return done.returncode, log.read_text(errors="replace")

    def check(self, snippet: Snippet, expected: str) -> None:
        started = time.monotonic()
        why = output = ""

        def is_right() -> bool:
            nonlocal why, output
            code, output = self.run(snippet)
            wrong = (code == 0) == ("fails" in snippet.words)
            missing = missing_lines(expected, output)
            why = f"exit code {code}" if wrong else f"not printed: {missing}"
            return not wrong and not missing

        try:
            wait_until(is_right, timeout_s=snippet.until_s, poll_s=0.5)
        except TimeoutError:
            pytest.fail(f"{self.name}:{snippet.line}: {why}\n{snippet.body}---\n{output[-4000:]}")
        print(f"{self.name}:{snippet.line}: ok after {time.monotonic() - started:.1f} s")
        assert "Traceback (most recent call last)" not in output, f"{self.name}:{snippet.line}"

    def check_all(self, snippets: list[Snippet]) -> None:
        for index, snippet in enumerate(snippets):
            if snippet.file:
                target = self.workdir / snippet.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(snippet.body)
            elif "run" in snippet.words:
                following = snippets[index + 1 : index + 2]
                expected = "".join(s.body for s in following if "output" in s.words)
                self.check(snippet, expected)
            else:
                known = "output" in snippet.words and index > 0
                assert known, f"{self.name}:{snippet.line}: what is `{' '.join(snippet.words)}`?"

    def take_down(self) -> None:
        for root in platform_roots(self.workdir):
            subprocess.run(
                ["gazette", "down", "--root", str(root)],
                env=self.env,
                capture_output=True,
                check=False,
                timeout=patient(120),
            )


PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    if any("run" in snippet.words for snippet in snippets_of(path.read_text()))
)


@pytest.mark.e2e
@pytest.mark.timeout(1080)
@pytest.mark.parametrize("name", PAGES)
def test_page_can_be_followed(name, tmp_path, etcd_binary):
    page = Page(name, tmp_path)
    page.env["GAZETTE_ETCD"] = str(etcd_binary)  # the page says that readers have one
    try:
        page.check_all(snippets_of((ROOT / name).read_text()))
    finally:
        page.take_down()


def test_snippets_are_found_with_their_words_and_lines():
    text = "# T\n\n```bash run until=5\necho 1\n```\n\n- item\n  ```yaml file=a/b.yaml\n  x: 1\n    y: 2\n  ```\n```\nplain\n```\n"
    first, second = snippets_of(text)
    assert (first.language, first.body, first.line, first.until_s) == ("bash", "echo 1\n", 3, 5.0)
    assert (second.file, second.body, second.line) == ("a/b.yaml", "x: 1\n  y: 2\n", 8)


def test_page_runs_in_order_in_one_folder(tmp_path):
    text = (
        "```text file=in/data.txt\none\ntwo\n```\n"
        "```bash run\nwc -l < in/data.txt > count; echo first; echo lines: $(cat count) at 12:34; echo 15\n```\n"
        "```text output\nfirst\nlines: 2 at …\n15\n```\n"
        "```python run\nprint(open('count').read())\n```\n"
        "```bash run fails\ncat nowhere\n```\n"
    )
    Page("page.md", tmp_path).check_all(snippets_of(text))
    assert (tmp_path / "count").read_text().strip() == "2"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```bash run\nfalse | true\n```\n", "page.md:1: exit code 1"),
        ("```bash run fails\ntrue\n```\n", "exit code 0"),
        ("```bash run\necho 3; echo 14\n```\n```text output\n4\n```\n", r"not printed: \['4'\]"),
    ],
)
def test_page_that_lies_fails(tmp_path, text, why):
    with pytest.raises(pytest.fail.Exception, match=why):
        Page("page.md", tmp_path).check_all(snippets_of(text))


def test_until_waits_for_what_comes_later(tmp_path):
    text = "```bash run until=20\necho x >> tries; wc -l < tries\n```\n```text output\n3\n```\n"
    Page("page.md", tmp_path).check_all(snippets_of(text))


def test_links_between_pages_lead_somewhere():
    broken = []
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "sql/README.md",
    ]:
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        lost = [target for target in targets if not (path.parent / target).exists()]
        broken += [f"{path.relative_to(ROOT)}: {target}" for target in lost]
    assert not broken
