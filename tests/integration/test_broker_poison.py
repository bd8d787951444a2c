"""A broker on a key space with values that no program writes on purpose."""

from __future__ import annotations

import pytest
from journal_specs import journal_spec

from gazette_platform.allocator import Allocator
from gazette_platform.keyspace import assignment_key
from gazette_platform.protocol import ProcessId, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import LocalBrokers, append
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


def spec(name):
    return journal_spec(name, refresh_s=3600)


async def test_a_journal_that_cannot_be_assigned_holds_up_no_other(
    etcd_server, etcd_prefix, tmp_path, monkeypatch
):
    step = Allocator._step

    def failing(allocator, name, loads):
        if name == "bad/journal":
            raise KeyError("unforeseen")
        return step(allocator, name, loads)

    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        brokers.expect(KeyError)
        broker = await brokers.start()
        stub = brokers.stub(broker)
        with monkeypatch.context() as patched:
            patched.setattr(Allocator, "_step", failing)
            request = pb.ApplyRequest()
            request.changes.add().upsert.CopyFrom(spec("bad/journal").to_pb())
            assert (await stub.Apply(request)).status == pb.OK
            await brokers.apply(stub, spec("good/journal"))
            assert isinstance(broker.faults.last, KeyError)
        assert broker.failure is None


async def test_poisoned_keys_end_no_broker_and_hold_up_no_other_journal(
    etcd_server, etcd_prefix, etcd, tmp_path
):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        broker = await brokers.start()
        stub = brokers.stub(broker)
        await brokers.apply(stub, spec("first/journal"))
        own = broker._context.process_id
        prefix = etcd_prefix
        poison = {
            assignment_key(prefix, "first/journal", own, 1): b"",  # it has slot 0
            f"{prefix}/assign/first/journal#{own.zone}#{own.suffix}#{'9' * 5000}": b"",
            assignment_key(prefix, "first/journal", ProcessId("z", "gone"), 7): b"\xff",
            assignment_key(prefix, "no/journal", ProcessId("zone-\udcff", "gone"), 0): b"",
            f"{prefix}/items/{'x' * 2000}": b"\xff",
            f"{prefix}/members/no#body": b"\xff",
        }
        for key, value in poison.items():
            await etcd.put(key, value)
        await etcd.put(assignment_key(prefix, "no/journal", ProcessId("zone", "gone"), 0), b"")
        await brokers.apply(stub, spec("second/journal"))
        for name in ("first/journal", "second/journal"):
            assert (await append(stub, name, b"content")).status == Status.OK
        # Another one finds all of them when it starts.
        other = await brokers.start()
        for one in (broker, other):
            assert (one.failure, one.faults.last) == (None, None)
        # Journals go on to be assigned: the first broker can leave.
        object.__setattr__(broker.config, "drain_timeout_s", None)
        await broker.drain()
        stub = brokers.stub(other)

        async def is_taken_over():
            response = await append(stub, "second/journal", b"content")
            return response.status == Status.OK

        await eventually(is_taken_over)
        assert (other.failure, other.faults.last) == (None, None)
        for key in poison:
            await etcd.delete(key)
