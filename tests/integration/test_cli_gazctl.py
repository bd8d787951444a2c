"""Every command of gazctl against a real broker process and a real etcd."""

import gzip
import re
import signal
import sys
from pathlib import Path

import orjson
import pytest
import yaml
from gazctl_runner import SMALL_FRAGMENTS, gazctl_runner, started_gazctl

from gazette_platform.testing.waiting import wait_until

pytestmark = pytest.mark.etcd


@pytest.fixture
def root(names):
    """Journals of this test's own are below this name."""
    return names.prefix


@pytest.fixture
def start(shared, tmp_path):
    """Start a gazctl process; all are ended and their pipes closed."""
    with started_gazctl(shared.address, tmp_path) as run:
        yield run


@pytest.fixture
def gazctl(shared, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl journals` to its end, in this process."""
    return gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)


@pytest.fixture
def journals(gazctl, root):
    """Two journals, applied."""
    result = gazctl("apply", stdin=SMALL_FRAGMENTS.format(root=root).encode())
    assert result.code == 0, result.err
    created = rf"{root}/one: created\n{root}/two: created\n2 created \(revision \d+\)\n"
    assert re.fullmatch(created, result.err)
    return f"name:prefix={root}/"


def append(gazctl, selector, content, *flags):
    """Append by way of a file, since stdin is this process's own."""
    Path("content").write_bytes(content)
    result = gazctl("append", "-l", selector, "-i", "content", *flags)
    assert result.code == 0, result.err
    return result.err


def test_specs_are_listed_edited_and_deleted(gazctl, journals, root, tmp_path, monkeypatch):
    append(gazctl, f"name={root}/one", b"x")  # which waits until the journal has its primary
    table = gazctl("list", "-l", journals, "-p", "--rf", "-L", "content-type").out.decode()
    name, replication, primary, content_type = table.splitlines()[1].split()
    assert (name, replication) == (f"{root}/one", "1")
    assert primary in {"broker-a", "broker-b", "broker-c"}
    assert content_type == "application/x-ndjson"
    listing = orjson.loads(gazctl("list", "-l", journals, "-o", "json").out)
    assert [each["spec"]["name"] for each in listing["journals"]] == [f"{root}/one", f"{root}/two"]
    (tmp_path / "editor.py").write_text(
        "import pathlib, sys; file = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text().replace('length: 1024', 'length: 2048'))"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {tmp_path}/editor.py")
    assert "2 changed (revision " in gazctl("edit", "-l", journals).err
    tree = yaml.safe_load(gazctl("list", "-l", journals, "-o", "yaml").out)
    assert tree["fragment"]["length"] == 2048
    tree["delete"] = True
    result = gazctl("apply", stdin=yaml.safe_dump(tree).encode())
    assert "2 deleted (revision " in result.err
    assert gazctl("list", "-l", journals).out == b"Name\n"


def test_apply_says_what_cannot_work_yet(gazctl, root):
    four = SMALL_FRAGMENTS.format(root=root).replace("replication: 1", "replication: 4")
    result = gazctl("apply", stdin=four.encode())
    assert result.code == 0
    *_, applied, one, two = result.err.splitlines()
    assert applied.startswith("2 created (revision ")
    assert one.startswith(f"warning: {root}/one has 3 of its 4 replicas: there are too few brokers")
    assert two.startswith(f"warning: {root}/two has 3 of its 4 replicas")
    more = "".join(f"- name: {root}-more/{number}\n" for number in range(5))
    many = SMALL_FRAGMENTS.format(root=f"{root}-more").replace("replication: 1", "replication: 4")
    many = many[: many.index("- name:")] + more
    result = gazctl("apply", stdin=many.encode())
    assert "warning: so it is with at least 2 more journals\n" in result.err
    wrong = SMALL_FRAGMENTS.format(root=f"{root}-wrong").replace("file:///", "file:///?colour=red")
    refused = gazctl("apply", stdin=wrong.encode())
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert f"{root}-wrong/one: " in refused.err
    assert "colour" in refused.err
    assert "nothing was applied" in refused.err
    none = gazctl("list", f"{root}-wrong/")
    assert none.out == b"Name\n"
    assert f"no journals match {root}-wrong/; `gazctl journals list -o yaml`" in none.err
    forced = gazctl("apply", "--force", stdin=wrong.encode())
    assert forced.code == 0
    assert "warning: brokers cannot use the store file:///?colour=red: " in forced.err
    away = SMALL_FRAGMENTS.format(root=f"{root}-away").replace("file:///", "hdfs://127.0.0.1:1/a/")
    result = gazctl("apply", stdin=away.encode())
    assert result.code == 0
    assert "warning: brokers cannot use the store hdfs://127.0.0.1:1/a/: " in result.err


def test_append_and_read_back(gazctl, journals, root):
    content = b'{"a":1}\n' * 100_000
    append(gazctl, f"name={root}/one", content)
    assert gazctl("read", "-l", f"name={root}/one").out == content
    said = append(gazctl, journals, b"1\n2\n3\n", "-f", "lines")
    assert re.search(r"appended 3 records, 6 bytes, to [12] of 2 journals\n", said)
    append(gazctl, journals, f"{root}/two\nnamed\n".encode(), "-f", "lines", "-m", "direct")
    assert gazctl("read", "-l", f"name={root}/two").out.endswith(b"named\n")


def test_blocking_read_follows_until_a_signal(gazctl, start, journals, root, tmp_path):
    append(gazctl, f"name={root}/one", b"first\n")
    process = start("read", "-l", journals, "--block", "--offsets-out", "o.json")
    assert process.stdout.readline() == b"first\n"
    append(gazctl, f"name={root}/one", b"second\n")
    assert process.stdout.readline() == b"second\n"
    third = SMALL_FRAGMENTS.format(root=root).replace(f"{root}/one", f"{root}/three")
    third = third.replace(f"- name: {root}/two\n", "")
    assert gazctl("apply", stdin=third.encode()).code == 0
    append(gazctl, f"name={root}/three", b"third\n")
    assert process.stdout.readline() == b"third\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert orjson.loads((tmp_path / "o.json").read_bytes())[f"{root}/one"] == 13


def test_broken_pipe_ends_quietly(gazctl, start, journals, root):
    append(gazctl, f"name={root}/one", b"x" * 5_000_000)
    process = start("read", "-l", f"name={root}/one")
    assert process.stdout.read(10) == b"x" * 10
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr.read() == b""


def verified(gazctl, journal, root, *args):
    """Code, findings by object or offsets, and the summary of one journal."""
    result = gazctl("verify", journal, "--file-root", root, "-o", "json", *args)
    *lines, summary = [orjson.loads(line) for line in result.out.splitlines()]
    return result.code, sorted((each["finding"], each["begin"]) for each in lines), summary


def test_verify_finds_each_kind_of_damage(gazctl, journals, root, shared):
    name, folder = f"{root}/one", shared.fragments / root / "one"
    for n in range(6):
        append(gazctl, f"name={name}", b"%d" % n * 2000)

    def is_stored():
        return len(list(folder.rglob("*.gz"))) >= 5

    wait_until(is_stored, timeout_s=30)
    assert gazctl("flush", "-l", f"name={name}").code == 0
    files = sorted(folder.rglob("*.gz"))
    code, findings, summary = verified(gazctl, name, shared.fragments)
    assert (code, findings, summary["faults"]) == (0, [], 0)
    assert (summary["read"], summary["end"]) == (len(files), 12000)
    assert verified(gazctl, name, shared.fragments, "--sample", "2")[2]["read"] == 2

    files[0].write_bytes(gzip.compress(b"9" * 2000))
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].write_bytes(gzip.compress(b"2" * 1999))
    (files[3].parent / "note.txt").write_bytes(b"not a fragment")
    kept = files[3].read_bytes()
    files[3].unlink()
    raw = f"{8000:016x}-{8005:016x}-{'0' * 40}.raw"
    (files[4].parent / raw).write_bytes(b"trailing")
    code, findings, summary = verified(gazctl, name, shared.fragments)
    assert code == 1
    assert findings == [
        ("codec", 2000),
        ("digest", 0),
        ("length", 4000),
        ("length", 8000),
        ("missing", 6000),
        ("overlap", 8000),
        ("strange", 0),
    ]
    assert (summary["faults"], summary["read"]) == (6, len(files) - 4)
    table = gazctl("verify", name, "--file-root", shared.fragments, "--sample", "0")
    assert b"note.txt" in table.out
    assert "faults were found" in table.err
    # A gap needs brokers that no longer list what is gone.
    wait_until(lambda: ("gap", 6000) in verified(gazctl, name, shared.fragments)[1], timeout_s=30)
    files[3].write_bytes(kept)


def test_verify_without_a_root_says_so(gazctl, journals, root):
    append(gazctl, f"name={root}/one", b"x")
    result = gazctl("verify", f"{root}/one")
    assert result.code == 1
    assert b"needs a directory" in result.out


def test_fragments_and_prune(gazctl, journals, root, shared):
    for _ in range(3):
        append(gazctl, f"name={root}/one", b"x" * 2000)

    def two_stored():
        out = gazctl("fragments", "-l", journals, "-o", "json", "--url-ttl", "1m").out
        found = [orjson.loads(line) for line in out.splitlines()]
        return found if sum("backing_store" in each["spec"] for each in found) >= 2 else None

    fragments = wait_until(two_stored, timeout_s=30)
    assert fragments[0]["spec"]["end"] == 2000
    assert fragments[0]["spec"]["path_postfix"].startswith("date=")
    assert fragments[0]["signed_url"].startswith(f"file:///{root}/")
    table = gazctl("fragments", "-l", journals).out.decode()
    assert table.splitlines()[1].split()[:3] == [f"{root}/one", "0", "2000"]

    prune = ("prune", "-l", journals, "--file-root", shared.fragments)
    result = gazctl(*prune)
    assert "keeps everything" in result.err
    tree = yaml.safe_load(gazctl("list", "-l", journals, "-o", "yaml").out)
    tree["fragment"]["retention"] = "1ns"
    assert gazctl("apply", stdin=yaml.safe_dump(tree).encode()).code == 0
    files = sorted((shared.fragments / root / "one").rglob("*.gz"))
    assert len(files) >= 2
    assert gazctl(*prune, "--dry-run").out.count(b"would remove") >= 1
    assert all(file.exists() for file in files)
    assert gazctl(*prune).code == 0
    assert not files[0].exists()


def test_watch_lists_again_after_changes(gazctl, start, root):
    process = start("list", "--watch", "-l", f"name:prefix={root}/")
    assert process.stdout.readline() == b"Name\n"
    assert gazctl("apply", stdin=SMALL_FRAGMENTS.format(root=root).encode()).code == 0
    assert process.stdout.readline() == b"Name\n"
    assert process.stdout.readline() == f"{root}/one\n".encode()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


def test_apply_refuses_head_of_an_old_listing(gazctl, journals, root):
    name = f"{root}/one"
    append(gazctl, f"name={name}", b"x" * 50)
    tree = yaml.safe_load(gazctl("list", "-l", f"name={name}", "-o", "yaml").out)
    tree |= {"revision": -1, "suspend": {"level": "NONE", "offset": 10}}
    old = yaml.safe_dump(tree).encode()
    refused = gazctl("apply", stdin=old)
    assert refused.code == 1
    assert f"{name}: suspend.offset 10 is below its head 50" in refused.err
    assert b"offset: 10" not in gazctl("list", "-l", f"name={name}", "-o", "yaml").out
    assert gazctl("apply", "--force", stdin=old).code == 0
    tree["suspend"]["offset"] = 50
    assert gazctl("apply", stdin=yaml.safe_dump(tree).encode()).code == 0


def test_reset_head_without_terminal_needs_a_yes(gazctl, journals, root):
    """The journal was lost with etcd's data. Which brokers held it is unknown."""
    name = f"{root}/one"
    append(gazctl, f"name={name}", b"x" * 50)
    assert gazctl("flush", "-l", f"name={name}").code == 0
    tree = yaml.safe_load(gazctl("list", "-l", f"name={name}", "-o", "yaml").out)
    assert gazctl("apply", stdin=yaml.safe_dump(tree | {"delete": True}).encode()).code == 0
    assert gazctl("apply", stdin=yaml.safe_dump(tree | {"revision": 0}).encode()).code == 0
    done = gazctl("reset-head", "-l", f"name={name}", "--dry-run")
    assert (done.code, done.out) == (0, f"{name}: head would be 50\n".encode())
    done = gazctl("reset-head", "-l", f"name={name}")
    assert (done.code, done.out) == (1, b"")
    assert "only the spools of brokers that are away hold would be given up" in done.err
    done = gazctl("reset-head", "-l", f"name={name}", "--yes")
    assert (done.code, done.out) == (0, f"{name}: head is 50\n".encode())
    done = gazctl("reset-head", "-l", f"name={name}")
    assert (done.code, done.out, done.err) == (0, f"{name}: head is 50\n".encode(), "")
