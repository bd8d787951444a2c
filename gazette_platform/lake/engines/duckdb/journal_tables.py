"""Tables of journals without a table spec: one is inferred from samples of their content.

Apart from `names`, since what infers takes long to import, and most queries do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from gazette_platform.errors import GazetteError, LakeError, SchemaMismatch, ValidationError
from gazette_platform.lake.engines.duckdb.names import called, selectors_of
from gazette_platform.lake.inference.infer import Inference, format_of, infer_spec, refusal
from gazette_platform.lake.inference.sampling import (
    BrokerContent,
    Sample,
    SampleLimits,
    require_whole_lines,
    sample_lines,
    served,
    spread,
)
from gazette_platform.lake.spec.folder import or_meant
from gazette_platform.lake.spec.formats import Kind
from gazette_platform.lake.spec.layout import Layout
from gazette_platform.ops.text import counted
from gazette_platform.protocol import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import Client, JournalListing
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import JournalSpec

# Of the spec, until it is saved.
_NAME: Final = "journals.inferred"
_SHOWN: Final = 3
_LIMITS: Final = SampleLimits()
# Of each place in all journals together, if they are few: 2 MiB are read whole, in about a second.
_BYTES_OF_FEW: Final = 512 << 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InferredTable:
    """Journals as a table, by a spec that was inferred."""

    name: str
    """As a query calls it: ``journal('events/')``."""
    inference: Inference
    samples: tuple[Sample, ...]
    """What was read to infer it."""
    journals: int
    """How many match and hold content."""
    journals_read: int
    """How many were looked into."""

    @property
    def spec(self) -> TableSpec:
        """The spec, named as queries call the table."""
        return msgspec.structs.replace(self.inference.spec, name=self.name)

    @property
    def is_read_whole(self) -> bool:
        """Whether all content was read to infer the spec."""
        of_journals = {sample.journal: sample.journal_bytes for sample in self.samples}
        read = sum(sample.end - sample.begin for sample in self.samples)
        return self.journals_read == self.journals and read == sum(of_journals.values())


def infer_table(client: Client, name: str) -> InferredTable:
    """Infer a table of the journals that `name` means: one journal, a prefix that ends in ``/``, or a selector.

    Raises: ValidationError: no journal matches. SchemaMismatch: there is no record yet, or content is neither
        JSON nor CSV, or some is of each. LakeError, TransportError: a journal cannot be read.
    """
    table = called(name)
    selector, listings = _matching(client, name)
    journals = [listing.spec for listing in listings]
    able = {journal.name for journal in served(journals)}
    heads = client.run(
        client.asynchronous.write_heads([each for each in listings if each.name in able])
    )
    content = BrokerContent(client)
    lines: dict[str, list[bytes]] = {}
    samples: list[Sample] = []
    holding = [journal for journal in journals if heads.get(journal.name)]
    chosen = spread(holding, _LIMITS.journals_max)
    limits = replace(_LIMITS, sample_bytes=_sample_bytes(len(chosen)))
    for journal in chosen:
        lines[journal.name], read = sample_lines(content, [journal], limits)
        samples += read
    every = [line for of_one in lines.values() for line in of_one]
    if not any(line.strip() for line in every):
        require_whole_lines(every, samples)
        raise SchemaMismatch(
            f"{table}: {counted(len(journals), 'journal')} without a record, so there are no columns: append some "
            f"first (`gazctl journals append -l name={journals[0].name} -i FILE`)"
        )
    inference = infer_spec(
        _NAME,
        selector,
        every,
        journals if _have_one_layout(journals) else (),
        data_format=_format(table, lines),
        called=table,
    )
    return InferredTable(
        name=table,
        inference=inference,
        samples=tuple(samples),
        journals=len(holding),
        journals_read=len(lines),
    )


def _sample_bytes(journals: int) -> int:
    """Return how many bytes to read of each place in a journal: the fewer journals, the more."""
    return max(_LIMITS.sample_bytes, _BYTES_OF_FEW // max(journals, 1))


def _matching(client: Client, name: str) -> tuple[str, list[JournalListing]]:
    """Return the first selector that `name` may mean and that matches journals, and these.

    Raises: ValidationError: there is none; names journals that may be meant.
    """
    table = called(name)
    readings = selectors_of(name)
    for selector in readings:
        try:
            parsed = LabelSelector.parse(selector)
        except ValidationError as err:
            if len(readings) > 1:  # it looks like a selector, and is a name
                continue
            raise ValidationError(
                f"{table}: not a journal's name, a prefix that ends in `/`, or a selector such as "
                f"`name:prefix=events/,region=eu`: {err}"
            ) from err
        if found := list(client.list(parsed)):
            return selector, found
    try:
        names = [listing.name for listing in client.list()]
    except GazetteError:  # a token may allow some journals only
        names = []
    prefixes = {each[: i + 1] for each in names for i, sign in enumerate(each) if sign == "/"}
    raise ValidationError(
        f"{table}: no such journals (`gazctl journals list` shows which there are; a name that ends in `/` is a "
        f"prefix){or_meant([name], {*names, *prefixes})}"
    )


def _have_one_layout(journals: Sequence[JournalSpec]) -> bool:
    """Whether types of partition columns can be inferred. Without, they are found in paths, as strings."""
    try:
        Layout.of_journals(journal.name for journal in journals)
    except LakeError:
        return False
    return True


def _format(table: str, lines: Mapping[str, list[bytes]]) -> Literal["json", "csv"]:
    """Return the format that all journals have.

    Raises: SchemaMismatch: one has none, or another one.
    """
    journals: dict[tuple[Literal["json", "csv"], str], list[str]] = {}
    for journal, of_one in lines.items():
        found = format_of(of_one)
        if what := refusal(found):
            raise SchemaMismatch(
                f"{table}: the content of {journal} {what}, or name other journals"
            )
        if found.kind is not Kind.EMPTY:
            is_json = found.kind is Kind.JSON_LINES
            kind: Literal["json", "csv"] = "json" if is_json else "csv"
            journals.setdefault((kind, "" if is_json else found.delimiter or ","), []).append(
                journal
            )
    if len(journals) > 1:
        told = "; ".join(
            f"{kind.upper()}{f' with {delimiter!r}' if delimiter not in {'', ','} else ''}: {', '.join(each[:_SHOWN])}"
            f"{' …' if len(each) > _SHOWN else ''}"
            for (kind, delimiter), each in sorted(journals.items())
        )
        first = next(iter(journals.values()))[0]
        raise SchemaMismatch(
            f"{table}: journals have different formats, and a table has one ({told}): name those of one format, "
            f"such as {called(first)}"
        )
    return next(iter(journals))[0]
