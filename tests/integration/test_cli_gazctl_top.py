"""`gazctl journals describe` and `top`, against a real broker."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time

import orjson
import pytest
from readable import is_readable

from gazette_platform.cli.gazctl import main
from gazette_platform.client import Client, ClientConfig
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

SPEC = """
name: {root}/
replication: 1
labels: [{{name: env, value: test}}]
fragment:
  length: 1048576
  compression_codec: NONE
  stores: [file:///]
  refresh_interval: 1s
children:
- name: {root}/one
- name: {root}/two
"""


@pytest.fixture
def client(shared):
    with Client(ClientConfig(address=shared.address)) as client:
        yield client


@pytest.fixture
def gazctl(shared, monkeypatch, capfdbinary):
    monkeypatch.setenv("BROKER_ADDRESS", shared.address)

    def run(*args):
        code = main(["journals", *args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture
def root(gazctl, names, tmp_path):
    """Two journals are under this name."""
    specs = tmp_path / "specs.yaml"
    specs.write_text(SPEC.format(root=names.prefix))
    assert gazctl("apply", "--specs", str(specs))[0] == 0
    return names.prefix


def test_describe_shows_head_stored_and_unpersisted_bytes(gazctl, client, root):
    head = client.append(f"{root}/one", b"x" * 1000).end
    code, out, err = gazctl("describe", f"{root}/one", "-o", "json")
    assert code == 0, err
    before = orjson.loads(out)
    assert (before["name"], before["head"], before["error"]) == (f"{root}/one", head, None)
    assert before["stored_bytes"] + before["unpersisted_bytes"] == head
    assert before["unpersisted_bytes"] >= 1000
    assert before["primary"][-8:] in {"broker-a", "broker-b", "broker-c"}
    client.flush(f"name={root}/one")
    after = orjson.loads(gazctl("describe", f"{root}/one", "-o", "json")[1])
    assert (after["stored_bytes"], after["unpersisted_bytes"], after["lag_s"]) == (head, 0, 0.0)
    assert after["stored_fragments"] >= 1
    end = client.append(f"{root}/one", b"y" * 7).end
    text = gazctl("describe", f"{root}/one")[1].decode()
    assert text.startswith(f"{root}/one\n  Write head:     ")
    assert f"  Write head:     {end}\n" in text
    assert re.search(r"  Unpersisted:    7 bytes, lag \d+s\n", text)
    assert "  Labels:         env=test\n" in text


def test_describe_takes_several_and_names_what_is_missing(gazctl, root):
    code, out, _ = gazctl("describe", f"{root}/", "-o", "json")
    assert code == 0
    assert [orjson.loads(line)["name"] for line in out.splitlines()] == [
        f"{root}/one",
        f"{root}/two",
    ]
    code, _, err = gazctl("describe", f"{root}/none")
    assert code == 1
    assert f"{root}/none: JOURNAL_NOT_FOUND" in err


def test_top_once_prints_rates_of_one_interval(gazctl, client, root):
    client.append(f"{root}/two", b"x" * 5000)
    code, out, err = gazctl("top", f"{root}/", "--once", "-o", "json", "-d", "200ms")
    assert code == 0, err
    measured = orjson.loads(out)
    assert {each["name"] for each in measured["journals"]} == {f"{root}/one", f"{root}/two"}
    assert all(each["bytes_per_s"] == 0 for each in measured["journals"])
    two = next(each for each in measured["journals"] if each["name"] == f"{root}/two")
    assert two["unpersisted_bytes"] >= 5000
    lines = gazctl("top", f"{root}/", "--once", "-d", "200ms")[1].decode().splitlines()
    assert lines[0].split() == ["Journal", "Primary", "Head", "Bytes/s", "Unpersisted", "Lag"]
    assert lines[-1].startswith("(2 journals)")
    assert gazctl("top", "-d", "1ms")[0] == 1


def command(shared, *arguments):
    program = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", "top", *arguments]
    return [*program, "-d", "300ms", "--broker.address", shared.address]


def test_a_long_read_to_a_file_shows_its_progress_on_a_terminal(shared, client, root, tmp_path):
    client.append(f"{root}/one", b"x" * 3_000_000)
    ours, theirs = pty.openpty()
    arguments = [
        *command(shared)[:4],
        "read",
        f"{root}/one",
        "--block",
        "-o",
        str(tmp_path / "out"),
    ]
    try:
        process = subprocess.Popen(
            [*arguments, "--broker.address", shared.address],
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + patient(60)
        while b"reading" not in seen:
            assert time.monotonic() < deadline, seen
            if is_readable(ours, 0.1):
                seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        process.wait(patient(60))
    finally:
        os.close(ours)
    assert (tmp_path / "out").stat().st_size >= 3_000_000


def test_top_is_a_live_table_on_a_terminal(shared, client, root):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(
        command(shared, f"{root}/"), stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    try:
        seen, deadline = b"", time.monotonic() + patient(60)
        while b"(2 journals)" not in seen:
            assert time.monotonic() < deadline, seen
            if is_readable(ours, 1):
                seen += os.read(ours, 65536)
        assert b"Unpersisted" in seen
        assert f"{root}/one".encode() in seen
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            assert time.monotonic() < deadline
            if is_readable(ours, 0.1):
                with contextlib.suppress(OSError):
                    os.read(ours, 65536)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)
