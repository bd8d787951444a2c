"""Fragments of orders, with bad records among them: the same for the same plan, and what is in them."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from gazette_platform.codecs import compressor
from gazette_platform.message.uuid import CLOCK_TICK, Flags, clock_of
from gazette_platform.protocol import CompressionCodec, Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["JOURNAL", "Plan", "Truth", "link_fragments", "write_fragments"]

JOURNAL: Final = "bench/orders"
_BATCH_BYTES: Final = 1 << 20  # what brokers compress at a time
_DAY: Final = "date=2026-01-02"
_BEGIN_NS: Final = 1_767_312_000_000_000_000  # 2026-01-02T00:00:00Z
_PRODUCERS: Final = ("0702030405aa", "0902030405bb", "0b02030405cc")
_COUNTRIES: Final = ("DE", "FR", "US", "JP", "BR", "ZA", "IN")
_STATUSES: Final = ("placed", "paid", "packed", "shipped", "returned")
_TAGS: Final = ("", '"new"', '"new","sale"', '"bulk","fragile","insured"')
_CITIES: Final = ("Springfield", "Köln", "São Paulo", "Lyon", "Durban", "Osaka")
_NOTES: Final = (
    "leave at the handle",
    "ring twice",
    "",
    "ask the neighbour",
)
_SPAN: Final = 100  # messages of a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write."""

    content_bytes: int
    """Of all fragments, uncompressed, about."""
    fragment_bytes: int = 64 << 20
    codec: str = "GZIP"
    bad_share: float = 0.0
    """Of records: a quarter each is truncated, no JSON, of a wrong type, no UTF-8."""
    transactions: bool = False
    """Whether each tenth span of 100 messages is a transaction, and the message after it is duplicated."""
    seed: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a way must find: of good committed messages, and how many records are bad."""

    content_bytes: int = 0
    stored_bytes: int = 0
    records: int = 0
    """Lines, ACKs and repetitions included."""
    rows: int = 0
    bad: int = 0
    order_ids: int = 0
    """Their sum, as the next two."""
    quantities: int = 0
    cents: int = 0

    def __add__(self, other: Truth) -> Truth:
        values = asdict(other)
        return Truth(**{name: value + values[name] for name, value in asdict(self).items()})

    @property
    def sums(self) -> tuple[int, int, int, int]:
        """What each way's table is compared by."""
        return (self.rows, self.order_ids, self.quantities, self.cents)


class _Writer:
    """Makes the records of one journal, fragment by fragment."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._clock = clock_of(_BEGIN_NS)
        self._number = 0

    def fragment(self) -> tuple[bytes, Truth]:
        """Records of one fragment, and what is in them."""
        parts: list[bytes] = []
        size, truth = 0, Truth()
        while size < self._plan.fragment_bytes:
            is_transaction = self._plan.transactions and self._number // _SPAN % 10 == 9
            content, found = self._span(in_transaction=is_transaction)
            parts.append(content)
            size += len(content)
            truth += found
        return b"".join(parts), replace(truth, content_bytes=size)

    def _span(self, *, in_transaction: bool) -> tuple[bytes, Truth]:
        lines: list[bytes] = []
        rows = bad = order_ids = quantities = cents_all = 0
        share, draw = self._plan.bad_share, self._random.random
        flags = int(Flags.CONTINUE_TXN if in_transaction else Flags.OUTSIDE_TXN)
        for _ in range(_SPAN):
            number = self._number
            self._number += 1
            producer = _PRODUCERS[0 if in_transaction else number % 3]
            quantity, cents = number % 17 + 1, number * 7919 % 9_000_000
            line = self._line(number, quantity, cents, self._uuid(producer, flags))
            if share and draw() < share:
                lines.append(_spoiled(line, bad + number))
                bad += 1
                continue
            lines.append(line)
            rows += 1
            order_ids += number
            quantities += quantity
            cents_all += cents
        if in_transaction:
            ack = self._uuid(_PRODUCERS[0], int(Flags.ACK_TXN))
            lines.append(b'{"_meta":{"uuid":"%b"}}\n' % ack.encode())
        elif self._plan.transactions and not share:
            lines.append(lines[-1])  # an append that was repeated: its clock is known
        found = Truth(
            records=len(lines),
            rows=rows,
            bad=bad,
            order_ids=order_ids,
            quantities=quantities,
            cents=cents_all,
        )
        return b"".join(lines), found

    def _uuid(self, producer: str, flags: int) -> str:
        self._clock += CLOCK_TICK
        clock = self._clock
        low, mid = clock >> 4 & 0xFFFFFFFF, clock >> 36 & 0xFFFF
        high, last = clock >> 52 | 0x1000, (clock & 0xF) << 10 | flags | 0x8000
        return f"{low:08x}-{mid:04x}-{high:04x}-{last:04x}-{producer}"

    def _line(self, number: int, quantity: int, cents: int, uuid: str) -> bytes:
        minute, micros = number // 60_000 % 1440, number * 977 % 60_000_000
        return (
            f'{{"_meta":{{"uuid":"{uuid}"}},"order_id":{number},'
            f'"placed_at":"2026-01-02T{minute // 60:02}:{minute % 60:02}:'
            f'{micros // 1_000_000:02}.{micros % 1_000_000:06}Z","day":"2026-01-02",'
            f'"customer no.":"c-{number * 31 % 200_003:06}","country":"{_COUNTRIES[number % 7]}",'
            f'"status":"{_STATUSES[number % 5]}","quantity":{quantity},'
            f'"amount":{cents // 100}.{cents % 100:02},"weight":{number % 9973 / 8},'
            f'"gift":{"true" if number % 11 == 0 else "false"},"tags":[{_TAGS[number % 4]}],'
            f'"address":{{"street":"Elm {number % 311}","city":"{_CITIES[number % 6]}",'
            f'"zip":{number % 90_000 + 10_000}}},"note":"{_NOTES[number % 4]}"}}\n'
        ).encode()


def _spoiled(line: bytes, kind: int) -> bytes:
    """A line as a record that cannot be kept."""
    match kind % 4:
        case 0:
            return line[: len(line) // 2] + b"\n"
        case 1:
            return b"Traceback (most recent call last):\n"
        case 2:
            return line.replace(b'"quantity":', b'"quantity":"about ').replace(
                b',"amount"', b'","amount"'
            )
        case _:
            return line.replace(b'"note":"', b'"note":"\xff\xfe')


def write_fragments(root: Path, plan: Plan) -> Truth:
    """Write the fragments of `plan` below `root`, as a broker would. Returns: what is in all of them.

    Existing ones, of the same plan or a larger one, are left as they are: `root` is of plans that differ
    in size alone.
    """
    notes = root / "truths.json"
    truths = [Truth(**each) for each in json.loads(notes.read_text())] if notes.exists() else []
    begin = sum(truth.content_bytes for truth in truths)
    if begin < plan.content_bytes:
        truths = list(_write_all(root, plan))
        notes.write_text(json.dumps([asdict(truth) for truth in truths]))
    found = Truth()
    for truth in truths:
        if found.content_bytes < plan.content_bytes:
            found += truth
    return found


def _write_all(root: Path, plan: Plan) -> Iterator[Truth]:
    writer, begin = _Writer(plan), 0
    codec = CompressionCodec[plan.codec]
    while begin < plan.content_bytes:
        content, found = writer.fragment()
        fragment = Fragment(
            JOURNAL,
            begin,
            begin + len(content),
            hashlib.sha1(content, usedforsecurity=False).digest(),
            codec,
            path_postfix=_DAY,
        )
        path = root / fragment.content_path
        path.parent.mkdir(parents=True, exist_ok=True)
        compress, view = compressor(codec), memoryview(content)
        with path.open("wb") as file:
            for at in range(0, len(view), _BATCH_BYTES):
                file.write(compress.compress(view[at : at + _BATCH_BYTES]))
            file.write(compress.finish())
        begin = fragment.end
        yield replace(found, stored_bytes=path.stat().st_size)


def link_fragments(source: Path, root: Path, plan: Plan) -> None:
    """Have `root` hold those of the fragments of `source` that `plan` is as large as."""
    folder = source / JOURNAL / _DAY
    for path in folder.iterdir():
        if int(path.name.partition("-")[0], 16) < plan.content_bytes:
            link = root / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(path)
