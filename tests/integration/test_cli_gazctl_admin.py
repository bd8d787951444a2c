"""`gazctl journals flush` and `gazctl savepoints` against a real broker process."""

import orjson
import pytest

from gazette_platform.cli.gazctl import main

pytestmark = pytest.mark.etcd

SPEC = b"""
name: a/
replication: 1
fragment: {length: 1048576, compression_codec: GZIP, stores: [file:///], refresh_interval: 1h}
children: [{name: a/one}, {name: a/two}]
"""


@pytest.fixture
def gazctl(shared, capsys):
    def run(*args):
        status = main([*map(str, args), "--shared.address", shared.address])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="module", autouse=True)
def _journals(shared):
    specs = shared.log.parent / "specs.yaml"
    specs.write_bytes(SPEC)
    address = ["--shared.address", shared.address]
    assert main(["journals", "apply", "--specs", str(specs), *address]) == 0
    content = shared.log.parent / "content"
    content.write_bytes(b"hello\n")
    assert main(["journals", "append", "-l", "name=a/one", "-i", str(content), *address]) == 0


def test_flush_says_how_far(gazctl, shared):
    status, out, err = gazctl("journals", "flush", "-l", "name:prefix=a/")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "a/one: all below 6 is in the store",
        "a/two: all below 0 is in the store",
    ]
    assert len(list((shared.fragments / "a/one").iterdir())) == 1


def test_flush_of_nothing_is_an_error(gazctl):
    status, _, err = gazctl("journals", "flush", "-l", "name=no/journal")
    assert status == 1
    assert "no journals match" in err


def test_flush_takes_durations(gazctl):
    status, _, err = gazctl("journals", "flush", "-l", "name=a/one", "--timeout", "soon")
    assert status != 0
    assert "--timeout" in err


def test_savepoints_from_creation_to_deletion(gazctl, tmp_path):
    status, out, _ = gazctl("savepoints", "create", "nightly/1", "-l", "name:prefix=a/")
    assert (status, out) == (0, "nightly/1: 2 journals\n")
    status, out, _ = gazctl("savepoints", "list")
    assert out.splitlines()[0].split() == ["Name", "Journals", "Created"]
    assert out.splitlines()[1].split()[:2] == ["nightly/1", "2"]
    _, out, _ = gazctl("savepoints", "list", "--format", "json")
    assert orjson.loads(out)["journals"] == 2
    _, out, _ = gazctl("savepoints", "list", "--prefix", "other/", "--format", "json")
    assert out == ""
    status, out, _ = gazctl("savepoints", "get", "nightly/1")
    assert orjson.loads(out) == {"a/one": 6, "a/two": 0}
    # What is printed is what reads take.
    offsets = tmp_path / "offsets.json"
    offsets.write_text(out)
    content = tmp_path / "content"
    content.write_bytes(b"more\n")
    assert gazctl("journals", "append", "-l", "name=a/one", "-i", str(content))[0] == 0
    read = ("journals", "read", "-l", "name=a/one", "--offsets", str(offsets), "-o", str(content))
    assert gazctl(*read)[0] == 0
    assert content.read_bytes() == b"more\n"
    _, out, _ = gazctl("savepoints", "get", "nightly/1", "-o", "table")
    assert out.splitlines()[1].split() == ["a/one", "6"]
    status, _, err = gazctl("savepoints", "create", "nightly/1")
    assert status == 1
    assert "savepoint nightly/1 exists already" in err
    assert gazctl("savepoints", "create", "nightly/1", "--replace")[0] == 0
    assert gazctl("savepoints", "delete", "nightly/1")[:2] == (0, "nightly/1: deleted\n")
    status, _, err = gazctl("savepoints", "get", "nightly/1")
    assert status == 1
    assert "there is no savepoint nightly/1" in err


def test_unknown_formats_are_refused(gazctl):
    status, _, err = gazctl("savepoints", "list", "-o", "xml")
    assert status == 1
    assert "'xml' is not one of" in err


def test_read_begins_at_a_savepoint(gazctl, tmp_path):
    content, out = tmp_path / "content", tmp_path / "out"
    assert gazctl("savepoints", "create", "here", "-l", "name=a/one")[0] == 0
    for journal in ("a/one", "a/two"):
        content.write_bytes(f"{journal} later\n".encode())
        assert gazctl("journals", "append", "-l", f"name={journal}", "-i", content)[0] == 0
    read = ("journals", "read", "--from-savepoint", "here", "-o", out)
    status, _, err = gazctl(*read, "-l", "name:prefix=a/")
    assert status == 0
    assert "savepoint here does not name a/two" in err
    lines = out.read_bytes().splitlines()
    assert sorted(lines) == [b"a/one later", b"a/two later"]
    # What the savepoint does not name follows --tail.
    assert gazctl(*read, "-l", "name:prefix=a/", "--tail")[0] == 0
    assert out.read_bytes() == b"a/one later\n"


def test_read_refuses_savepoints_that_do_not_fit(gazctl, tmp_path):
    out, offsets = tmp_path / "out", tmp_path / "offsets"
    out.write_bytes(b"kept")
    offsets.write_text("{}")
    assert gazctl("savepoints", "create", "two", "-l", "name=a/two")[0] == 0
    for args, text in [
        (("--from-savepoint", "none"), "there is no savepoint none"),
        (("--from-savepoint", "two"), "names none of the journals that match"),
        (("--from-savepoint", "two", "--offsets", offsets), "goes without --offsets"),
    ]:
        status, _, err = gazctl("journals", "read", "-l", "name=a/one", "-o", out, *args)
        assert (status, text in err) == (1, True), err
    assert out.read_bytes() == b"kept"  # nothing was read, so nothing is overwritten
