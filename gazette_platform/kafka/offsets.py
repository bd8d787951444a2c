"""ListOffsets and OffsetForLeaderEpoch.

A position in a topic is an offset of the journal, so the end of a partition is the write head. A time is looked up in two steps:
fragments that were stored before it cannot have a record of it, and then the records' own timestamps count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.failures import code_of
from gazette_platform.kafka.records import decode_lines
from gazette_platform.kafka.sequences import Sequences
from gazette_platform.kafka.tails import log_end, log_start
from gazette_platform.kafka.wire import Api
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Partition
    from gazette_platform.kafka.wire import Call

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_COMMITTED: Final = 1
# What a search by time reads at most of one journal.
_SEARCH_BYTES: Final = 512 << 20
# Records may be stored a while after the time that their producers gave them, and clocks differ.
_SLACK_S: Final = 300
_CHUNK_BYTES: Final = 1 << 20

_Place = tuple[int, int]
"""Offset and timestamp; -1: none."""


@final
class Offsets:
    """Answers ListOffsets and OffsetForLeaderEpoch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(2, "list_offsets", 1, 8, self._list)
        yield Api(23, "offset_for_leader_epoch", 2, 4, self._for_epoch)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def _list(self, call: Call) -> Any:
        is_committed = call.get("isolation_level", 0) == _COMMITTED
        topics = []
        for topic in call.request.topics:
            parts = [
                await self._part(call, topic.name, each, is_committed=is_committed)
                for each in topic.partitions
            ]
            topics.append(
                call.new("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts))
            )
        return call.new("ListOffsetsResponse", topics=tuple(topics))

    async def _part(self, call: Call, topic: str, wanted: Any, *, is_committed: bool) -> Any:
        error, place = ErrorCode.none, (-1, -1)
        try:
            partition = await self._gateway.partition(
                call.peer, Capability.READ, topic, wanted.partition_index
            )
            place = await self._place(partition, wanted.timestamp, is_committed=is_committed)
        except GazetteError as err:
            error = code_of(err)
        offset, ts = place
        return call.new(
            "ListOffsetsPartitionResponse",
            partition_index=wanted.partition_index,
            error_code=error,
            timestamp=ts,
            offset=offset,
            leader_epoch=0 if offset >= 0 else -1,
        )

    async def _place(self, partition: Partition, at: int, *, is_committed: bool) -> _Place:
        client, journal = self._gateway.client, partition.journal
        if at == _LATEST and is_committed:
            end = await client.append(journal, b"")
            return Sequences(end.registers).stable(end.end), -1
        head = await log_end(self._gateway, journal)
        if at == _LATEST:
            return head, -1
        if at in {_EARLIEST, _EARLIEST_LOCAL}:
            return await log_start(self._gateway, journal, head), -1
        if at == _MAX_TIMESTAMP:
            return await self._search(partition, head, 0, last=True)
        return await self._search(partition, head, at, last=False)

    async def _search(self, partition: Partition, head: int, at_ms: int, *, last: bool) -> _Place:
        """The first record at or after a time, or the one with the greatest time of what is looked at."""
        begin = await self._begin_of(partition.journal, head, at_ms, last=last)
        best: _Place = (-1, -1)

        def look(offset: int, ts: int, *_: object) -> None:
            nonlocal best
            if (last and ts >= best[1]) or (not last and ts >= at_ms and best[0] < 0):
                best = position + offset, ts

        reader = self._gateway.client.read(
            partition.journal,
            begin,
            end_offset=min(head, begin + _SEARCH_BYTES),
            on_jump="continue",
        )
        position, held = begin, b""
        if begin == head:
            return best
        async with reader:
            while (last or best[0] < 0) and (chunk := await reader.read(_CHUNK_BYTES)):
                held += chunk
                end = held.rfind(b"\n") + 1
                decode_lines(partition.form, held[:end], look)
                position, held = position + end, held[end:]
        return best

    async def _begin_of(self, journal: str, head: int, at_ms: int, *, last: bool) -> int:
        """Where a search begins: at a fragment, whose first line may be the rest of one."""
        if last:
            pages = [page async for page in self._gateway.client.fragment_pages(journal)]
            begins = [each.fragment.begin for page in pages for each in page.fragments]
            return max(begins, default=head)
        since = max(0, at_ms // 1000 - _SLACK_S)
        begins = []
        async for page in self._gateway.client.fragment_pages(journal):
            for each in page.fragments:
                if not each.is_persisted or each.fragment.mod_time >= since:
                    begins.append(each.fragment.begin)
        return min(begins, default=head)

    async def _for_epoch(self, call: Call) -> Any:
        """Every offset is of leader epoch 0, whose end is the write head."""
        topics = []
        for topic in call.request.topics:
            parts = []
            for each in topic.partitions:
                error, end = ErrorCode.none, -1
                try:
                    partition = await self._gateway.partition(
                        call.peer, Capability.READ, topic.topic, each.partition
                    )
                    end = await log_end(self._gateway, partition.journal)
                except GazetteError as err:
                    error = code_of(err)
                parts.append(
                    call.new(
                        "EpochEndOffset",
                        error_code=error,
                        partition=each.partition,
                        leader_epoch=0 if end >= 0 else -1,
                        end_offset=end,
                    )
                )
            topics.append(
                call.new("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(parts))
            )
        return call.new("OffsetForLeaderEpochResponse", topics=tuple(topics))
