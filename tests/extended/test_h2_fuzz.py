"""Fuzzing of our HTTP/2 on real brokers: nothing is found, and faults that are planted are."""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.fuzz.cases import Case
from tests.fuzz.corpus import corpus
from tests.fuzz.http2 import DATA, PING, frame, preface
from tests.fuzz.runner import FuzzConfig, run_fuzz

pytestmark = pytest.mark.etcd

# Brokers of the run import this before anything else. They behave, except one ping.
PLANT = """
import sys

if "serve" in sys.orig_argv:
    import os
    from gazette_platform.serving.h2.server import Connection
    from gazette_platform.testing.waiting import block_for

    received, kept = Connection.receive, []

    def planted(self, data):
        if b"planted!" in data:
            {fault}
        received(self, data)

    Connection.receive = planted
"""
# The ping, and DATA on no stream, which ends the connection.
TRIGGER = preface() + frame(PING, 0, 0, b"planted!") + frame(DATA, 0, 0, b"x")


@pytest.fixture(autouse=True)
def own_wire(monkeypatch):
    monkeypatch.setenv("GAZETTE_TEST_WIRE", "h2")


async def fuzz(etcd_binary, tmp_path, **config):
    said = []
    given = FuzzConfig(etcd_binary=etcd_binary, folder=tmp_path / "fuzz", **config)
    result = await run_fuzz(given, say=said.append)
    return result, "\n".join([*said, result.summary])


@pytest.mark.timeout(600)
async def test_attacks_on_http2_harm_no_broker(etcd_binary, tmp_path):
    cases = tuple(case for case in corpus() if case.name.startswith("http2-"))
    result, said = await fuzz(etcd_binary, tmp_path, replay=cases, isolates=False)
    assert result.is_ok, said
    assert result.inputs == sum(len(case.steps) for case in cases) > 200


@pytest.mark.timeout(600)
async def test_random_frames_harm_no_broker(etcd_binary, tmp_path):
    config = {"kinds": ("http2",), "has_corpus": False, "duration_s": 30}
    # How soon malloc gives back what a broker freed differs with what else the machine does.
    result, said = await fuzz(etcd_binary, tmp_path, growth_mb_max=300.0, **config)
    assert result.is_ok, said
    assert result.inputs > 300, said


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("1 // 0", "ZeroDivisionError"),
        ("self._close = lambda: None", "and the connection stays open"),
        ("self.put(bytes((0, 0, 1, 5, 0, 0, 0, 0, 2, 0)))", "it sends a frame of kind 5"),
        ("Connection.greet = lambda self: self.abort()", "List is not answered"),
        ("kept.append(os.urandom(1 << 20) * 120)", "MB more than once warm"),
        ("block_for(3)", "event loop was blocked"),
    ],
    ids=["traceback", "open", "push", "refuses", "leak", "blocked"],
)
@pytest.mark.timeout(180)
async def test_planted_fault_of_http2_is_found(etcd_binary, tmp_path, monkeypatch, fault, found):
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(PLANT.format(fault=fault)))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setattr("tests.fuzz.runner._SETTLE_S", 2.0)
    monkeypatch.setattr("tests.fuzz.runner._WARM_S", 1.0)
    step = {"do": "tcp", "raw": TRIGGER, "timeout_s": 2.0}
    wait = {"do": "wait", "seconds": 0.5}
    replay = (Case("planted", [step, wait]),)
    result, said = await fuzz(etcd_binary, tmp_path, replay=replay, isolates=False)
    assert not result.is_ok
    assert found in result.findings[0].problem, said
    # What is found late has no suspects.
    assert {case.name for case in result.findings[0].suspects} <= {"planted"}
