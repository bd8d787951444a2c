"""Prometheus' own tool takes the alert rules, and fires them over made-up series."""

import asyncio
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")],
    ids=" ".join,
)
async def test_promtool(command):
    program = shutil.which("promtool")
    assert program, "promtool is missing (Debian: apt-get install prometheus)"
    process = await asyncio.create_subprocess_exec(
        program,
        *command,
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    assert b"SUCCESS" in output
