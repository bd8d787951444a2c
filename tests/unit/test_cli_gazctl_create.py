"""`gazctl journals create` and `append` against a fake broker: defaults, and arguments."""

import io
import sys

import pytest
import yaml

from gazette_platform.cli.output import confirmed
from gazette_platform.platform.layout import Endpoints
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, ProcessId, Route


def test_create_knows_brokers_of_gazette_by_their_routes(gazctl, broker):
    """They do not know the call that lists brokers."""
    broker.journal("a/one")
    members = tuple(ProcessId(zone, "broker") for zone in ("east", "west"))
    broker.route = Route(members, 0, ("http://h:1", "http://h:1"))
    printed = gazctl("create", "a/two", "--print")
    assert (
        yaml.safe_load(printed.out)["replication"] == 3
    )  # the broker that answers has a zone, too
    assert broker.calls["Apply"] == 0


def test_create_uses_the_store_of_the_platform(gazctl, broker, tmp_path, monkeypatch):
    broker.journal("a/one")
    endpoints = tmp_path / "endpoints.json"
    monkeypatch.setenv("GAZETTE_ENDPOINTS", str(endpoints))

    def store():
        printed = gazctl("create", "a/two", "--print")
        assert printed.code == 0, printed.err
        return yaml.safe_load(printed.out)["fragment"]["stores"]

    assert store() == ["file:///"]  # it is down
    Endpoints(broker=broker.address, store="s3://lake/").save(endpoints)
    assert store() == ["s3://lake/"]
    Endpoints(broker="http://another:1", store="s3://lake/").save(endpoints)
    assert store() == ["file:///"]


def test_append_takes_files_after_the_journal(gazctl, broker, tmp_path):
    broker.journal("a/one")
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(name.encode() * 3)
    result = gazctl("append", "a/one", "x", "y")
    assert result.err == (
        "appended 3 bytes to a/one at offset 0\nappended 3 bytes to a/one at offset 3\n"
    )
    assert gazctl("append", "-l", "name=a/one", "y").code == 0
    assert broker.journals["a/one"].content == b"xxxyyyyyy"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["x.jsonl", "a/one"],
            "x.jsonl is a file, and the journal comes first: `gazctl journals append a/one x.jsonl`",
        ),
        (["x.jsonl"], "the journal comes first: `gazctl journals append NAME x.jsonl`"),
        (
            ["a/one", "a/two"],
            "FILE: cannot read a/two: No such file or directory (arguments after the journal are files",
        ),
        (["a/one", "x.jsonl", "-i", "x.jsonl"], "give files or --input, and not both"),
        (
            ["a/none", "x.jsonl"],
            "a/none: JOURNAL_NOT_FOUND (check the name with `gazctl journals list`, or create it with `gazctl journals create`)",
        ),
    ],
    ids=["order", "no-journal", "two-journals", "twice", "unknown"],
)
def test_wrong_arguments_of_append_say_what_is_right(gazctl, broker, tmp_path, arguments, text):
    broker.journal("a/one")
    (tmp_path / "x.jsonl").write_bytes(b"x")
    result = gazctl("append", *arguments)
    assert result.code == 1
    assert text in " ".join(result.err.replace("│", " ").split())
    assert broker.journals["a/one"].content == b""


class Terminal(io.StringIO):
    """Stdin of a person."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stdin", "is_confirmed"),
    [
        (Terminal("y\n"), True),
        (Terminal("YES\n"), True),
        (Terminal("\n"), False),
        (Terminal("n\n"), False),
        (Terminal(""), False),
        (io.StringIO("y\n"), False),
    ],
    ids=["y", "yes", "enter", "no", "end", "pipe"],
)
def test_only_a_person_confirms(monkeypatch, capsys, stdin, is_confirmed):
    monkeypatch.setattr(sys, "stdin", stdin)
    assert confirmed("Delete 1 journal?") == is_confirmed
    asked = "" if not stdin.isatty() else "Delete 1 journal? [y/N]\n"
    assert capsys.readouterr() == ("", asked)


def test_delete_of_an_empty_journal_says_so(gazctl, broker):
    journal = broker.journal("a/one")
    fragment = FragmentSpec(length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=10**9)
    journal.spec = JournalSpec("a/one", 1, fragment=fragment)
    assert "a/one: is empty" in gazctl("delete", "a/one", "--yes").err
    assert broker.journals == {}
