"""Which journals are partitions of a topic, when others give theirs its labels."""

from __future__ import annotations

import pytest

from gazette_platform.client.results import JournalListing
from gazette_platform.errors import ValidationError
from gazette_platform.kafka.topics import Form, home_of, made_partitions, map_topics
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet, Route


def listing(name, number=None, *, created=1, topic="t", home=""):
    labels = {} if number is None else {"kafka.topic": topic, "kafka.partition": str(number)}
    labels |= {"kafka.home": home} if home else {}
    spec = JournalSpec(
        name,
        1,
        LabelSet.of(labels),
        FragmentSpec(length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=10**9),
    )
    return JournalListing(spec, 1, created, Route((), -1))


def journals(*listings, homes=None, topic="t"):
    """The journals of a topic by number, and its home."""
    found = map_topics(listings, homes)
    partitions = found.topics[topic].partitions
    return {number: one.journal for number, one in partitions.items()}, found.homes[topic]


@pytest.mark.parametrize(
    ("journal", "home"),
    [
        ("topic/flights/part=000", "topic/flights/"),
        ("events/region=eu/day=1/part=000", "events/"),
        ("region=eu/part=000", "region=eu/"),
        ("a/b/c", "a/b/"),
        ("flat", ""),
    ],
)
def test_home_is_the_folder_of_a_journal(journal, home):
    assert home_of(journal) == home


def test_a_label_adds_no_partition_to_a_topic_of_others():
    own = listing("events/part=000", 0, created=1)
    foreign = listing("mine/x/part=000", 1, created=2)
    found = map_topics([own, foreign])
    assert list(found.topics["t"].partitions) == [0]
    assert found.problems == ("mine/x/part=000: topic t has its partitions in events/",)
    deeper = listing("events/region=eu/part=001", 1, created=3)
    beside = listing("events2/part=001", 2, created=3)
    assert journals(own, deeper, beside)[0] == {
        0: "events/part=000",
        1: "events/region=eu/part=001",
    }


def test_an_older_journal_takes_over_no_topic_that_is_known():
    own = listing("events/part=000", 0, created=5)
    older = listing("mine/part=000", 0, created=1)
    assert journals(own, older, homes={"t": "events/"}) == ({0: "events/part=000"}, "events/")
    # A topic that has no journals any more is free.
    assert journals(older, homes={"t": "events/"}) == ({0: "mine/part=000"}, "mine/")


def test_where_clients_make_topics_comes_before_other_folders():
    own = listing("topic/t/part=000", 0, created=5)
    older = listing("mine/part=000", 0, created=1)
    assert journals(own, older)[1] == "topic/t/"
    assert journals(own, older, homes={"t": "mine/"})[1] == "mine/"


def test_the_owner_widens_a_home_and_others_do_not():
    first = listing("events/eu/a", 0, created=1)
    second = listing("events/us/a", 1, created=2, home="events/")
    foreign = listing("mine/a", 2, created=3, home="/")
    assert journals(first, second)[0] == {0: "events/eu/a"}
    owner = listing("events/eu/a", 0, created=1, home="events/")
    assert journals(owner, second, foreign) == (
        {0: "events/eu/a", 1: "events/us/a"},
        "events/",
    )
    for wrong in ("even", "events", "other/", "/"):
        assert journals(listing("events/eu/a", 0, home=wrong))[1] == "events/eu/"


def test_journals_without_a_folder_are_at_home_with_each_other():
    assert journals(listing("a", 0), listing("b", 1), listing("mine/c", 2))[0] == {0: "a", 1: "b"}


def test_adding_partitions_keeps_to_the_home():
    known = [listing("events/part=000", 0)]
    (made,) = made_partitions("t", Form.JSON, known, [listing("events/part=001")])
    assert made[1].labels.value_of("kafka.home") == ""
    with pytest.raises(ValidationError, match="mine/a is not in events/"):
        made_partitions("t", Form.JSON, known, [listing("mine/a")])
    made = made_partitions("t", Form.JSON, [], [listing("events/eu/a"), listing("events/us/a")])
    assert [spec.labels.value_of("kafka.home") for _, spec in made] == ["events/"] * 2
    labelled = [JournalListing(spec, 1, 1, Route((), -1)) for _, spec in made]
    assert len(map_topics(labelled).topics["t"].partitions) == 2
    with pytest.raises(ValidationError, match="no folder in common"):
        made_partitions("t", Form.JSON, [], [listing("a/b"), listing("c/d")])
