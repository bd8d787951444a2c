"""Journals by name, and by selector."""

from __future__ import annotations

import pytest
import typer

from gazette_platform.cli.gazctl.arguments import Selection
from gazette_platform.errors import JournalNotFound, ValidationError
from gazette_platform.protocol import LabelSet


def matched(selection, *names):
    return [name for name in names if selection.selector.matches(LabelSet.of(name=name))]


def test_names_match_those_journals_and_prefixes_all_below():
    selection = Selection.of(["a/b=c", "x/"], None)
    assert matched(selection, "a/b=c", "a/b=c/d", "x/y", "x", "z") == ["a/b=c", "x/y"]
    assert selection.names == ("a/b=c",)


def test_a_selector_is_taken_as_it_is_and_an_empty_one_matches_all():
    selection = Selection.of([], "env=test")
    assert selection.selector.matches(LabelSet.of(name="any", env="test"))
    assert matched(Selection.of(None, ""), "a", "b") == ["a", "b"]
    assert matched(Selection.of(None, None, is_needed=False), "a", "b") == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "selector"), [(["a"], "name=a"), (["a"], ""), ([], None), ([""], None)]
)
def test_names_or_a_selector_but_not_both_nor_neither(names, selector):
    with pytest.raises(typer.BadParameter):
        Selection.of(names, selector)


def test_name_with_signs_of_selectors_is_not_a_selector():
    with pytest.raises(ValidationError):
        Selection.of(["name=a, env=b"], None)


def test_each_named_journal_must_exist():
    selection = Selection.of(["a/one", "a/two", "b/"], None)
    selection.check(["a/one", "a/two"])
    with pytest.raises(JournalNotFound, match=r"^a/two: JOURNAL_NOT_FOUND"):
        selection.check(["a/one"])
    with pytest.raises(ValidationError, match=r"no journals match the selector \(b/\)"):
        Selection.of(["b/"], None).check([])
