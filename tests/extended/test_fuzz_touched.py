"""The fuzzer sees when anything has changed that no input may touch."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.testing.waiting import patient
from tests.fuzz.arena import HIDDEN, PROBES, Arena, pulse_problem

pytestmark = pytest.mark.etcd


async def change_spec(arena):
    listed = arena.channels[0].unary_stream("/protocol.Journal/List")
    metadata = [("authorization", f"Bearer {arena.token('all')}")]
    async for raw in listed(pb.ListRequest().SerializeToString(), metadata=metadata):
        for entry in pb.ListResponse.FromString(raw).journals:
            if entry.spec.name == PROBES[0]:
                entry.spec.max_append_rate = 1 << 30
                change = pb.ApplyRequest.Change(
                    upsert=entry.spec, expect_mod_revision=entry.mod_revision
                )
                await arena._apply([change])


async def change_registers(arena):
    label = pb.LabelSet(labels=[pb.Label(name="kk", value="another")])
    await arena.append(HIDDEN, b"x", union_registers=label)


async def delete_savepoint(arena):
    request = admin_pb.DeleteSavepointRequest(name="kobold-point")
    await arena.call("gazette_platform.Admin/DeleteSavepoint", request)


async def add_file(arena):
    (arena.fragments / HIDDEN / "forged").write_bytes(b"x")


async def change_file(arena):
    (path,) = (arena.fragments / HIDDEN).glob("0*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def append_to_probe(arena):
    await arena.append(PROBES[1], b"ready, but not the pulse's\n")


async def test_whatever_is_touched_is_reported(etcd_binary, tmp_path):
    async with Arena(tmp_path / "fuzz", etcd_binary) as arena:
        assert await arena.touched() == ""
        await arena.renew()
        assert await arena.touched() == ""
        for plant, *told in [
            (change_spec, "spec of probe/one is "),
            (delete_savepoint, "savepoint kobold-point is None, and was b"),
            (add_file, "there is file forged now"),
            (append_to_probe, "probe/two holds b\"ready, but not the pulse's"),
            (change_file, "file 0000", f" is '{HIDDEN}: reading"),
            (
                change_registers,
                f"registers of {HIDDEN} is ",
                f"head of {HIDDEN} is 761, and was 760",
                f"content of {HIDDEN}, read at broker 0 is ",
                f"content of {HIDDEN}, read at broker 1 is ",
            ),
        ]:
            async with asyncio.timeout(patient(30)):
                await plant(arena)
                found = await arena.touched()
            for text in told:
                assert text in found, (plant, found)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"ready\nready\npulse 1\npulse 2\n", ""),
        (b"ready\npulse 1\npulse 3\n", "b'pulse 3\\n' behind turn 1 of the pulse"),
        (b"ready\npulse 1\npulse 1\n", "b'pulse 1\\n' behind turn 1 of the pulse"),
        (b"ready\npulse 1\nready\n", "b'ready\\n' behind turn 1 of the pulse"),
        (b"pulse 1", "b'pulse 1' behind turn 0 of the pulse"),
    ],
)
def test_a_journal_of_the_pulse_holds_its_turns(content, problem):
    assert pulse_problem(content) == problem
