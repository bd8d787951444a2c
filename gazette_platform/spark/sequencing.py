"""What is known of producers behind a range of a journal, so that the next one can be read by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.lake.typed.planning.state import pruned
from gazette_platform.message.reading import MessageIterator, read_uncommitted
from gazette_platform.message.sequencer import (
    Envelope,
    ProducerState,
    Sequencer,
    SequencerCheckpoint,
)
from gazette_platform.message.uuid import Flags, UuidParts
from gazette_platform.spark.json_frames import JsonFrames
from gazette_platform.spark.reading import frames_of, line_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_platform.client import Client
    from gazette_platform.spark.options import SourceOptions
    from gazette_platform.spark.records import Block
    from gazette_platform.spark.splits import Range

__all__ = ["ProducerStates", "producers_behind"]

_IN_ORDER: Final = (int(Flags.CONTINUE_TXN), int(Flags.ACK_TXN))


def producers_behind(
    client: Client, one: Range, options: SourceOptions
) -> tuple[ProducerState, ...]:
    """What is known of producers behind a range.

    All of it is read, and looked at for UUIDs. What transactions hold does not matter: they are not read again. Content
    that is gone is passed over: whoever reads the range tells.

    Args:
        one: begins and ends between messages; with what is known before it.

    Raises: DataError: it is damaged. TransportError.
    """
    found = ProducerStates(one)
    frames = frames_of(one.content_type, options)
    if isinstance(frames, JsonFrames):
        for block in line_blocks(client, one.journal, one.begin, one.end):
            found.take_lines(block, frames)
    else:
        reading = read_uncommitted(
            client.asynchronous,
            one.journal,
            one.begin,
            framing=frames,
            end_offset=one.end,
            direct=True,
        )
        with MessageIterator(client, client.run(reading)) as batches:
            for batch in batches:
                found.take(batch)
    return found.states()


@final
class ProducerStates:
    """What is known of producers, from message to message.

    Args:
        one: the range whose messages come, with what is known before it.
    """

    def __init__(self, one: Range) -> None:
        self._journal = one.journal
        self._begin = one.begin
        self._states = {state.producer: state for state in one.producers}

    def take_lines(self, block: Block, frames: JsonFrames) -> None:
        """Take in the next messages: by columns, if all are outside of transactions."""
        parts = frames.parts(block.content)
        if parts is not None and _is_plain(parts):
            self._take_plain(parts)
        else:
            self.take(_envelopes(block, parts, frames))

    def _take_plain(self, parts: pa.StructArray) -> None:
        # Of these the order does not matter.
        table = pa.table({"producer": parts.field("producer"), "clock": parts.field("clock")})
        highest = table.group_by("producer").aggregate([("clock", "max")])
        for producer, clock in zip(*(highest.column(at).to_pylist() for at in (0, 1)), strict=True):
            known = self._states.get(producer)
            # Those of zeros are of nobody.
            if clock and (known is None or clock > known.last_ack):
                self._states[producer] = ProducerState(self._journal, producer, clock, -1)

    def take(self, messages: Iterable[Envelope[Any]]) -> None:
        """Take in the next messages, in their order."""
        sequencer = self._sequencer()
        for envelope in messages:
            sequencer.queue(envelope)
            if sequencer.replay is not None:
                sequencer.end_replay()
            while sequencer.dequeued is not None:
                sequencer.step()
        listed = sequencer.checkpoint(horizon=None).producers
        self._states = {state.producer: state for state in listed}

    def states(self) -> tuple[ProducerState, ...]:
        """Of producers that have published within a day, or have a transaction open."""
        return tuple(pruned(self._states).values())

    def _sequencer(self) -> Sequencer[Any]:
        # A message that it holds is never asked for.
        return Sequencer(
            ring_size=1,
            checkpoint=SequencerCheckpoint(
                offsets={self._journal: self._begin}, producers=tuple(self._states.values())
            ),
        )


def _is_plain(parts: pa.StructArray) -> bool:
    flags, clock = parts.field("flags"), parts.field("clock")
    in_order = pc.is_in(flags, pa.array(_IN_ORDER, pa.uint16()))
    tracked = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    return not pc.any(pc.and_(in_order, tracked)).as_py()


def _envelopes(
    block: Block, parts: pa.StructArray | None, frames: JsonFrames
) -> Iterator[Envelope[None]]:
    places = zip(block.begins.to_pylist(), block.ends.to_pylist(), strict=True)
    if parts is None:
        decode = frames.decoder().decode
        uuids = [decode(line).uuid for line in block.lines()]
    else:
        columns = (parts.field(name).to_pylist() for name in ("producer", "clock", "flags"))
        uuids = [UuidParts(*row) for row in zip(*columns, strict=True)]
    for (begin, end), uuid in zip(places, uuids, strict=True):
        yield Envelope(block.journal, begin, end, uuid, None)
