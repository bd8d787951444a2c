"""Options of `format("gazette")`."""

import pickle
from pathlib import Path

import pytest

from gazette_platform.client import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.spark.options import OPTIONS, Place, SourceOptions, parse_options


def parse(environment=None, **given):
    return parse_options({"journal": "a/b"} | given, environment or {})


def test_defaults_are_those_of_a_batch_of_all():
    assert parse() == SourceOptions(selector="name=a/b", config=ClientConfig())


@pytest.mark.parametrize(
    ("given", "selector"),
    [
        ({"selector": "name:prefix=a/"}, "name:prefix=a/"),
        ({"path": "name:prefix=a/"}, "name:prefix=a/"),
        ({"path": "a/"}, "name:prefix=a/"),
        ({"path": "a/part=0"}, "name=a/part=0"),
        ({"path": "region=eu"}, "region=eu"),
        ({"path": "a/b"}, "name=a/b"),
        ({"journal": "a/part=0"}, "name=a/part=0"),
    ],
)
def test_journals_are_said_in_three_ways(given, selector):
    assert parse_options(given, {}).selector == selector


def test_names_have_no_case_and_values_are_of_types():
    found = parse(
        STARTINGOFFSETS='{"a/b": 5}',
        endingsavepoint="noon",
        committed="TRUE",
        uuid="meta.id",
        maxbytesperpartition="2m",
        maxBytesPerTrigger="10",
        mode="FAILFAST",
        onJump="continue",
        fileRoot="/data",
    )
    assert found.starting == Place(offsets={"a/b": 5})
    assert found.ending == Place(savepoint="noon")
    assert (found.committed, found.uuid) == (True, ("meta", "id"))
    assert (found.partition_bytes_max, found.trigger_bytes_max) == (2 << 20, 10)
    assert (found.mode, found.on_jump) == ("failFast", "continue")
    assert found.config.file_root == Path("/data")


def test_environment_says_what_options_do_not():
    environment = {"BROKER_ADDRESS": "http://a:1", "ZONE": "b", "BROKER_AUTH_TOKEN": "c"}
    config = parse(environment, broker="http://d:2").config
    assert (config.address, config.zone, config.auth_token) == ("http://d:2", "b", "c")


def test_secrets_are_not_shown_but_get_to_tasks():
    found = parse(authToken="a-secret")
    assert "a-secret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_all_that_is_wrong_is_reported_at_once():
    with pytest.raises(ValidationError) as failed:
        parse(
            selector="name=a",
            startingOffset="latest",
            startingSavepoint="x",
            startingOffsets="latest",
            endingOffsets="earliest",
            committed="yes",
            uuid="a..b",
            maxBytesPerPartition="0",
            maxBytesPerTrigger="ten",
            mode="loose",
            onJump="hop",
            broker="host:80",
            entirely="other",
        )
    told = str(failed.value)
    for part in (
        "(selector and journal are given)",
        "unknown option startingOffset: did you mean startingOffsets?",
        "startingOffsets and startingSavepoint exclude each other",
        "endingOffsets: must be latest, or a JSON object",
        "committed: must be true or false (yes)",
        "uuid: must be keys joined by dots ('a..b')",
        "maxBytesPerPartition: must be a positive number of bytes",
        "maxBytesPerTrigger: must be a positive number of bytes",
        "mode: must be one of permissive, dropMalformed, failFast (loose)",
        "onJump: must be raise or continue (hop)",
        "broker: must begin with one of http://",
        f"unknown option entirely: there are {', '.join(OPTIONS)}",
    ):
        assert part in told


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": -1}', '{"a": true}', '{"a": "1"}', "soon"])
def test_offsets_are_words_or_numbers_by_journal(text):
    with pytest.raises(ValidationError, match="startingOffsets: "):
        parse(startingOffsets=text)


def test_no_journals_are_an_error():
    with pytest.raises(ValidationError, match="say which journals to read by one of selector"):
        parse_options({}, {})
    with pytest.raises(ValidationError, match="path: "):
        parse_options({"path": "name in (a,b"}, {})
    with pytest.raises(ValidationError, match="selector: "):
        parse_options({"selector": "a/b in ("}, {})
