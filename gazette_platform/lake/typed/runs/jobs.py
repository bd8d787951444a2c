"""What the driver of a run and its workers say to each other: a job, orders of it, and what workers wrote.

All of it travels: workers may be processes of this machine, or of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import ClientConfig
    from gazette_platform.lake.typed.files.written import WrittenFile
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.tables.upserts import Merger
    from gazette_platform.lake.typed_spec.spec import TypedSpec

__all__ = ["Job", "Output", "Workers"]


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
