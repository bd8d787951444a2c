"""N-grams of word-count, and how counts are kept."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given
from hypothesis.strategies import integers

from examples.word_count.application import WordCount
from examples.word_count.n_grams import count_from_bytes, count_to_bytes, n_grams
from gazette_platform.testing.waiting import turns

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


class Publisher:
    """Takes each message at once."""

    def __init__(self):
        self.messages, self.under_way, self.most = Counter(), 0, 0

    async def publish_committed(self, message):
        self.messages[message.n_gram] += message.count
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return self._ended()

    async def _ended(self):
        self.under_way -= 1


async def test_a_long_text_leaves_others_their_turn():
    application = WordCount(2)
    publisher = application._publisher = Publisher()
    others = 0
    work = asyncio.get_running_loop().create_task(application.publish("Wood " * 30_000))
    while not work.done():
        others += 1
        await turns()
    await work
    assert publisher.messages == {"START wood": 1, "wood wood": 29_999, "wood END": 1, "END END": 1}
    assert publisher.most < 2000
    assert others > 3
