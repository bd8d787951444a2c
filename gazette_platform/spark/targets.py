"""Which journals a write goes to, and which row to which of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.publisher import fnv1a32, modulo, rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator

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
