"""N-grams of word-count, and how counts are kept."""

from __future__ import annotations

from collections import Counter

import pytest
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given
from hypothesis.strategies import integers

from examples.word_count.n_grams import count_from_bytes, count_to_bytes, n_grams

SENTENCE = "How much wood would a wood chuck chuck if a wood chuck could chuck wood?"


def test_a_text_has_as_many_n_grams_as_words_and_n():
    found = list(n_grams(SENTENCE, 2))
    assert len(found) == 15 + 2
    assert found[:3] == ["START how", "how much", "much wood"]
    assert found[-3:] == ["chuck wood", "wood END", "END END"]
    assert Counter(found)["wood chuck"] == 2


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        ("", 1, ["END"]),
        ("One", 1, ["one", "END"]),
        ("a-b_c2d", 1, ["a", "b", "c", "d", "END"]),
        ("Über  ALLES,", 3, ["START START über", "START über alles", "über alles END"]),
    ],
)
def test_words_are_letters_in_lower_case(text, n, expected):
    assert list(n_grams(text, n))[: len(expected)] == expected


@given(integers(0, 2**64 - 1))
def test_counts_are_varints(count):
    assert count_to_bytes(count) == _VarintBytes(count)
    assert count_from_bytes(count_to_bytes(count)) == count
