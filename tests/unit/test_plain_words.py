"""`tools/plain_words.py` finds hard constructions in the texts that people read, and only there."""

from __future__ import annotations

from collections import Counter

import pytest

from tools import plain_words


def rules_in(path: str, source: str) -> list[str]:
    return [each.rule for each in plain_words.findings_of(path, source)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Dagster is told of it", "told"),
        ("it begins anew", "anew"),
        ("a run of which nothing is left", "of which"),
        ("content behind the commit", "behind"),
        ("all but for one", "but for"),
        ("a folder that is no store", "is no"),
        ("the row is there twice", "be there"),
        ("has Spark merge rows", "have done"),
        ("checked beforehand", "beforehand"),
        ("rows of before", "of before"),
        ("a store of one's own", "one's"),
        ("a store that nobody asks", "nobody"),
        ("a disk, be it full", "be it"),
        ("that which was read", "that which"),
        ("lists what there is", "what there is"),
    ],
)
def test_each_rule_finds_its_construction(text, rule):
    assert rules_in("page.md", text) == [rule]
    assert rules_in("module.py", f'"""{text}."""\n') == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "there is no store",
        "it is no longer served",
        "consumers are behind the head",
        "behind a proxy",
        "tell two copies apart",
        "if there is a store, use it",
    ],
)
def test_plain_uses_of_the_same_words_pass(text):
    assert rules_in("page.md", text) == []


def test_python_texts_and_test_names_are_read_and_names_are_not():
    source = (
        "told = 1  # nobody asks\n"
        "def test_nobody_is_told():\n"
        '    raise ValueError(f"the {told} of\\nbefore {told} is told")\n'
    )
    found = [(each.line, each.rule) for each in plain_words.findings_of("m.py", source)]
    assert found == [(1, "nobody"), (2, "told"), (2, "nobody"), (3, "told")]


def test_markdown_code_is_not_read():
    assert rules_in("page.md", "`told`\n```\ntold\n```\ntold\n") == ["told"]


def test_line_of_a_finding_is_its_own_in_a_docstring():
    source = '"""First.\n\nThe broker is told.\n"""\n'
    (found,) = plain_words.findings_of("m.py", source)
    assert (found.line, found.text) == (3, "The broker is told.")


def test_a_folder_over_its_allowance_fails_and_one_without_has_none():
    found = Counter({"docs": 1, "tools": 3, "tests/unit": 5})
    assert plain_words.over(found, {"tools": 2, "tests/unit": 5}) == {
        "docs": (1, 0),
        "tools": (3, 2),
    }


def test_update_lowers_allowances_and_never_raises_their_sum(tmp_path, monkeypatch, capsys):
    page = tmp_path / "allowances.toml"
    monkeypatch.setattr(plain_words, "ALLOWANCES", page)
    assert plain_words.update(Counter({"a": 2, "b": 1}), {"a": 4}) == 0
    assert '"a" = 2\n"b" = 1\n' in page.read_text()
    assert plain_words.update(Counter({"a": 5}), {"a": 4}) == 1
    assert "5 findings, 4 allowed" in capsys.readouterr().err
    assert '"a" = 2' in page.read_text()
