"""What brokers know of their cluster: journals, brokers, and who is assigned what."""

from __future__ import annotations

import bisect
import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.keyspace import values
from gazette_platform.keyspace.keys import (
    AssignmentKey,
    ItemKey,
    MemberKey,
    parse_key,
)
from gazette_platform.protocol import BrokerSpec, JournalSpec, ProcessId, Route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.etcd import KeyValue

_log = logging.getLogger(__name__)

__all__ = ["Assignment", "BrokerState", "Changes", "Item", "Member"]

_NO_ROUTE = Route()


@dataclass(frozen=True, slots=True)
class Item:
    """A journal."""

    spec: JournalSpec
    mod_revision: int
    create_revision: int


@dataclass(frozen=True, slots=True)
class Member:
    """A broker."""

    spec: BrokerSpec
    mod_revision: int
    create_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A broker's slot of a journal; slot 0 is the primary.

    `route` is what the primary last told in the value: with members and primary, no endpoints.
    """

    journal: str
    process_id: ProcessId
    slot: int
    route: Route
    mod_revision: int
    create_revision: int
    key: str
    value: bytes
    lease: int


@dataclass(slots=True)
class Changes:
    """What the last update changed: for observers whose work is in the changes."""

    journals: set[str]
    """Journals of which the spec or an assignment was added, changed or removed."""
    members: set[ProcessId]
    """Added, changed or removed."""


@final
class BrokerState:
    """The typed view of a broker cluster's key space; read it only between two awaits.

    Reads cost a dictionary look-up. The names of journals are kept sorted, because lists of all
    of them are asked for often.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._items: dict[str, Item] = {}
        self._members: dict[ProcessId, Member] = {}
        self._assignments: dict[str, tuple[Assignment, ...]] = {}
        # If a member has several assignments of one journal: all of these but one.
        self._hidden: dict[str, dict[str, Assignment]] = {}
        self._newly_hidden: list[Assignment] = []
        self._by_member: dict[ProcessId, dict[str, Assignment]] = {}
        self._primaries: dict[ProcessId, int] = {}
        self._names: list[str] = []
        self._routes: dict[str, Route] = {}
        self._changes = Changes(set(), set())

    @property
    def items(self) -> Mapping[str, Item]:
        """Journals by name, in no order."""
        return MappingProxyType(self._items)

    @property
    def journals(self) -> Sequence[str]:
        """Names of journals, ascending. Live: do not keep it over an await."""
        return self._names

    @property
    def members(self) -> Mapping[ProcessId, Member]:
        """Brokers, in no order."""
        return MappingProxyType(self._members)

    @property
    def assignments(self) -> Mapping[str, tuple[Assignment, ...]]:
        """Assignments by journal, each in key order; holds also those of journals that are gone."""
        return MappingProxyType(self._assignments)

    def assignments_of(self, journal: str) -> tuple[Assignment, ...]:
        """Assignments of one journal in key order: by zone, suffix."""
        return self._assignments.get(journal, ())

    def assignments_to(self, process_id: ProcessId) -> Mapping[str, Assignment]:
        """Assignments of one broker, by key."""
        return MappingProxyType(self._by_member.get(process_id, {}))

    def primaries_of(self, process_id: ProcessId) -> int:
        """How many journals the broker is primary of."""
        return self._primaries.get(process_id, 0)

    def assignment_of(self, journal: str, process_id: ProcessId) -> Assignment | None:
        """The broker's assignment of the journal, if it has one."""
        for assignment in self.assignments_of(journal):
            if assignment.process_id == process_id:
                return assignment
        return None

    def route_of(self, journal: str) -> Route:
        """Assigned brokers in key order, the primary (slot 0), and endpoints ("" if unknown)."""
        route = self._routes.get(journal)
        if route is None:
            route = self._build_route(self.assignments_of(journal))
            if route.members:
                self._routes[journal] = route
        return route

    def is_consistent(self, journal: str) -> bool:
        """Whether every assignment's value tells the present route; true if there is none."""
        route = self.route_of(journal)
        return all(a.route.equivalent(route) for a in self.assignments_of(journal))

    @property
    def changes(self) -> Changes:
        """What the last update changed: for observers. The next update starts another record."""
        return self._changes

    # ----------------------------------------------------------- View of KeySpace

    def begin(self) -> None:
        """Start the record of changes of an update."""
        self._changes = Changes(set(), set())

    def end(self) -> None:
        """Log assignments that are left out. There is also one while an assignment moves to another slot."""
        for one in self._newly_hidden:
            if one.key in self._hidden.get(one.journal, ()):
                _log.warning(
                    "%s: %s is ignored: broker %s has another assignment of the journal (remove one)",
                    *(one.journal, one.key, str(one.process_id).strip()),
                )
        self._newly_hidden.clear()

    def put(self, kv: KeyValue) -> None:
        """Take a new value of a key.

        Raises: ValidationError: key or value cannot be decoded. A known item, member or
        assignment then keeps its last good value, with the revisions of the bad one.
        """
        key = parse_key(self._prefix, kv.key)
        match key:
            case ItemKey():
                self._put_item(key, kv)
            case MemberKey():
                self._put_member(key, kv)
            case AssignmentKey():
                self._put_assignment(key, kv)

    def remove(self, key: str) -> None:
        """Forget a key; none that is unknown."""
        try:
            parsed = parse_key(self._prefix, key)
        except ValidationError:
            return  # a bad entry, which was never taken
        match parsed:
            case ItemKey(name):
                if self._items.pop(name, None) is not None:
                    del self._names[bisect.bisect_left(self._names, name)]
                    self._changes.journals.add(name)
            case MemberKey(process_id):
                if self._members.pop(process_id, None) is not None:
                    self._member_changed(process_id)
                    if not self._primaries.get(process_id):
                        self._primaries.pop(process_id, None)
            case AssignmentKey(journal, process_id):
                if self._find(journal, process_id, key) is not None:
                    self._set_assignments(
                        journal, [a for a in self._all_of(journal) if a.key != key]
                    )

    def _put_item(self, key: ItemKey, kv: KeyValue) -> None:
        known = self._items.get(key.item)
        try:
            spec = values.decode_journal_spec(kv.value, name=key.item)
        except Exception:
            if known is not None:
                self._items[key.item] = Item(known.spec, kv.mod_revision, kv.create_revision)
                self._changes.journals.add(key.item)
            raise
        if known is None:
            bisect.insort(self._names, key.item)
        self._items[key.item] = Item(spec, kv.mod_revision, kv.create_revision)
        self._changes.journals.add(key.item)

    def _put_member(self, key: MemberKey, kv: KeyValue) -> None:
        known = self._members.get(key.process_id)
        try:
            spec = values.decode_broker_spec(kv.value, process_id=key.process_id)
        except Exception:
            if known is not None:
                self._members[key.process_id] = Member(
                    known.spec, kv.mod_revision, kv.create_revision, kv.lease
                )
                self._member_changed(key.process_id)
            raise
        self._members[key.process_id] = Member(spec, kv.mod_revision, kv.create_revision, kv.lease)
        self._member_changed(key.process_id)

    def _put_assignment(self, key: AssignmentKey, kv: KeyValue) -> None:
        known = self._find(key.item, key.process_id, kv.key)
        error: Exception | None = None
        try:
            route = values.decode_route(kv.value)
        except Exception as err:
            if known is None:
                raise
            route, error = known.route, err
        assignment = Assignment(
            journal=key.item,
            process_id=key.process_id,
            slot=key.slot,
            route=route,
            mod_revision=kv.mod_revision,
            create_revision=kv.create_revision,
            key=kv.key,
            value=kv.value,
            lease=kv.lease,
        )
        others = [a for a in self._all_of(key.item) if a.key != kv.key]
        self._set_assignments(key.item, sorted([*others, assignment], key=lambda a: a.key))
        if error is not None:
            raise error

    def _find(self, journal: str, process_id: ProcessId, key: str) -> Assignment | None:
        found = self._by_member.get(process_id, {}).get(key)
        return found or self._hidden.get(journal, {}).get(key)

    def _all_of(self, journal: str) -> list[Assignment]:
        """Assignments of a journal, with those that are left out."""
        return [*self.assignments_of(journal), *self._hidden.get(journal, {}).values()]

    def _set_assignments(self, journal: str, assignments: Sequence[Assignment]) -> None:
        for assignment in self.assignments_of(journal):
            process_id = assignment.process_id
            held = self._by_member[process_id]
            del held[assignment.key]
            if not held:
                del self._by_member[process_id]
            if assignment.slot == 0:
                self._primaries[process_id] -= 1
        shown: dict[ProcessId, Assignment] = {}
        hidden: dict[str, Assignment] = {}
        for assignment in assignments:
            process_id = assignment.process_id
            # Keys sort by slot as text: of two, mostly the lower slot stays.
            if shown.setdefault(process_id, assignment) is not assignment:
                hidden[assignment.key] = assignment
                continue
            self._by_member.setdefault(process_id, {})[assignment.key] = assignment
            if assignment.slot == 0:
                self._primaries[process_id] = self._primaries.get(process_id, 0) + 1
        if shown:
            self._assignments[journal] = tuple(shown.values())
        else:
            self._assignments.pop(journal, None)
        known = self._hidden.pop(journal, {})
        if hidden:
            self._hidden[journal] = hidden
            self._newly_hidden += [hidden[key] for key in hidden.keys() - known.keys()]
        self._routes.pop(journal, None)
        self._changes.journals.add(journal)

    def _member_changed(self, process_id: ProcessId) -> None:
        # Its endpoint is part of the routes of its journals.
        for assignment in self._by_member.get(process_id, {}).values():
            self._routes.pop(assignment.journal, None)
        self._changes.members.add(process_id)

    def _build_route(self, assignments: Sequence[Assignment]) -> Route:
        if not assignments:
            return _NO_ROUTE
        members = tuple(a.process_id for a in assignments)
        primary = next((n for n, a in enumerate(assignments) if a.slot == 0), -1)
        found = (self._members.get(member) for member in members)
        endpoints = tuple(m.spec.endpoint if m is not None else "" for m in found)
        return Route(members, primary, endpoints)
