"""The first commands of a new user, `create`, `append`, `read` and `delete`, on real brokers in three zones."""

import re
from pathlib import Path

import pytest
import yaml
from gazctl_runner import gazctl_runner

pytestmark = pytest.mark.etcd


@pytest.fixture
def root(names):
    """Journals of this test's own are below this name."""
    return names.prefix


@pytest.fixture
def gazctl(shared, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl journals` to its end, in this process."""
    monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
    return gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)


def spec_of(gazctl, name):
    listed = gazctl("list", name, "-o", "yaml")
    assert listed.code == 0, listed.err
    return yaml.safe_load(listed.out)


def test_created_journal_is_appended_read_and_deleted(gazctl, root, shared):
    name = f"{root}/events"
    made = gazctl("create", name, "--store", "file:///")
    assert (made.code, made.out) == (0, b"")
    assert made.err.splitlines() == [
        f"{name}: created (3 replicas, gzip, stored every 1m0s, in file:///)",
        f"append to it: gazctl journals append {name} FILE",
    ]
    Path("events.jsonl").write_bytes(b'{"user": 7}\n')
    appended = gazctl("append", name, "events.jsonl")
    assert appended.err == f"appended 12 bytes to {name} at offset 0\n"
    assert gazctl("read", name).out == b'{"user": 7}\n'

    refused = gazctl("delete", name)
    assert refused.code == 1
    stays = f"{name}: 12 bytes (12 of them are stored first) stay in file:/// below {name}/\n"
    assert refused.err.startswith(stays)
    assert "nothing was deleted (answer y, or repeat the command with --yes)" in refused.err
    assert spec_of(gazctl, name)["replication"] == 3

    deleted = gazctl("delete", name, "--yes")
    assert deleted.code == 0, deleted.err
    assert deleted.err.endswith(f"{name}: deleted\n")
    assert gazctl("read", name).code == 1
    (file,) = (shared.fragments / name).rglob("*.gz")
    assert file.parent.name.startswith("date=")

    again = gazctl("create", name, "--store", "file:///")
    assert again.code == 0
    assert again.err.splitlines()[1] == (
        f"warning: file:/// has content of a former journal {name}, up to offset 12. To continue after it, run "
        f"`gazctl journals reset-head {name}`"
    )
    assert gazctl("reset-head", name, "--yes").code == 0
    assert (
        gazctl("append", name, "events.jsonl").err == f"appended 12 bytes to {name} at offset 12\n"
    )


def test_second_journal_uses_the_store_of_its_neighbour(gazctl, root):
    assert gazctl("create", f"{root}/one", "--store", f"file:///{root}-store/").code == 0
    made = gazctl("create", f"{root}/two", f"{root}/three")
    assert made.code == 0, made.err
    for name in ("two", "three"):
        assert spec_of(gazctl, f"{root}/{name}")["fragment"]["stores"] == [f"file:///{root}-store/"]
    assert gazctl("create", f"{root}/four", "--store", "file:///").code == 0
    torn = gazctl("create", f"{root}/five")
    assert torn.code == 1
    assert (
        f"journals below {root}/ use different stores (file:///, file:///{root}-store/)" in torn.err
    )


def test_printed_spec_is_what_would_be_created(gazctl, root):
    options = (
        *(f"{root}/events", "--store", "file:///", "--replication", "1", "--codec", "zstd"),
        *("--partition-by", "hour", "--flush", "2m", "--label", "kind=a", "--label", "env=test"),
    )
    printed = gazctl("create", *options, "--print")
    assert printed.code == 0, printed.err
    tree = yaml.safe_load(printed.out)
    assert tree["fragment"]["compression_codec"] == "ZSTANDARD"
    assert tree["labels"] == [{"name": "env", "value": "test"}, {"name": "kind", "value": "a"}]
    assert gazctl("list", f"{root}/").out == b"Name\n"
    Path("events.yaml").write_bytes(printed.out)
    assert re.match(f"{root}/events: created", gazctl("apply", "events.yaml").err)
    assert gazctl("apply", "events.yaml").err == f"{root}/events: unchanged\n"
    again = gazctl("create", *options)
    assert again.code == 1
    assert (
        f"{root}/events exists already, and nothing was created (`gazctl journals describe"
        in again.err
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["{root}/", "--store", "file:///"],
            "{root}/ names a directory (give the name of a journal",
        ),
        (["{root}/a b", "--store", "file:///"], "{root}/a b: Name: "),
        (["{root}/a", "--store", "file:///?colour=red"], "colour"),
        (["{root}/a", "--store", "s3:bucket"], "Stores[0]"),
        (["{root}/a", "--flush", "10s"], "--flush: brokers take no less than 1m"),
        (["{root}/a", "--label", "kind"], "--label: is not NAME=VALUE (kind)"),
        (["{root}/a", "--replication", "9"], "--replication"),
        (["{root}/a", "--codec", "lzma"], "--codec"),
        ([], "NAME"),
    ],
    ids=["directory", "name", "store", "url", "flush", "label", "replication", "codec", "nothing"],
)
def test_wrong_options_of_create_change_nothing(gazctl, root, arguments, text):
    done = gazctl("create", *(each.format(root=root) for each in arguments))
    assert done.code == 1
    assert text.format(root=root) in done.err
    assert gazctl("list", f"{root}/").out == b"Name\n"


def test_delete_of_what_is_not_there_says_so(gazctl, root):
    done = gazctl("delete", f"{root}/none", "--yes")
    assert done.code == 1
    assert f"{root}/none: JOURNAL_NOT_FOUND (check the name with `gazctl journals list`" in done.err
    neither = gazctl("delete", "--yes")
    assert "name a journal, or give --selector" in neither.err


def test_delete_takes_what_no_store_can_take_only_by_force(gazctl, root):
    """The store was named wrongly, and the journal has to go."""
    name = f"{root}/wrong"
    made = gazctl("create", name, "--replication", "1", "--store", "hdfs://127.0.0.1:1/a/")
    assert made.code == 0
    assert "warning: brokers cannot use the store hdfs://127.0.0.1:1/a/: " in made.err
    assert "append to it" not in made.err
    refused = gazctl("delete", name, "--yes")
    assert refused.code == 1
    assert "cannot be stored first, and nothing was deleted" in refused.err
    forced = gazctl("delete", name, "--yes", "--force")
    assert forced.code == 0, forced.err
    assert forced.err.endswith(f"{name}: deleted\n")


def test_apply_compares_with_existing_specs(gazctl, root):
    name = f"{root}/events"
    printed = gazctl("create", name, "--store", "file:///", "--print").out
    Path("one.yaml").write_bytes(printed)
    Path("two.yaml").write_bytes(printed.replace(b"/events", b"/others"))
    assert "2 created (revision " in gazctl("apply", "one.yaml", "two.yaml").err
    Path("one.yaml").write_bytes(printed.replace(b"GZIP", b"SNAPPY"))
    refused = gazctl("apply", "one.yaml", "two.yaml")
    assert refused.code == 1
    assert "-  compression_codec: GZIP\n+  compression_codec: SNAPPY\n" in refused.err
    assert f"--force, or run `gazctl journals edit {name}`)" in refused.err
    assert spec_of(gazctl, name)["fragment"]["compression_codec"] == "GZIP"
    forced = gazctl("apply", "one.yaml", "two.yaml", "--force")
    assert f"{name}: changed\n{root}/others: unchanged\n1 changed, 1 unchanged" in forced.err
    assert spec_of(gazctl, name)["fragment"]["compression_codec"] == "SNAPPY"
