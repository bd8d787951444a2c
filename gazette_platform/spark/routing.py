"""Which journal each row of a write goes to, and the blocks of records in which tasks hand them to the driver.

The driver carries blocks, or they are in the staging journal. Spark may run a task twice, or lose it after half of its work: so no task
appends to the journals that are written to. What a task without a result has put into the staging journal stays until its retention ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.publisher import fnv1a32, modulo, rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gazette_platform.client import AsyncClient
    from gazette_platform.spark.frames import Layout
    from gazette_platform.spark.options import MappingName, SinkOptions


@final
@dataclass(frozen=True, slots=True)
class Targets:
    """Journals, in the brokers' order, as they were when the driver planned the write."""

    names: tuple[str, ...]
    content_types: tuple[str, ...]


async def find_targets(client: AsyncClient, options: SinkOptions) -> Targets:
    """The journals that a write may go to.

    Raises: ValidationError: there is none, one is of no content type, or is read only, or is the staging journal.
        TransportError. Cancellation: safe.
    """
    found = await client.list(options.selector)
    if not found:
        raise ValidationError(
            f"no journal matches {options.selector} (`gazctl journals list` shows which there are, "
            "`gazctl journals apply` makes one)"
        )
    if options.staging:
        staging = await client.list(f"name={options.staging}")
        if not staging:
            raise ValidationError(
                f"there is no journal {options.staging} (`gazctl journals apply` makes it)",
                path="stagingJournal",
            )
    types: list[str] = []
    for journal in found:
        if journal.name == options.staging:
            raise ValidationError(
                f"{journal.name} is among the journals to write to", path="stagingJournal"
            )
        if not journal.spec.flags.may_write:
            raise ValidationError(f"{journal.name}: its spec does not let anybody append to it")
        try:
            types.append(framing_of_labels(journal.spec.labels).content_type)
        except ValidationError as err:
            raise err.within(journal.name) from err
    return Targets(tuple(journal.name for journal in found), tuple(types))


@final
class Router:
    """Shares out rows among journals.

    Raises: ValidationError: nothing says how.
    """

    def __init__(self, targets: Targets, layout: Layout, mapping: MappingName) -> None:
        self._names = targets.names
        self._places = {name: place for place, name in enumerate(targets.names)}
        self._layout = layout
        self._mapping = mapping
        self._hashes = [fnv1a32(name.encode()) for name in targets.names]
        self._draw = random.Random()  # noqa: S311  nothing is kept secret by it
        if layout.journal and mapping:
            raise ValidationError(
                "column _journal says where rows go: leave out mapping, or the column"
            )
        if len(targets.names) > 1 and not mapping and not layout.journal:
            raise ValidationError(
                f"{len(targets.names)} journals match, as {targets.names[0]} and {targets.names[1]}: say which rows go "
                "where by mapping=random, modulo or rendezvous, or by a column _journal"
            )

    def share_out(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of each journal, by its place among the targets, in their order.

        Raises: DataError: a row names a journal that is none of them.
        """
        if not self._layout.journal and len(self._names) == 1:
            yield 0, rows
            return
        places = self._places_of(rows)
        # Stable: rows of a journal stay in their order.
        ordered = rows.take(pc.array_sort_indices(places))
        begin = 0
        for found in sorted(pc.value_counts(places).to_pylist(), key=lambda one: one["values"]):
            yield found["values"], ordered.slice(begin, found["counts"])
            begin += found["counts"]

    def _places_of(self, rows: pa.RecordBatch) -> pa.Array:
        if self._mapping == "random":
            count = len(self._names)
            return pa.array([self._draw.randrange(count) for _ in range(rows.num_rows)], pa.int32())
        column = rows.column(self._layout.journal or self._layout.key)
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        place_of = self._named if self._layout.journal else self._mapped
        places = [place_of(value) for value in _texts(encoded.dictionary)]
        return pc.take(pa.array(places, pa.int32()), encoded.indices)

    def _named(self, value: bytes | None) -> int:
        name = (value or b"").decode()
        place = self._places.get(name)
        if place is None:
            raise DataError(
                f"_journal of a row is {name if value is not None else None!r}, which is none of the "
                f"{len(self._names)} journals that the write may go to"
            )
        return place

    def _mapped(self, value: bytes | None) -> int:
        # NULL is a key like others, and the same as an empty text.
        key = value or b""
        if self._mapping == "modulo":
            return modulo(key, len(self._names))
        return rendezvous(key, self._hashes)


def _texts(values: pa.Array) -> list[bytes | None]:
    """Values as the bytes of their texts, as programs in other languages map them, too."""
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        values = values.cast(pa.string()).cast(pa.binary())
    found: list[bytes | None] = values.to_pylist()
    return found


CARRIED_BYTES_MAX: Final = 64 << 20
"""Of all that the driver carries for one write: it passes Spark's JVM, and is an append of one journal."""

# Less than this of a task is carried even if there is a staging journal: an append of its own would cost more.
_SMALL_BYTES: Final = 64 << 10
_STAGED_BYTES: Final = 16 << 20
# Of a block.
_READ_TIMEOUT_S: Final = 120.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole records of a journal."""

    journal: str
    length: int
    """Bytes."""
    begin: int = -1
    """Offset in the staging journal; -1: it is not there."""
    sha1: bytes = b""
    """Of the content; empty: it is not checked."""
    uuid_at: int = -1
    """Where in each line its UUID is to be; -1: they get none."""
    content: bytes | None = field(default=None, repr=False)
    """The records; None: they are in the staging journal only."""


@final
class Blocks:
    """Collects a task's records.

    Args:
        staging: name of the staging journal; empty: all is carried.
    """

    def __init__(self, client: AsyncClient, staging: str) -> None:
        self._client = client
        self._staging = staging
        self._held: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._held_bytes = 0
        self._blocks: list[Block] = []

    async def add(self, journal: str, records: bytes, *, uuid_at: int = -1) -> None:
        """Take in the next records of a journal.

        Args:
            uuid_at: as of `Block`.

        Raises: ValidationError: they are more than can be carried. GazetteError: the staging journal takes nothing.
        Cancellation: safe, as far as the task is given up then.
        """
        self._held[journal, uuid_at].append(records)
        self._held_bytes += len(records)
        if self._staging and self._held_bytes >= _STAGED_BYTES:
            await self._lay_down()
        elif self._held_bytes > CARRIED_BYTES_MAX:
            raise too_much(self._held_bytes)

    async def finish(self) -> tuple[Block, ...]:
        """All of the task, in order. Raises, cancellation: as `add`."""
        if self._staging and self._held_bytes >= _SMALL_BYTES:
            await self._lay_down()
        return (*self._blocks, *_carried(self._held))

    async def _lay_down(self) -> None:
        held, self._held, self._held_bytes = self._held, defaultdict(list), 0
        laid = await lay_down(self._client, self._staging, _carried(held))
        self._blocks += [replace(block, content=None) for block in laid]


async def lay_down(client: AsyncClient, staging: str, blocks: Sequence[Block]) -> list[Block]:
    """Append carried blocks to the staging journal, all together.

    Returns: the same blocks, with the places that they have there, too.
    Raises: GazetteError: it takes nothing. Cancellation: they may have been appended; it is unknown.
    """
    contents = [block.content or b"" for block in blocks]
    placed = await client.append(staging, contents)
    at, found = placed.begin, []
    for block, content in zip(blocks, contents, strict=True):
        sha1 = hashlib.sha1(content, usedforsecurity=False).digest()
        found.append(replace(block, begin=at, sha1=sha1))
        at += block.length
    return found


def too_much(length: int) -> ValidationError:
    """The error of a write that the driver cannot carry."""
    return ValidationError(
        f"{length >> 20} MiB of one write are more than the driver carries, {CARRIED_BYTES_MAX >> 20} MiB: name a journal "
        "in which tasks lay down what they write, or have less in a batch (of a stream, by maxBytesPerTrigger of its "
        "source)",
        path="stagingJournal",
    )


def _carried(held: Mapping[tuple[str, int], list[bytes]]) -> list[Block]:
    found: list[Block] = []
    for (journal, uuid_at), parts in held.items():
        content = b"".join(parts)
        if content:
            found.append(
                Block(journal=journal, length=len(content), content=content, uuid_at=uuid_at)
            )
    return found


async def content_of(client: AsyncClient, staging: str, block: Block) -> bytes:
    """The records of a block.

    Raises: DataError: they are not in the staging journal any more, or are others. TransportError.
        Cancellation: safe.
    """
    if block.content is not None:
        return block.content
    end = block.begin + block.length
    # It waits: a replica may learn of a commit a moment later.
    reader = client.read(staging, block.begin, block=True, end_offset=end)
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            content = b"".join([bytes(piece) async for piece in reader])
    except TimeoutError as err:
        raise DataError(
            f"{staging}: nothing up to offset {end} within {_READ_TIMEOUT_S} s, where an epoch is planned (was the journal "
            "deleted and recreated?)"
        ) from err
    finally:
        await reader.aclose()
    if block.sha1 and hashlib.sha1(content, usedforsecurity=False).digest() != block.sha1:
        raise DataError(
            f"{staging}: from offset {block.begin} to {end} is not what a task laid down there (was the journal deleted and "
            "recreated?)"
        )
    return content
