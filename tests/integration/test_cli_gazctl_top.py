"""`gazctl journals describe` and `top`, against a real broker."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import orjson
import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.client import Client, ClientConfig
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

SPEC = """
name: top/
replication: 1
labels: [{name: env, value: test}]
fragment:
  length: 1048576
  compression_codec: NONE
  stores: [file:///]
  refresh_interval: 1s
children:
- name: top/one
- name: top/two
"""


@pytest.fixture(scope="module")
def broker(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-top") as server:
        specs = folder / "specs.yaml"
        specs.write_text(SPEC)
        arguments = ["journals", "apply", "--specs", str(specs)]
        assert main([*arguments, "--broker.address", server.address]) == 0
        yield server


@pytest.fixture
def client(broker):
    with Client(ClientConfig(address=broker.address)) as client:
        yield client


@pytest.fixture
def gazctl(broker, monkeypatch, capfdbinary):
    monkeypatch.setenv("BROKER_ADDRESS", broker.address)

    def run(*args):
        code = main(["journals", *args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def test_describe_tells_head_stored_and_unpersisted_bytes(gazctl, client):
    head = client.append("top/one", b"x" * 1000).end
    code, out, err = gazctl("describe", "top/one", "-o", "json")
    assert code == 0, err
    before = orjson.loads(out)
    assert (before["name"], before["head"], before["error"]) == ("top/one", head, None)
    assert before["stored_bytes"] + before["unpersisted_bytes"] == head
    assert before["unpersisted_bytes"] >= 1000
    assert before["primary"].endswith("test-broker")
    client.flush("name=top/one")
    after = orjson.loads(gazctl("describe", "top/one", "-o", "json")[1])
    assert (after["stored_bytes"], after["unpersisted_bytes"], after["lag_s"]) == (head, 0, 0.0)
    assert after["stored_fragments"] >= 1
    end = client.append("top/one", b"y" * 7).end
    text = gazctl("describe", "top/one")[1].decode()
    assert text.startswith("top/one\n  Write head:     ")
    assert f"  Write head:     {end}\n" in text
    assert re.search(r"  Unpersisted:    7 bytes, lag \d+s\n", text)
    assert "  Labels:         env=test\n" in text


def test_describe_takes_several_and_names_what_is_missing(gazctl):
    code, out, _ = gazctl("describe", "top/", "-o", "json")
    assert code == 0
    assert [orjson.loads(line)["name"] for line in out.splitlines()] == ["top/one", "top/two"]
    code, _, err = gazctl("describe", "top/none")
    assert code == 1
    assert "top/none: JOURNAL_NOT_FOUND" in err


def test_top_once_prints_rates_of_one_interval(gazctl, client):
    client.append("top/two", b"x" * 5000)
    code, out, err = gazctl("top", "top/", "--once", "-o", "json", "-d", "200ms")
    assert code == 0, err
    measured = orjson.loads(out)
    assert {each["name"] for each in measured["journals"]} == {"top/one", "top/two"}
    assert all(each["bytes_per_s"] == 0 for each in measured["journals"])
    two = next(each for each in measured["journals"] if each["name"] == "top/two")
    assert two["unpersisted_bytes"] >= 5000
    lines = gazctl("top", "--once", "-d", "200ms")[1].decode().splitlines()
    assert lines[0].split() == ["Journal", "Primary", "Head", "Bytes/s", "Unpersisted", "Lag"]
    assert lines[-1].startswith("(2 journals)")
    assert gazctl("top", "-d", "1ms")[0] == 1


def test_a_journal_that_nobody_can_tell_of_does_not_hold_up_the_others(gazctl, client, tmp_path):
    """Its store cannot be listed: readers wait a minute for that, and each measurement did, too."""
    specs = tmp_path / "away.yaml"
    away = SPEC.replace("name: top/", "name: away/").replace("file:///", "hdfs://127.0.0.1:1/a/")
    specs.write_text(away[: away.index("children:")] + "children: [{name: away/one}]\n")
    assert gazctl("apply", "--specs", str(specs))[0] == 0
    try:
        began_s = time.monotonic()
        code, out, err = gazctl("top", "--once", "-o", "json", "-d", "200ms")
        assert time.monotonic() - began_s < 50, "it took 138 s"
        assert code == 0, err
        rows = {each["name"]: each for each in orjson.loads(out)["journals"]}
        assert "its stores are not listed yet" in rows["away/one"]["error"]
        assert rows["top/two"]["error"] is None
        code, out, err = gazctl("describe", "away/one")
        assert code == 1
        assert "its stores are not listed yet" in err
    finally:
        specs.write_text("name: away/one\ndelete: true\nrevision: -1\n")
        assert gazctl("apply", "--specs", str(specs))[0] == 0


def command(broker, *arguments):
    program = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", "top", *arguments]
    return [*program, "-d", "300ms", "--broker.address", broker.address]


def test_a_long_read_to_a_file_shows_its_progress_on_a_terminal(broker, client, tmp_path):
    client.append("top/one", b"x" * 3_000_000)
    ours, theirs = pty.openpty()
    arguments = [*command(broker)[:4], "read", "top/one", "-o", str(tmp_path / "out")]
    try:
        process = subprocess.Popen(
            [*arguments, "--broker.address", broker.address],
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + patient(60)
        while process.poll() is None or select.select([ours], [], [], 0.1)[0]:
            assert time.monotonic() < deadline
            try:
                seen += os.read(ours, 65536)
            except OSError:  # closed by its end
                break
        assert process.wait(60) == 0
    finally:
        os.close(ours)
    assert (tmp_path / "out").stat().st_size >= 3_000_000
    assert b"reading" in seen


def test_top_is_a_live_table_on_a_terminal(broker, client):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(
        command(broker, "top/"), stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    try:
        seen, deadline = b"", time.monotonic() + patient(60)
        while b"(2 journals)" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        assert b"Unpersisted" in seen
        assert b"top/one" in seen
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(ours, 65536)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)
