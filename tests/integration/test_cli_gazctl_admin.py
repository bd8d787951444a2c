"""`gazctl journals flush` and `gazctl savepoints` against a real broker process."""

import orjson
import pytest
from spark_journals import make_again

from gazette_platform import Client, ClientConfig
from gazette_platform.cli.gazctl import main

pytestmark = pytest.mark.etcd

SPEC = """
name: {root}/
replication: 1
fragment: {{length: 1048576, compression_codec: GZIP, stores: [file:///], refresh_interval: 1h}}
children: [{{name: {root}/one}}, {{name: {root}/two}}]
"""


@pytest.fixture
def gazctl(shared, capsys):
    def run(*args):
        status = main([*map(str, args), "--broker.address", shared.address])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def root(gazctl, names, tmp_path):
    """Two journals are under this name, one with content; savepoints may be, too."""
    specs, content = tmp_path / "specs.yaml", tmp_path / "content"
    specs.write_text(SPEC.format(root=names.prefix))
    assert gazctl("journals", "apply", "--specs", specs)[0] == 0
    content.write_bytes(b"hello\n")
    one = f"name={names.prefix}/one"
    assert gazctl("journals", "append", "-l", one, "-i", content)[0] == 0
    return names.prefix


def test_flush_says_how_far(gazctl, root, shared):
    status, out, err = gazctl("journals", "flush", "-l", f"name:prefix={root}/")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{root}/one: all below 6 is in the store",
        f"{root}/two: all below 0 is in the store",
    ]
    assert len(list((shared.fragments / root / "one").iterdir())) == 1


def test_savepoints_from_creation_to_deletion(gazctl, root, tmp_path):
    status, out, _ = gazctl(
        "savepoints", "create", f"{root}/nightly/1", "-l", f"name:prefix={root}/"
    )
    assert (status, out) == (0, f"{root}/nightly/1: 2 journals\n")
    status, out, _ = gazctl("savepoints", "list", "--prefix", root)
    assert out.splitlines()[0].split() == ["Name", "Journals", "Created"]
    assert out.splitlines()[1].split()[:2] == [f"{root}/nightly/1", "2"]
    _, out, _ = gazctl("savepoints", "list", "--prefix", root, "--format", "json")
    assert orjson.loads(out)["journals"] == 2
    _, out, _ = gazctl("savepoints", "list", "--prefix", "other/", "--format", "json")
    assert out == ""
    status, out, _ = gazctl("savepoints", "get", f"{root}/nightly/1")
    found = orjson.loads(out)
    assert (found[f"{root}/one"], found[f"{root}/two"]) == (6, 0)
    # They say which journals they are of.
    assert {name for name, value in found.items() if value > 6} == {
        f"{root}/one#created",
        f"{root}/two#created",
    }
    # What is printed is what reads take.
    offsets = tmp_path / "offsets.json"
    offsets.write_text(out)
    content = tmp_path / "content"
    content.write_bytes(b"more\n")
    assert gazctl("journals", "append", "-l", f"name={root}/one", "-i", str(content))[0] == 0
    read = (
        "journals",
        "read",
        "-l",
        f"name={root}/one",
        "--offsets",
        str(offsets),
        "-o",
        str(content),
    )
    assert gazctl(*read)[0] == 0
    assert content.read_bytes() == b"more\n"
    _, out, _ = gazctl("savepoints", "get", f"{root}/nightly/1", "-o", "table")
    assert out.splitlines()[1].split() == [f"{root}/one", "6"]
    status, _, err = gazctl("savepoints", "create", f"{root}/nightly/1")
    assert status == 1
    assert f"savepoint {root}/nightly/1 exists already" in err
    assert gazctl("savepoints", "create", f"{root}/nightly/1", "--replace")[0] == 0
    assert gazctl("savepoints", "delete", f"{root}/nightly/1")[:2] == (
        0,
        f"{root}/nightly/1: deleted\n",
    )
    status, _, err = gazctl("savepoints", "get", f"{root}/nightly/1")
    assert status == 1
    assert f"there is no savepoint {root}/nightly/1" in err


def test_read_refuses_offsets_of_a_journal_that_was_made_again(gazctl, root, tmp_path, shared):
    offsets, one = tmp_path / "offsets.json", f"{root}/one"
    read = ("journals", "read", "-l", f"name={one}", "--offsets", offsets, "--offsets-out", offsets)
    assert gazctl("savepoints", "create", f"{root}/here", "-l", f"name={one}")[0] == 0
    offsets.write_text(gazctl("savepoints", "get", f"{root}/here")[1])
    assert gazctl(*read, "-o", tmp_path / "out")[0] == 0
    assert f"{one}#created" in offsets.read_text()
    with Client(ClientConfig(address=shared.address)) as client:
        make_again(client, shared, one)
        client.append(one, b"longer than it was\n")
    for begin in ("--offsets", offsets), ("--from-savepoint", f"{root}/here"):
        status, _, err = gazctl(
            "journals", "read", "-l", f"name={one}", *begin, "-o", tmp_path / "out"
        )
        assert (status, (tmp_path / "out").read_bytes()) == (1, b"")
        assert f"{one} was deleted and made again: offset 6 belongs to the journal" in err


def test_read_begins_at_a_savepoint(gazctl, root, tmp_path):
    content, out = tmp_path / "content", tmp_path / "out"
    assert gazctl("savepoints", "create", f"{root}/here", "-l", f"name={root}/one")[0] == 0
    for journal in (f"{root}/one", f"{root}/two"):
        content.write_bytes(f"{journal} later\n".encode())
        assert gazctl("journals", "append", "-l", f"name={journal}", "-i", content)[0] == 0
    read = ("journals", "read", "--from-savepoint", f"{root}/here", "-o", out)
    status, _, err = gazctl(*read, "-l", f"name:prefix={root}/")
    assert status == 0
    assert f"savepoint {root}/here does not name {root}/two" in err
    lines = out.read_bytes().splitlines()
    assert sorted(lines) == [f"{root}/one later".encode(), f"{root}/two later".encode()]
    # What the savepoint does not name follows --tail.
    assert gazctl(*read, "-l", f"name:prefix={root}/", "--tail")[0] == 0
    assert out.read_bytes() == f"{root}/one later\n".encode()
