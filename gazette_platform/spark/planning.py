"""What the driver asks brokers: which journals there are, how far they reach, and who holds what of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_platform.errors import OffsetJump, ValidationError
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.framing import FIXED_HEADER, FIXED_MAGIC
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import require_same
from gazette_platform.spark.reading import Bounds, Range, pack, plan_range
from gazette_platform.spark.records import FIXED, TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.client import AsyncClient, JournalListing
    from gazette_platform.spark.options import Place, SourceOptions

_log = logging.getLogger(__name__)

_AT_A_TIME: Final = 16
# Of signed URLs: a task that begins later reads through brokers.
_URL_TTL_S: Final = 3600.0


class Found(NamedTuple):
    """What brokers say of a journal."""

    content_type: str
    head: int
    created: int
    """Which journal it is; see `protocol.identity`."""


Journals = dict[str, Found]
"""By name."""


async def find_journals(client: AsyncClient, options: SourceOptions) -> Journals:
    """The journals that match now.

    Raises: ValidationError: one has no content type of messages. TransportError. Cancellation: safe.
    """
    found = await client.list(options.selector)
    # Of one that is fully suspended nothing is stored.
    served: list[JournalListing] = [j for j in found if not j.spec.is_fully_suspended]
    heads = await client.write_heads(served)
    journals: Journals = {}
    for journal in served:
        try:
            content_type = framing_of_labels(journal.spec.labels).content_type
        except ValidationError as err:
            raise err.within(journal.name) from err
        journals[journal.name] = Found(content_type, heads[journal.name], journal.created)
    return journals


async def place_of(
    client: AsyncClient, place: Place, journals: Journals, side: str
) -> dict[str, int]:
    """Where reading begins or ends in each journal. One that offsets do not name is read whole.

    Args:
        side: for errors, ``starting`` or ``ending``.

    Raises: ValidationError: an offset is of no such journal, lies after its head, or within a message.
        SavepointNotFound. JournalReplaced: a savepoint's offset is of a journal that was deleted.
        TransportError.
    """
    heads = {name: one.head for name, one in journals.items()}
    if place.word:
        return heads if place.word == "latest" else dict.fromkeys(heads, 0)
    given, created = place.offsets, place.created
    if place.savepoint:
        named = await client.get_savepoint(place.savepoint)
        given = {name: offset for name, offset in named.offsets.items() if name in heads}
        created = named.created
    wrong = sorted(given.keys() - heads.keys())
    if wrong:
        raise ValidationError(
            f"names {', '.join(wrong)}, which the selector does not match", path=f"{side}Offsets"
        )
    path = f"{side}Savepoint" if place.savepoint else f"{side}Offsets"
    for name, offset in given.items():
        require_same(
            name,
            created.get(name, 0),
            journals[name].created,
            offset=offset,
            advice=f"name an offset of this one in {side}Offsets",
        )
        if offset > heads[name]:
            raise ValidationError(
                f"{name}: {offset} is behind the write head, {heads[name]}", path=path
            )
        if 0 < offset < heads[name] and await _is_within_message(
            client, name, offset, journals[name]
        ):
            raise ValidationError(
                f"{name}: {offset} is within a message (`_begin` and `_end` of rows are between messages)",
                path=path,
            )
    others = heads if side == "ending" else dict.fromkeys(heads, 0)
    return {**others, **given}


async def _is_within_message(client: AsyncClient, name: str, offset: int, journal: Found) -> bool:
    """Whether an offset is not between messages; of content types that are not ours it is not known.

    Content that is gone ended with a message, as fragments do.
    """
    content_type, head = journal.content_type, journal.head
    if content_type in TEXTS:
        before = await _bytes_at(client, name, offset - 1, offset)
        return before not in {b"", b"\n"}
    if content_type != FIXED:
        return False
    # What looks like the begin of a message may be within one, but not also lead to the begin of the next.
    for _ in range(2):
        header = await _bytes_at(client, name, offset, min(offset + FIXED_HEADER.size, head))
        if len(header) < FIXED_HEADER.size:
            return header != b""
        magic, length = FIXED_HEADER.unpack(header)
        if magic != FIXED_MAGIC:
            return True
        offset += FIXED_HEADER.size + length
        if offset >= head:
            break
    return offset > head


async def _bytes_at(client: AsyncClient, name: str, begin: int, end: int) -> bytes:
    """Return bytes [begin, end) of a journal; none, if the first of them is gone."""
    reader = client.read(name, begin, end_offset=end, direct=True, on_jump="continue")
    found = bytearray()
    try:
        async for piece in reader:
            if not found and reader.offset - len(piece) != begin:
                return b""
            found += piece
    finally:
        await reader.aclose()
    return bytes(found)


def no_match(options: SourceOptions, *, when: str = "") -> str:
    """Return what to say of a selector that matches no journal."""
    return (
        f"no journal with content matches {options.selector}{when} (write it as name=a/journal, or "
        "name:prefix=a/ for all below; `gazctl journals list` shows which there are)"
    )


async def ranges_of_batch(client: AsyncClient, options: SourceOptions) -> list[Range]:
    """What a batch reads of each journal.

    Raises: ValidationError: no journal matches, or one ends before it begins; and as `find_journals` and
        `place_of`. Cancellation: safe.
    """
    journals = await find_journals(client, options)
    if not journals:
        raise ValidationError(no_match(options))
    begins = await place_of(client, options.starting, journals, "starting")
    ends = await place_of(client, options.ending, journals, "ending")
    for name, end in ends.items():
        if end < begins[name]:
            raise ValidationError(
                f"{name}: {end} is before {begins[name]}, where reading begins",
                path="endingSavepoint" if options.ending.savepoint else "endingOffsets",
            )
    return [
        Range(
            journal=name,
            content_type=one.content_type,
            begin=begins[name],
            end=ends[name],
            created=one.created,
        )
        for name, one in sorted(journals.items())
    ]


async def splits_of(
    client: AsyncClient,
    options: SourceOptions,
    ranges: Iterable[Range],
    bounds: Bounds | None = None,
) -> list[tuple[Range, ...]]:
    """Splits of ranges, each existing byte in one of them.

    What was pruned before a journal's first byte is passed over where its range begins at 0.

    Raises: OffsetJump: a part of it is missing, and `onJump` is ``raise``. TransportError.
        Cancellation: safe.
    """
    bounds = bounds or Bounds()
    wanted = [one for one in ranges if one.begin < one.end and bounds.takes_journal(one.journal)]

    async def extents_of(one: Range) -> Sequence[Range]:
        listed = await client.fragments(one.journal, ttl_s=_URL_TTL_S)
        found, missing = plan_range(one, listed)
        for begin, end in missing:
            if begin > 0 and options.on_jump == "raise":
                raise OffsetJump(one.journal, begin, end)
            _log.info("%s: content from offset %d to %d is gone", one.journal, begin, end)
        if not options.committed or not found:
            return found
        # What is committed depends on all that came before: one task reads it in order.
        return [replace(one, begin=found[0].begin)]

    found = await side_by_side(extents_of, wanted, at_a_time=_AT_A_TIME)
    if options.committed:
        return [(one,) for of_journal in found for one in of_journal]
    kept = [one for of_journal in found for one in of_journal if bounds.takes(one)]
    return pack(kept, options.partition_bytes_max)
