"""Alphabets, journal names, and names that are directories of others (V5)."""

import sys
import unicodedata

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    conflicting_prefix,
    split_meta,
    strip_meta,
    validate_journal_name,
    validate_path_component,
    validate_token,
)


def test_alphabet_is_unicode_letters_and_numbers():
    wrong = [
        code
        for code in range(sys.maxunicode + 1)
        if chr(code).isalnum() != (unicodedata.category(chr(code))[0] in "LN")
    ]
    assert not wrong, "the regular expressions of names.py take \\w for letters and numbers"


@pytest.mark.parametrize("symbol", [chr(code) for code in range(0x24)] + ["$", ":", ";", "@", "~"])
def test_symbols_outside_the_alphabets(symbol):
    with pytest.raises(ValidationError, match="not a valid token"):
        validate_token(f"abcd{symbol}", 4, 8)
    with pytest.raises(ValidationError, match="not a valid token"):
        validate_path_component(f"abcd{symbol}", 4, 8)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("abc", "invalid length (3; expected 4 <= length <= 512)"),
        ("a" * 513, "invalid length (513; expected 4 <= length <= 512)"),
        ("日" * 171, "invalid length (513; expected 4 <= length <= 512)"),
        ("/invalid/name", "cannot begin with '/' (/invalid/name)"),
        ("//invalid", "must be a clean path (//invalid)"),
        ("a/journal/", "must be a clean path (a/journal/)"),
        ("a//journal", "must be a clean path (a//journal)"),
        ("a/./journal", "must be a clean path (a/./journal)"),
        ("../journal", "must not have a '..' path segment (../journal)"),
        ("../../x", "must not have a '..' path segment (../../x)"),
        ("a/journal;meta", "not a valid token (a/journal;meta)"),
        ("a journal", "not a valid token (a journal)"),
        ("a\ud800bc", "not a valid token (a\ud800bc)"),
        ("a/journal\n", "not a valid token (a/journal\n)"),
    ],
)
def test_v5_journal_names_that_break_a_rule(name, text):
    with pytest.raises(ValidationError) as raised:
        validate_journal_name(name)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a/journal;", "invalid length (0; expected 1 <= length <= 512)"),
        ("a/journal;a//b", "must be a clean path (a//b)"),
        ("a/journal;a;b", "not a valid token (a;b)"),
        ("abc;meta", "invalid length (3; expected 4 <= length <= 512)"),
    ],
)
def test_v5_meta_parts_that_break_a_rule(name, text):
    with pytest.raises(ValidationError) as raised:
        validate_journal_name(name, meta=True)
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ["abcd", "a" * 512, "日本語日", "a/b=c/d%20", "..a/b...", "a½²"])
def test_v5_journal_names_that_are_fine(name):
    validate_journal_name(name)
    validate_journal_name(f"{name};some/meta", meta=True)


def test_an_empty_path_passes_where_its_length_may_be_zero():
    validate_path_component("", 0, 8)


def test_v5_meta_part_is_stripped():
    assert strip_meta("a/journal;with/meta") == "a/journal"
    assert strip_meta("a/journal") == "a/journal"
    assert split_meta("a/journal;with/meta") == ("a/journal", "with/meta")
    assert split_meta("a/journal") == ("a/journal", "")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["foo", "foobar", "foo-bar/x"], None),
        (["foo/bar", "foo"], ("foo", "foo/bar")),
        (["foo/bar/baz", "foo-x", "foo"], ("foo", "foo/bar/baz")),
        (["a/b/c", "a/b", "zzzz"], ("a/b", "a/b/c")),
        (["same", "same"], None),
    ],
)
def test_conflicting_prefix(names, expected):
    assert conflicting_prefix(names) == expected
