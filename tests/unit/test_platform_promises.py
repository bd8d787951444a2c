"""Each promise of README.md, and each row of docs/concepts/choosing.md, has a test against the real platform.

tests/platform/README.md says which one. A promise that is new, or says something else than before, fails here
until a test is named for it.
"""

from __future__ import annotations

import ast
import re

import pytest
from readme_text import ROOT, bullets, rows, section

README = (ROOT / "README.md").read_text("utf-8")
CHOOSING = (ROOT / "docs/concepts/choosing.md").read_text("utf-8")
TABLES = (ROOT / "tests/platform/README.md").read_text("utf-8")


def promised():
    """What has to have a test, by heading of tests/platform/README.md."""
    sentences = [
        sentence
        for item in bullets(section(README, "What it promises"))
        for sentence in re.split(r"(?<=\.) ", item)
    ]
    blocks = re.findall(r"^```(?:bash|python)\n(.*?)\n", README, re.MULTILINE)
    code = [re.split(r"  +#", line)[0] for line in blocks]
    limits = bullets(section(CHOOSING, "Limits"))
    titles = [re.match(r"\*\*(.*?)\*\*", item) for item in limits]
    return {
        "What it promises": sentences,
        "Code of the README": code,
        "When not to use it": bullets(section(README, "When not to use it")),
        "Beside what you may have": [
            row[0] for row in rows(section(CHOOSING, "Beside what you may have"))
        ],
        # The last item says where the rest is.
        "Limits": [title[1] for title in titles if title],
    }


def named(heading):
    return {row[0]: row[1] for row in rows(section(TABLES, heading))}


def existing():
    """Names of all tests in tests/platform."""
    return {
        node.name
        for path in (ROOT / "tests/platform").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("heading", promised())
def test_each_promise_names_an_existing_test(heading):
    found = named(heading)
    expected = promised()[heading]
    assert len(expected) > 3
    assert sorted(found) == sorted(expected)
    for promise, tests in found.items():
        names = re.findall(r"`(test_\w+)`", tests)
        assert names or tests.startswith("none: "), promise
        assert set(names) <= existing(), promise


def test_each_test_names_what_it_proves():
    assert set(re.findall(r"`(test_\w+)`", TABLES)) == existing()
