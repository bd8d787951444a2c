"""Options of writes to `format("gazette")`."""

import pickle

import pytest

from gazette_platform.client import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.spark.options import SINK_OPTIONS, SinkOptions, parse_sink_options


def parse(**given):
    return parse_sink_options({"journal": "a/b"} | given, {})


def test_defaults_are_those_of_one_journal():
    assert parse() == SinkOptions(selector="name=a/b", config=ClientConfig())


def test_names_have_no_case_and_options_of_sparks_own_are_passed_over():
    found = parse(
        MAPPING="Rendezvous",
        key="n",
        uuid="_meta.uuid",
        stagingjournal="staging/x",
        Writer="nightly/eu",
        epoch="17",
        checkpointlocation="/tmp/x",
        queryName="q",
        authToken="a-secret",
    )
    assert (found.mapping, found.key) == ("rendezvous", "n")
    assert (found.uuid, found.staging) == (("_meta", "uuid"), "staging/x")
    assert (found.writer, found.epoch) == ("nightly/eu", 17)
    assert "a-secret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_all_that_is_wrong_is_reported_at_once():
    with pytest.raises(ValidationError) as failed:
        parse_sink_options(
            {
                "mapping": "round",
                "uuid": "a..b",
                "writer": "me & you",
                "epoch": "-1",
                "startingOffsets": "latest",
                "stagingJournals": "x",
                "broker": "host:80",
            },
            {},
        )
    told = str(failed.value)
    for part in (
        "say which journals to write to by one of selector, journal, path: option(",
        "mapping: must be one of random, modulo, rendezvous (round)",
        "uuid: must be keys joined by dots ('a..b')",
        "writer: must have up to 48 letters, digits and -+/._ ('me & you')",
        "epoch: must be a whole number from 0 on ('-1')",
        "unknown option stagingJournals: did you mean stagingJournal?",
        f"unknown option startingOffsets: there are {', '.join(SINK_OPTIONS)}",
        "broker: must begin with one of http://",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mapping": "modulo"}, "mapping modulo needs the name of a column as key"),
        ({"mapping": "rendezvous"}, "mapping rendezvous needs"),
        ({"mapping": "random", "key": "n"}, "key is looked at by mapping=modulo and"),
        ({"key": "n"}, "key is looked at by"),
        ({"writer": "me"}, "writer and epoch go together"),
        ({"epoch": "1"}, "writer and epoch go together"),
        ({"writer": "x" * 49, "epoch": "1"}, "writer: must have up to 48"),
        ({"writer": "x", "epoch": str(1 << 63)}, "epoch: must be a whole number"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, told):
    with pytest.raises(ValidationError) as failed:
        parse(**given)
    assert told in str(failed.value)
