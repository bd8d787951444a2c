"""What a small append costs the broker's own Python: a broker in this process, called without gRPC."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, final

from benchmarks.bench import journal_spec
from benchmarks.figures import medians
from benchmarks.load import together
from gazette_platform.protocol.content import COMMIT_MARKER, encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import LocalBrokers

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Scale
    from benchmarks.figures import Figures
    from gazette_platform.broker.api.service import BrokerService

__all__ = ["measure_core"]

_JOURNAL = "bench/core"
_CONTENT = b"x" * 99 + b"\n"
_CONCURRENCY = (1, 16)
_APPENDS = 8_000  # of each run


@final
class _Content:
    """The messages of an append that follow its first, all of them here already."""

    __slots__ = ("_at", "_messages")

    def __init__(self, messages: tuple[bytes, ...]) -> None:
        self._messages = messages
        self._at = -1

    async def next(self) -> bytes | None:
        self._at += 1
        return self._messages[self._at] if self._at < len(self._messages) else None

    def take_all(self, bytes_max: int) -> list[bytes] | None:  # noqa: ARG002
        return [*self._messages]


async def measure_core(folder: Path, *, etcd: str, scale: Scale) -> Figures:
    """Microseconds of this process's CPU for an append of 100 B to a journal of one replica.

    From requests that wait, so many at a time, to their responses: decoded, checked, written to the
    spool, in the index. The broker does nothing else meanwhile.
    """
    await asyncio.to_thread(folder.mkdir)
    async with LocalBrokers(folder, etcd=etcd, prefix="/bench/core") as brokers:
        broker = await brokers.start(etcd_lease_s=30.0)
        await brokers.apply(brokers.stub(broker), journal_spec(_JOURNAL, "raw"))
        runs = [await _run(broker.service) for _ in range(scale.runs + 1)]
    return medians(runs[1:])  # the first one warms up


async def _run(service: BrokerService) -> Figures:
    first = pb.AppendRequest(journal=_JOURNAL).SerializeToString()
    messages = (encode_append_content(_CONTENT), COMMIT_MARKER)
    figures: Figures = {}
    for concurrency in _CONCURRENCY:
        each = _APPENDS // concurrency

        async def worker(count: int = each) -> None:
            for _ in range(count):
                await service.append(first, _Content(messages), {})

        begun = time.process_time()
        await together(worker, concurrency)
        spent_s = time.process_time() - begun
        figures[f"append_core_us_per_append_c{concurrency}"] = spent_s / _APPENDS * 1e6
    return figures
