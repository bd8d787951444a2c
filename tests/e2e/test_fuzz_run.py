"""Fuzzing of real brokers: nothing is found, and what is planted into them is."""

from __future__ import annotations

import os
import textwrap

import pytest

from gazette_platform.testing.waiting import VARIABLE
from tests.fuzz.cases import Case
from tests.fuzz.corpus import apply, spec
from tests.fuzz.runner import FuzzConfig, run_fuzz

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

# Brokers of the run import this before anything else. They behave, except one journal's name.
PLANT = """
import sys

if "serve" in sys.orig_argv:
    import asyncio, logging, os, time
    from gazette_platform.broker.api import listing as list_api
    from gazette_platform.serving.interface import Code, RpcFailed
    from gazette_platform.protocol import Status

    apply, kept = list_api.ListApi.apply, []

    async def planted(self, raw, *rest):
        if b"fuzz/planted" in raw:
            {fault}
        return await apply(self, raw, *rest)

    list_api.ListApi.apply = planted
"""


@pytest.mark.timeout(600)
async def test_a_minute_of_fuzzing_finds_nothing(etcd_binary, tmp_path):
    said = []
    result = await run_fuzz(
        FuzzConfig(
            etcd_binary=etcd_binary,
            seed=7,
            duration_s=60,
            folder=tmp_path / "fuzz",
            # How soon malloc gives back what a broker freed differs with what else the machine does:
            # here it is held to have freed the bursts, and by `make fuzz` to have given them back.
            growth_mb_max=300.0,
        ),
        say=said.append,
    )
    assert result.is_ok, "\n".join([*said, result.summary])
    assert result.inputs > 1500, result.summary
    assert result.summary.startswith("fuzz: ok seed=7 inputs=")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("os.kill(os.getpid(), 9)", "ended; its log ends"),
        ("asyncio.get_running_loop().call_soon(lambda: 1 // 0)", "ZeroDivisionError"),
        ("raise RpcFailed(Code.INTERNAL, 'list index out of range')", "answers INTERNAL"),
        ("kept.append(os.urandom(1 << 20) * 120)", "MB more than once warm"),
        ("time.sleep(3)", "event loop was blocked"),
        ("return Status.OK, b'KOBOLD-CONTENT-5f1c'", "is shown to a token without rights"),
    ],
    ids=["death", "traceback", "internal", "leak", "blocked", "secret"],
)
@pytest.mark.timeout(180)
async def test_what_is_planted_is_found(etcd_binary, tmp_path, monkeypatch, fault, found):
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(PLANT.format(fault=fault)))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setenv(
        VARIABLE, "1"
    )  # a leak has to be seen while its input is among the last ones
    monkeypatch.setattr("tests.fuzz.runner._SETTLE_S", 2.0)
    monkeypatch.setattr("tests.fuzz.runner._WARM_S", 1.0)
    innocent = Case("innocent", [apply(spec("fuzz/innocent"))])
    planted = Case("planted", [apply(spec("fuzz/planted"))])
    result = await run_fuzz(
        FuzzConfig(
            etcd_binary=etcd_binary,
            replay=(innocent, planted),
            folder=tmp_path / "fuzz",
            isolates=False,
        ),
        say=lambda text: None,
    )
    assert not result.is_ok
    assert found in result.findings[0].problem
    assert "planted" in {case.name for case in result.findings[0].suspects}
    assert result.summary.startswith("fuzz: FAILED seed=7 inputs=")
    assert f"REPLAY={result.case_files[0]}" in result.summary
