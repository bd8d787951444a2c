"""Our HTTP/2 passes h2spec, except what docs/internals/wire.md names."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ET

from h2_server_bench import Bench
from object_servers import need_go

from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

DEPARTURES = {
    "idle: Sends a RST_STREAM frame",
    "Sends a RST_STREAM frame on a idle stream",
    "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "Sends a PRIORITY frame on half-closed (remote) stream",
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
}


async def test_server_conforms_to_the_rfcs(tmp_path):
    need_go("GAZETTE_H2SPEC")
    program, report = await asyncio.to_thread(tools.h2spec), tmp_path / "report.xml"
    async with Bench() as bench, asyncio.timeout(patient(100)):
        command = ["-h", "127.0.0.1", "-p", str(bench.server.port), "-o", "4", "-j", str(report)]
        process = await asyncio.create_subprocess_exec(
            program, *command, stdout=asyncio.subprocess.DEVNULL
        )
        await process.wait()
    cases = ET.parse(report).getroot().findall(".//testcase")
    failed = [case.get("classname") for case in cases if case.find("failure") is not None]
    errors = [case.get("classname") for case in cases if case.find("error") is not None]
    assert len(cases) > 140
    assert sorted(failed + errors) == sorted(DEPARTURES)
