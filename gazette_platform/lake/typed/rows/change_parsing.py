"""Blocks of a journal of changes as rows: their envelopes are taken apart, and `parsing` reads what is in them. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import structs

from gazette_platform.lake.typed.rows.envelopes import EnvelopeReader
from gazette_platform.lake.typed.rows.parsing import BadRecord, BlockParser, ParsedBlock
from gazette_platform.lake.typed.rows.reasons import REASON_CHARACTERS_MAX
from gazette_platform.lake.typed.rows.records import acks_of

if TYPE_CHECKING:
    from gazette_platform.lake.typed.rows.parsing import LookedBlock
    from gazette_platform.lake.typed_spec.spec import TypedSpec

__all__ = ["ChangeParser", "parser_of"]

_CUT = "ends within a record: there is no newline"


def parser_of(spec: TypedSpec) -> BlockParser | ChangeParser:
    """Return what parses a table's blocks. Not for several threads."""
    return ChangeParser(spec) if spec.change_data else BlockParser(spec)


@final
class ChangeParser:
    """Parses blocks of journals of envelopes, as `BlockParser` does those of records. Not for several threads.

    A message is a row, two rows of two keys, or none. If one of its rows is bad, all of it is.
    """

    def __init__(self, spec: TypedSpec) -> None:
        self._envelopes = EnvelopeReader(spec)
        self._messages = BlockParser(structs.replace(spec, columns=(), key=(), change_data=""))
        # Its UUID lies in the envelope, beside what is taken out of that.
        # Deletions have no other columns than the key's.
        columns = tuple(structs.replace(c, required=c.name in spec.key) for c in spec.columns)
        self._records = BlockParser(structs.replace(spec, uuid=(), columns=columns))

    def look(self, begin: int, content: bytes) -> LookedBlock:
        """See `BlockParser.look`."""
        return self._messages.look(begin, content)

    def parse(self, begin: int, content: bytes) -> ParsedBlock:
        """See `BlockParser.parse`."""
        looked = self.look(begin, content)
        *lines, cut = content.split(b"\n")
        read = self._envelopes.read(lines)
        found = self._records.parse(0, read.records)
        line_of = read.line_of
        bad = read.bad | {line_of[one.number]: one.reason for one in reversed(found.bad)}
        if cut:
            bad[len(lines)] = _CUT
        acks = set(pc.indices_nonzero(acks_of(looked.parts)).to_pylist())
        records = range(len(line_of)) if found.good is None else found.good.to_pylist()
        left_out = bad.keys() | acks
        kept = [line_of[at] not in left_out for at in records]
        rows = found.rows if all(kept) else found.rows.filter(pa.array(kept, pa.bool_()))
        good = [line_of[at] for at, is_kept in zip(records, kept, strict=True) if is_kept]
        times = Counter(good)
        rowless = [at for at in range(len(looked.begins)) if at not in left_out and at not in times]
        return ParsedBlock(
            parts=looked.parts,
            begins=looked.begins,
            ends=looked.ends,
            rows=rows,
            good=pa.array(good, pa.int64()),
            bad=tuple(
                BadRecord(at, bad[at][:REASON_CHARACTERS_MAX])
                for at in sorted(bad)
                if at not in acks
            ),
            rowless=pa.array(rowless, pa.int64()),
            doubled=pa.array([at for at, count in times.items() if count > 1], pa.int64()),
        )
