"""What brokers know of their cluster: journals, brokers, and who is assigned what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from typing_extensions import override

from gazette_platform.keyspace import values
from gazette_platform.keyspace.cluster_state import (
    ClusterItem,
    ClusterMember,
    ClusterState,
    SlotAssignment,
)
from gazette_platform.protocol import BrokerSpec, JournalSpec, ProcessId, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.etcd import KeyValue
    from gazette_platform.keyspace.keys import AssignmentKey

__all__ = ["Assignment", "BrokerState", "Item", "Member"]

Item: TypeAlias = ClusterItem[JournalSpec]
"""A journal."""

Member: TypeAlias = ClusterMember[BrokerSpec]
"""A broker."""


@dataclass(frozen=True, slots=True)
class Assignment(SlotAssignment[Route]):
    """A broker's slot of a journal. The primary has written the route: with members and primary, no endpoints."""

    @property
    def journal(self) -> str:
        """What is assigned."""
        return self.item

    @property
    def route(self) -> Route:
        """As the primary wrote it last."""
        return self.told


@final
class BrokerState(ClusterState[JournalSpec, BrokerSpec, Assignment]):
    """The typed view of a broker cluster's key space; read it only between two awaits."""

    @property
    def journals(self) -> Sequence[str]:
        """Names of journals, ascending. Live: do not keep it over an await."""
        return self._names

    def is_consistent(self, journal: str) -> bool:
        """Whether every assignment's value has the present route; true if there is none."""
        route = self.route_of(journal)
        return all(a.route.equivalent(route) for a in self.assignments_of(journal))

    @override
    def is_consistent_replica(self, assignment: Assignment) -> bool:
        """Whether the journal is: no replica is more consistent than another of its route."""
        return self.is_consistent(assignment.journal)

    @override
    def may_pack(self, item: str) -> bool:
        """Whether the journal is consistent, and will be so after it, since the route stays the same.

        Not before: it would cross the primary, which is about to write these values.
        """
        return self.is_consistent(item)

    @override
    def _decode_item(self, raw: bytes, name: str) -> JournalSpec:
        return values.decode_journal_spec(raw, name=name)

    @override
    def _decode_member(self, raw: bytes, process_id: ProcessId) -> BrokerSpec:
        return values.decode_broker_spec(raw, process_id=process_id)

    @override
    def _decode_assignment(
        self, key: AssignmentKey, kv: KeyValue, known: Assignment | None
    ) -> tuple[Assignment, Exception | None]:
        return Assignment.decoded(key, kv, values.decode_route, known)
