"""A primary that slept past its lease, and wakes up to appends that were sent to it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, final

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.testing.local import AppendCall
from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.checker.history import Payload, payload_bytes
from tests.checker.recording import RecordingClient

if TYPE_CHECKING:
    from typing import Any

    from gazette_platform.client import AsyncClient
    from gazette_platform.testing.cluster import BrokerCluster
    from tests.chaos.scene import Scene

__all__ = ["StalePrimary"]

_POLL_S = 0.1
_PATIENCE_S = 30.0
_STALE_APPENDS = 8
_BYTES = 300


@final
class StalePrimary:
    """Let another broker take over a journal of one replica from a primary that sleeps. No other client uses it.

    With one replica no other broker is asked before an append is acknowledged: all that keeps the old
    primary from giving offsets away a second time is that it knows its lease to be gone.
    """

    def __init__(self, scene: Scene, cluster: BrokerCluster) -> None:
        self._scene = scene
        self._cluster = cluster
        self._count = 0

    async def inflict(self) -> None:
        """Do it, and record all answers, and what the journal holds.

        Raises: TooLate: no broker takes over, or the old primary does not end.
            GazetteError: the new one cannot be used. Cancellation: may leave a broker paused.
        """
        self._count += 1
        name = f"chaos-fenced/journal-{self._count:02d}"
        async with self._scene.client(retry_timeout_s=patient(_PATIENCE_S)) as client:
            recording = RecordingClient(client, self._scene.recorder, "fence")
            await client.apply([JournalChange(self._spec(name), "", 0)])
            await recording.append(name, self._payload("before"))
            # The sleeper is the only one that holds the journal: whoever goes on without it gives up
            # what it alone has. That is nothing, since all is stored.
            await client.flush(f"name={name}", timeout_s=patient(_PATIENCE_S))
            old = await self._primary(client, name, instead_of="")
            address = self._cluster.brokers[old].address.removeprefix("http://")
            async with grpc.aio.insecure_channel(address) as channel:
                stub = protocol_pb2_grpc.JournalStub(channel)  # type: ignore[no-untyped-call]
                await AppendCall(stub, name).commit()  # so that it is connected
                await self._take_over(client, recording, name, old, stub)
            await self._ended(old)
            async with recording.read(name) as reader:
                content = b"".join([piece async for piece in reader])
            self._scene.recorder.final(name, content)

    async def _take_over(
        self, client: AsyncClient, recording: RecordingClient, name: str, old: str, stub: Any
    ) -> None:
        self._cluster.pause(old)
        try:
            await self._primary(client, name, instead_of=old)
            await client.reset_head(name, give_up=True)
            await recording.append(name, self._payload("after"))
            calls = [AppendCall(stub, name) for _ in range(_STALE_APPENDS)]
            sent = [await self._send(call, number) for number, call in enumerate(calls)]
        finally:
            self._cluster.resume(old)
        await asyncio.gather(*(self._answer(name, *one) for one in zip(calls, sent, strict=True)))

    async def _send(self, call: AppendCall, number: int) -> Payload:
        payload = self._payload(f"stale-{number}")
        await call.send(payload_bytes(self._scene.recorder.seed, payload))
        return payload

    async def _answer(self, name: str, call: AppendCall, payload: Payload) -> None:
        recorder = self._scene.recorder
        op = recorder.invoke_append("stale", name, payload)
        try:
            answer = await call.commit()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as err:
            recorder.unknown(op, repr(err)[:200])
            return
        if answer.status == pb.OK:
            recorder.ok_append(op, begin=answer.commit.begin, end=answer.commit.end)
        else:
            recorder.fail(op, pb.Status.Name(answer.status))

    async def _primary(self, client: AsyncClient, name: str, *, instead_of: str) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patient(_PATIENCE_S)):
                while True:
                    primary = (await client.get(name)).route.primary_id
                    if primary is not None and primary.suffix != instead_of:
                        return primary.suffix
                    await pass_time(_POLL_S)
        raise TooLate(
            f"{name} has no primary but {instead_of or 'none'} after {patient(_PATIENCE_S):g} s"
        )

    async def _ended(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + patient(_PATIENCE_S)
        while loop.time() < until:
            if self._cluster.brokers[name].has_ended:
                return
            await pass_time(_POLL_S)
        raise TooLate(
            f"{name} slept past its lease, and has not ended after {patient(_PATIENCE_S):g} s"
        )

    def _payload(self, what: str) -> Payload:
        return Payload(f"fence-{self._count}-{what}", _BYTES)

    def _spec(self, name: str) -> JournalSpec:
        fragment = FragmentSpec(
            length=self._scene.config.fragment_length,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=5 * SECOND_NS,
        )
        return JournalSpec(name=name, replication=1, fragment=fragment)
