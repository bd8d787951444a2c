"""Samples of journals' content: some fragments of each, and what was appended last.

The bytes to read are bounded, however large the journals are, and however many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.client import Client
    from gazette_platform.protocol import JournalSpec

_READ_BYTES = 256 << 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """How much to read at most."""

    journals_max: int = 16
    """Journals to look into, spread over all by name."""
    sample_bytes: int = 128 << 10
    """Bytes of each of the up to four places in a journal."""


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes [begin, end) of a journal, and whether they begin or end amid a line."""

    journal: str
    begin: int
    end: int
    may_begin_amid: bool
    may_end_amid: bool
    journal_bytes: int = 0
    """All that there was of the journal."""


class JournalContent(Protocol):
    """Lists the content of a journal, and reads it."""

    def span(self, journal: str) -> tuple[int, int]:
        """The first byte that there is, and the write head."""
        ...

    def fragment_begin(self, journal: str, offset: int) -> int | None:
        """Where the first fragment begins that begins at `offset` or later, if there is one."""
        ...

    def read(self, journal: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), without those that are gone."""
        ...


@final
class BrokerContent:
    """A JournalContent that asks brokers. The client stays its caller's to close."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def span(self, journal: str) -> tuple[int, int]:
        """The first byte that there is, and the write head."""
        head = self._client.write_head(journal)
        begin = self.fragment_begin(journal, 0)
        return (head if begin is None else begin), head

    def fragment_begin(self, journal: str, offset: int) -> int | None:
        """Where the first fragment begins that begins at `offset` or later, if there is one."""
        page = self._client.fragment_page(journal, next_page_token=offset, page_limit=1)
        begins = [each.fragment.begin for each in page.fragments if each.fragment.content_length]
        return begins[0] if begins else None

    def read(self, journal: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), without those that are gone."""
        content = bytearray()
        reader = self._client.read(journal, begin, end_offset=end, on_jump="continue")
        with reader:
            while block := reader.read(_READ_BYTES):
                content += block
        return bytes(content)


def sample_lines(
    content: JournalContent, journals: Sequence[JournalSpec], limits: SampleLimits | None = None
) -> tuple[list[bytes], list[Sample]]:
    """Whole lines of the beginning, two places amid, and the end of each of some journals.

    Returns: the lines, and where they were read.
    Raises: GazetteError: a broker cannot be reached.
    """
    limits = limits or SampleLimits()
    lines: list[bytes] = []
    samples: list[Sample] = []
    for journal in spread(served(journals), limits.journals_max):
        for sample in _samples_of(content, journal.name, limits.sample_bytes):
            lines += _whole_lines(sample, content.read(sample.journal, sample.begin, sample.end))
            samples.append(sample)
    return lines, samples


def require_whole_lines(lines: Sequence[bytes], samples: Sequence[Sample]) -> None:
    """Refuse samples that hold parts of lines only: there are records, and longer ones.

    Raises: SchemaMismatch: says how to read more.
    """
    cut = [sample for sample in samples if sample.may_begin_amid or sample.may_end_amid]
    if cut and not any(line.strip() for line in lines):
        longest = max(sample.end - sample.begin for sample in cut)
        raise SchemaMismatch(
            f"{cut[0].journal}: no line ends within {longest} bytes: read more of them (--bytes), or "
            "select journals of lines"
        )


def served(journals: Iterable[JournalSpec]) -> list[JournalSpec]:
    """Those that may hold records: others are suspended in full, and no broker would say so."""
    return [journal for journal in journals if not journal.is_fully_suspended]


def spread(journals: Sequence[JournalSpec], count: int) -> list[JournalSpec]:
    """At most `count` of the journals, the first and the last among them.

    >>> spread(list("abcdefgh"), 3)
    ['a', 'd', 'h']
    """
    if len(journals) <= count:
        return list(journals)
    if count == 1:
        return [journals[0]]
    last = len(journals) - 1
    return [journals[index * last // (count - 1)] for index in range(count)]


def _samples_of(content: JournalContent, journal: str, length: int) -> list[Sample]:
    begin, head = content.span(journal)
    total = head - begin
    if total <= 4 * length:
        return [Sample(journal, begin, head, False, False, total)] if total else []
    begins = {begin: False}
    for n in (2, 3):
        amid = begin + total * n // 4
        # Fragments begin where an append does, so their first line is whole. What is in one alone, such as the
        # only append of a new user, is read from its middle all the same.
        found = content.fragment_begin(journal, amid)
        begins.setdefault(amid if found is None else found, found is None)
    samples: list[Sample] = []
    reached = begin
    for at, may_begin_amid in sorted(begins.items()):
        end = min(at + length, head)
        if at >= reached and end > at:
            samples.append(Sample(journal, at, end, may_begin_amid, end < head, total))
            reached = end
    tail = max(reached, head - length)
    if tail < head:
        samples.append(Sample(journal, tail, head, True, False, total))
    return samples


def _whole_lines(sample: Sample, content: bytes) -> list[bytes]:
    """Lines of a sample, without those that it may have cut. The last one may lack its newline."""
    lines = content.split(b"\n")
    # After the last newline comes part of a line, or no line at all.
    if sample.may_end_amid or not lines[-1]:
        lines = lines[:-1]
    return lines[1:] if sample.may_begin_amid else lines
