"""What the driver of a run and its workers say to each other: a job, orders of it, and what workers wrote.

All of it travels: workers may be processes of this machine, or of a cluster.

Jobs, orders, and what came of them, as bytes: workers may be processes of this machine, or of a cluster.

Driver and workers are of one release. A job names the release, which is checked before anything else.
"""

from __future__ import annotations

import io
import pickle  # Spark itself sends pickles, over the same wires
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import zstandard

from gazette_platform import errors
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.typed.planning.rounds import Done
from gazette_platform.lake.typed.planning.screening import TaskSummary
from gazette_platform.lake.typed.tables.writing import WrittenFile  # noqa: TC001  msgspec looks at it

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import ClientConfig
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.rounds import Order
    from gazette_platform.lake.typed.tables.upserts import Merger


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker has to know of a run, besides its order. It holds what opens brokers and stores: log it nowhere."""

    spec: TypedSpec
    schema: str
    """The typed table's, as Iceberg's JSON: with the ids that files are written with."""
    partitions: str
    """Its partition spec, as Iceberg's JSON."""
    location: str
    """Below it, rows are written; empty: they are only counted."""
    quarantine_schema: str
    """Of the quarantine table, likewise; it has no partitions."""
    quarantine_location: str
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's access to both locations."""
    client: ClientConfig = field(repr=False)
    """How to reach brokers, and stores by their files."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a worker wrote for an order: `Done.output`. No reader sees it before it is published."""

    files: tuple[WrittenFile, ...] = ()
    """Rows of the typed table."""
    quarantined: tuple[WrittenFile, ...] = ()
    """Rows of the quarantine table."""


class Workers(Protocol):
    """Who carries out orders."""

    @property
    def merger(self) -> Merger | None:
        """The engine for tables with a key; None: there is none, and such tables are refused."""
        ...

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """Carry out orders, side by side, and return the result of each, in their order.

        An order may be carried out more than once, by workers that die or are slow; what all but one wrote is left
        behind, for maintenance to remove.

        `Done.failure` says why one's content cannot be read.

        Raises: LakeError: workers, or the place that they write to, cannot be reached; nothing was published.
        """
        ...


_KEEP: Final = "begin"

# Fields have the names of types.
_Bytes = bytes


class _Done(msgspec.Struct, frozen=True, array_like=True):
    summary: _Bytes | None
    messages: _Bytes | None
    end: int
    typed: int
    quarantined: int
    files: list[WrittenFile] | None
    """None: there is no output."""
    quarantined_files: list[WrittenFile] | None
    failure: str


class _Error(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    text: str
    fields: dict[str, str | int | float | bool | None]


def dump_job(job: Job) -> bytes:
    """A job as bytes. It holds what opens brokers and stores: log it nowhere."""
    return _release().encode() + b"\n" + pickle.dumps(job)


def parse_job(content: bytes) -> Job:
    """The job that was dumped.

    Raises: LakeError: it is of another release.
    """
    release, _, pickled = content.partition(b"\n")
    found, own = release.decode(errors="replace"), _release()
    if found != own:
        raise LakeError(
            f"the driver is gazette-platform {found}, and this worker {own}: install the same release on both"
        )
    return cast("Job", pickle.loads(pickled))  # noqa: S301  see the import


def dump_order(order: Order) -> bytes:
    """An order as bytes: about one a message that is kept. It may hold signed URLs: log it nowhere."""
    keep = None if order.keep is None else _packed(pa.table({_KEEP: order.keep}))
    return zstandard.compress(pickle.dumps((replace(order, keep=None), keep)))


def parse_order(content: bytes) -> Order:
    """The order that was dumped, by the same release."""
    order, keep = pickle.loads(zstandard.decompress(content))  # noqa: S301  see the import
    if keep is not None:
        order = replace(order, keep=_unpacked(keep).column(_KEEP).combine_chunks())
    return cast("Order", order)


def dump_done(done: Done) -> bytes:
    """The result of an order, as bytes: about four a message, which takes 34 in memory."""
    output = cast("Output | None", done.output)
    return msgspec.msgpack.encode(
        _Done(
            summary=None if done.summary is None else done.summary.dump(),
            messages=None if done.messages is None else _packed(done.messages),
            end=done.end,
            typed=done.typed,
            quarantined=done.quarantined,
            files=None if output is None else list(output.files),
            quarantined_files=None if output is None else list(output.quarantined),
            failure=done.failure,
        )
    )


def parse_done(content: bytes) -> Done:
    """What was dumped.

    Raises: LakeError: it is something else.
    """
    try:
        found = msgspec.msgpack.decode(content, type=_Done)
        return Done(
            summary=None if found.summary is None else TaskSummary.parse(found.summary),
            messages=None if found.messages is None else _unpacked(found.messages),
            end=found.end,
            typed=found.typed,
            quarantined=found.quarantined,
            failure=found.failure,
            output=None
            if found.files is None
            else Output(files=tuple(found.files), quarantined=tuple(found.quarantined_files or ())),
        )
    except (msgspec.MsgspecError, pa.ArrowException, OSError) as err:
        raise LakeError(
            f"what a worker says of its order cannot be read ({err}): it is of another release, or damaged; run again"
        ) from err


def dump_error(error: GazetteError) -> bytes:
    """Why an order was not carried out, as bytes: the error's class, its text, and its fields that are plain."""
    known = next(one for one in type(error).__mro__ if one.__name__ in errors.__all__)
    fields = {k: v for k, v in vars(error).items() if isinstance(v, str | int | float | None)}
    return msgspec.msgpack.encode(_Error(known.__name__, str(error), fields))


def parse_error(content: bytes) -> GazetteError:
    """The error that was dumped, or one of the nearest class of `gazette_platform.errors`."""
    try:
        found = msgspec.msgpack.decode(content, type=_Error)
    except msgspec.MsgspecError as err:
        return LakeError(f"why a worker failed cannot be read ({err}): it is of another release")
    kind = getattr(errors, found.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, GazetteError)):
        kind = LakeError
    # Not by calling it, which would make the text again out of other arguments.
    error = kind.__new__(kind, found.text)
    vars(error).update(found.fields)
    return error


def _packed(table: pa.Table) -> bytes:
    """A table of rising offsets, and of clocks that nearly rise: a tenth of what it is in Arrow's format."""
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    others = [name for name in table.column_names if name not in numbers]
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression="zstd",
        use_dictionary=others or False,
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )
    return out.getvalue()


def _unpacked(content: bytes) -> Any:
    return pq.ParquetFile(pa.BufferReader(content)).read()


@cache
def _release() -> str:
    try:
        return version("gazette-platform")
    except PackageNotFoundError:
        return "of no release, for it is not installed"
