"""What the fuzzer's oracle sees, and what it lets pass; and that its cases can be repeated."""

from __future__ import annotations

import os
import signal

import pytest

from tests.fuzz import http2
from tests.fuzz.arena import MARKS
from tests.fuzz.driver import Answer
from tests.fuzz.oracle import LogWatch, Memory, judge
from tests.fuzz.parsers import ParserProcess, run_parser

READ = {"do": "rpc", "method": "/protocol.Journal/Read", "messages": [b""], "token": "mine"}
GET = {"do": "http", "raw": b"GET / HTTP/1.1\r\n\r\n"}


@pytest.mark.parametrize(
    ("step", "kind", "code", "text", "said"),
    [
        (READ, "rpc", "UNKNOWN", "Unexpected <class 'KeyError'>: 'x'", "answers UNKNOWN"),
        (READ, "rpc", "INTERNAL", "Read: unforeseen KeyError: 'x'", "answers INTERNAL"),
        (READ, "rpc", "UNKNOWN", "list index out of range", "answers UNKNOWN"),
        (GET, "http", "500", "HTTP/1.1 500 Internal Server Error", "answers 500"),
        (READ, "rpc", "OK", MARKS[0].decode(), "is shown to a token without rights"),
        (READ, "rpc", "UNAUTHENTICATED", "not secret/pay-kobold", "the name of a hidden journal"),
        ({"do": "parse", "target": "tree"}, "parse", "broken", "ValueError: x", "is broken"),
        ({"do": "parse", "target": "tree"}, "parse", "slow", "9 s of CPU", "is slow"),
        ({"do": "twin", "step": READ}, "twin", "differs", "OK and not", "differs from one that"),
    ],
)
def test_bad_answers_are_found(step, kind, code, text, said):
    assert said in judge(Answer(step, kind, code, text))


SETTLED = http2.frame(http2.SETTINGS, 0, 0)


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        ("", http2.frame(http2.PING, 0, 0, bytes(8)), "its first frame is of kind 6"),
        ("", SETTLED + http2.frame(http2.PUSH_PROMISE, 4, 1, bytes(4)), "a frame of kind 5"),
        ("", SETTLED + http2.frame(http2.DATA, 0, 2, b"x"), "a frame of kind 0 on stream 2"),
        ("", SETTLED + http2.frame(http2.PING, 0, 1, bytes(8)), "a frame of kind 6 on stream 1"),
        ("open", SETTLED + http2.frame(http2.GOAWAY, 0, 0, bytes(7) + b"\1"), "stays open"),
    ],
)
def test_bad_http2_of_a_broker_is_found(code, body, said):
    assert said in judge(Answer({"do": "tcp"}, "h2", code, body=body))


@pytest.mark.parametrize(
    "body", [b"", SETTLED, SETTLED + http2.frame(7, 0, 0, bytes(8)), SETTLED[:4]]
)
def test_good_http2_of_a_broker_passes(body):
    assert judge(Answer({"do": "tcp"}, "h2", "open", body=body)) == ""


def test_tracebacks_in_a_log_are_found_once_and_with_their_lines(tmp_path):
    log = tmp_path / "broker.log"
    log.write_text("INFO all is well\n")
    watch = LogWatch(log)
    assert watch.problem() == ""
    with log.open("a") as file:
        file.write("ERROR task x failed\nTraceback (most recent call last):\nKeyError: 1\n")
    found = watch.problem()
    assert found.startswith("ERROR task x failed")
    assert "KeyError: 1" in found
    assert watch.tracebacks == 1
    assert watch.problem() == ""


def test_memory_that_does_not_come_back_is_found(monkeypatch):
    monkeypatch.setattr("tests.fuzz.oracle.PEAK_MB_MAX", 100.0)
    memory = Memory(os.getpid())
    memory.warm()
    assert memory.problem() == ""
    kept = bytearray(os.urandom(1 << 20) * 150)
    assert "its memory grew by" in memory.problem()
    assert memory.settle(timeout_s=0.0) > 100
    del kept


async def test_parsers_that_hang_or_die_are_found(monkeypatch):
    parsers = ParserProcess()
    try:
        assert (await parsers.run("duration", b"1h"))[0] == "ok"
        assert parsers._process is not None
        os.kill(parsers._process.pid, signal.SIGKILL)
        assert (await parsers.run("duration", b"1h"))[0] == "broken"
        assert (await parsers.run("duration", b"1h"))[0] == "ok"
        os.kill(parsers._process.pid, signal.SIGSTOP)
        monkeypatch.setattr("tests.fuzz.parsers._GIVE_UP_S", 0.5)
        assert (await parsers.run("duration", b"1h"))[0] == "slow"
        monkeypatch.undo()
        assert (await parsers.run("duration", b"x"))[0] == "refused"
    finally:
        await parsers.close()


def test_unforeseen_errors_of_parsers_are_broken(monkeypatch):
    monkeypatch.setitem(run_parser.__globals__["_TEXT"], "duration", lambda text: 1 // 0)
    assert run_parser("duration", b"1h")[0] == "broken"
