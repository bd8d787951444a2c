"""The state of a cluster: items, members, assignments, and the values that their keys hold.

`ClusterState` is what processes of any kind share; brokers (`BrokerState`) and consumers add what their values say, and
when all replicas of an item are consistent. Values are protobuf messages, as Gazette's own brokers read and write
them. Reading checks everything: any program that can reach etcd may have written a value.
"""

from __future__ import annotations

import bisect
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar, final

from google.protobuf.message import DecodeError
from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.keyspace.keys import AssignmentKey, ItemKey, MemberKey, parse_key
from gazette_platform.protocol import BrokerSpec, JournalSpec, ProcessId, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from gazette_platform.etcd import KeyValue

_log = logging.getLogger(__name__)


_NO_ROUTE = Route()


class ItemSpec(Protocol):
    """What the allocator has to know of an item."""

    def desired_replication(self, max_replication: int, /) -> int:
        """Replicas to have, given the upper bound of a process."""
        ...


class MemberSpec(Protocol):
    """What a process says of itself."""

    @property
    def id(self) -> ProcessId:
        """Who it is."""
        ...

    @property
    def endpoint(self) -> str:
        """Where it is reached."""
        ...

    @property
    def item_limit(self) -> int:
        """Most items that it may be assigned."""
        ...

    @property
    def exiting(self) -> bool:
        """Whether it hands over in order to exit."""
        ...

    def to_pb(self) -> Message:
        """The value of its key."""
        ...


S = TypeVar("S", bound=ItemSpec)
M = TypeVar("M", bound=MemberSpec)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ClusterItem(Generic[S]):
    """An item: a journal, or a shard."""

    spec: S
    mod_revision: int
    create_revision: int


@dataclass(frozen=True, slots=True)
class ClusterMember(Generic[M]):
    """A member: a broker, or a consumer process."""

    spec: M
    mod_revision: int
    create_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class SlotAssignment(Generic[V]):
    """A member's slot of an item; slot 0 is the primary."""

    item: str
    process_id: ProcessId
    slot: int
    told: V
    """The last good value of the key."""
    mod_revision: int
    create_revision: int
    key: str
    value: bytes
    lease: int
    """The assigned member's."""

    @classmethod
    def decoded(
        cls, key: AssignmentKey, kv: KeyValue, decode: Callable[[bytes], V], known: Self | None
    ) -> tuple[Self, Exception | None]:
        """The assignment of a key; with its former value, and the error, if the value is bad.

        Args:
            decode: a value. Raises: ValidationError.
            known: as it was before.

        Raises: ValidationError: the value is bad, and there is no former one.
        """
        error: Exception | None = None
        try:
            told = decode(kv.value)
        except Exception as err:
            if known is None:
                raise
            told, error = known.told, err
        assignment = cls(
            item=key.item,
            process_id=key.process_id,
            slot=key.slot,
            told=told,
            mod_revision=kv.mod_revision,
            create_revision=kv.create_revision,
            key=kv.key,
            value=kv.value,
            lease=kv.lease,
        )
        return assignment, error


A = TypeVar("A", bound=SlotAssignment[Any])


@dataclass(slots=True)
class Changes:
    """What the last update changed: for observers whose work is in the changes."""

    items: set[str]
    """Items whose spec or assignment was added, changed or removed."""
    members: set[ProcessId]
    """Added, changed or removed."""


class ClusterState(ABC, Generic[S, M, A]):
    """The typed view of a cluster's key space; read it only between two awaits.

    Reads cost a dictionary look-up. The names of items are kept sorted, because lists of all of
    them are asked for often.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._items: dict[str, ClusterItem[S]] = {}
        self._members: dict[ProcessId, ClusterMember[M]] = {}
        self._assignments: dict[str, tuple[A, ...]] = {}
        # If a member has several assignments of one item: all of these but one.
        self._hidden: dict[str, dict[str, A]] = {}
        self._newly_hidden: list[A] = []
        self._by_member: dict[ProcessId, dict[str, A]] = {}
        self._primaries: dict[ProcessId, int] = {}
        self._names: list[str] = []
        self._routes: dict[str, Route] = {}
        self._changes = Changes(set(), set())

    # ------------------------------------------------------- what kinds of clusters differ in

    @abstractmethod
    def _decode_item(self, raw: bytes, name: str) -> S:
        """The spec of an item. Raises: ValidationError."""

    @abstractmethod
    def _decode_member(self, raw: bytes, process_id: ProcessId) -> M:
        """The spec of a member. Raises: ValidationError."""

    @abstractmethod
    def _decode_assignment(
        self, key: AssignmentKey, kv: KeyValue, known: A | None
    ) -> tuple[A, Exception | None]:
        """See `SlotAssignment.decoded`."""

    @abstractmethod
    def is_consistent_replica(self, assignment: A) -> bool:
        """Whether the replica has all that the item needs, so that others may be removed."""

    @abstractmethod
    def may_pack(self, item: str) -> bool:
        """Whether assignments of the item may move to other slots merely to close gaps."""

    # ------------------------------------------------------------------------------- reading

    @property
    def items(self) -> Mapping[str, ClusterItem[S]]:
        """Items by name, in no order."""
        return MappingProxyType(self._items)

    @property
    def names(self) -> Sequence[str]:
        """Names of items, ascending. Live: do not keep it over an await."""
        return self._names

    @property
    def members(self) -> Mapping[ProcessId, ClusterMember[M]]:
        """Members, in no order."""
        return MappingProxyType(self._members)

    @property
    def assignments(self) -> Mapping[str, tuple[A, ...]]:
        """Assignments by item, each in key order; holds also those of items that are gone."""
        return MappingProxyType(self._assignments)

    def assignments_of(self, item: str) -> tuple[A, ...]:
        """Assignments of one item in key order: by zone, suffix."""
        return self._assignments.get(item, ())

    def assignments_to(self, process_id: ProcessId) -> Mapping[str, A]:
        """Assignments of one member, by key."""
        return MappingProxyType(self._by_member.get(process_id, {}))

    def primaries_of(self, process_id: ProcessId) -> int:
        """How many items the member is primary of."""
        return self._primaries.get(process_id, 0)

    def assignment_of(self, item: str, process_id: ProcessId) -> A | None:
        """The member's assignment of the item, if it has one."""
        for assignment in self.assignments_of(item):
            if assignment.process_id == process_id:
                return assignment
        return None

    def primary_of(self, item: str) -> A | None:
        """The assignment of slot 0, if there is one."""
        return next((a for a in self.assignments_of(item) if a.slot == 0), None)

    def route_of(self, item: str) -> Route:
        """Assigned members in key order, the primary (slot 0), and endpoints ("" if unknown)."""
        route = self._routes.get(item)
        if route is None:
            route = self._build_route(self.assignments_of(item))
            if route.members:
                self._routes[item] = route
        return route

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
            if one.key in self._hidden.get(one.item, ()):
                _log.warning(
                    "%s: %s is ignored: member %s has another assignment of it (remove one)",
                    *(one.item, one.key, str(one.process_id).strip()),
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
                    self._changes.items.add(name)
            case MemberKey(process_id):
                if self._members.pop(process_id, None) is not None:
                    self._member_changed(process_id)
                    if not self._primaries.get(process_id):
                        self._primaries.pop(process_id, None)
            case AssignmentKey(item, process_id):
                if self._find(item, process_id, key) is not None:
                    self._set_assignments(item, [a for a in self._all_of(item) if a.key != key])

    def _put_item(self, key: ItemKey, kv: KeyValue) -> None:
        known = self._items.get(key.item)
        try:
            spec = self._decode_item(kv.value, key.item)
        except Exception:
            if known is not None:
                self._items[key.item] = ClusterItem(known.spec, kv.mod_revision, kv.create_revision)
                self._changes.items.add(key.item)
            raise
        if known is None:
            bisect.insort(self._names, key.item)
        self._items[key.item] = ClusterItem(spec, kv.mod_revision, kv.create_revision)
        self._changes.items.add(key.item)

    def _put_member(self, key: MemberKey, kv: KeyValue) -> None:
        known = self._members.get(key.process_id)
        try:
            spec = self._decode_member(kv.value, key.process_id)
        except Exception:
            if known is not None:
                self._members[key.process_id] = ClusterMember(
                    known.spec, kv.mod_revision, kv.create_revision, kv.lease
                )
                self._member_changed(key.process_id)
            raise
        self._members[key.process_id] = ClusterMember(
            spec, kv.mod_revision, kv.create_revision, kv.lease
        )
        self._member_changed(key.process_id)

    def _put_assignment(self, key: AssignmentKey, kv: KeyValue) -> None:
        known = self._find(key.item, key.process_id, kv.key)
        assignment, error = self._decode_assignment(key, kv, known)
        others = [a for a in self._all_of(key.item) if a.key != kv.key]
        self._set_assignments(key.item, sorted([*others, assignment], key=lambda a: a.key))
        if error is not None:
            raise error

    def _find(self, item: str, process_id: ProcessId, key: str) -> A | None:
        found = self._by_member.get(process_id, {}).get(key)
        return found or self._hidden.get(item, {}).get(key)

    def _all_of(self, item: str) -> list[A]:
        """Assignments of an item, with those that are left out."""
        return [*self.assignments_of(item), *self._hidden.get(item, {}).values()]

    def _set_assignments(self, item: str, assignments: Sequence[A]) -> None:
        for assignment in self.assignments_of(item):
            process_id = assignment.process_id
            held = self._by_member[process_id]
            del held[assignment.key]
            if not held:
                del self._by_member[process_id]
            if assignment.slot == 0:
                self._primaries[process_id] -= 1
        shown: dict[ProcessId, A] = {}
        hidden: dict[str, A] = {}
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
            self._assignments[item] = tuple(shown.values())
        else:
            self._assignments.pop(item, None)
        known = self._hidden.pop(item, {})
        if hidden:
            self._hidden[item] = hidden
            self._newly_hidden += [hidden[key] for key in hidden.keys() - known.keys()]
        self._routes.pop(item, None)
        self._changes.items.add(item)

    def _member_changed(self, process_id: ProcessId) -> None:
        # Its endpoint is part of the routes of its items.
        for assignment in self._by_member.get(process_id, {}).values():
            self._routes.pop(assignment.item, None)
        self._changes.members.add(process_id)

    def _build_route(self, assignments: Sequence[A]) -> Route:
        if not assignments:
            return _NO_ROUTE
        members = tuple(a.process_id for a in assignments)
        primary = next((n for n, a in enumerate(assignments) if a.slot == 0), -1)
        found = (self._members.get(member) for member in members)
        endpoints = tuple(m.spec.endpoint if m is not None else "" for m in found)
        return Route(members, primary, endpoints)


AnyClusterState: TypeAlias = ClusterState[Any, Any, Any]
"""Of any kind of cluster, for code that is the same for all."""


# The generated modules stay near the wire (protocol, client, broker); here only their bytes pass.
_JOURNAL_SPEC = type(JournalSpec("name").to_pb())
_BROKER_SPEC = type(BrokerSpec(ProcessId("zone", "suffix"), "http://host").to_pb())
_ROUTE = type(Route().to_pb())

# Different routes that are remembered: more than a large cluster has, some MB at most.
_ROUTES_MAX = 4096


def encode_journal_spec(spec: JournalSpec) -> bytes:
    """The value of an item."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_journal_spec(raw: bytes, *, name: str) -> JournalSpec:
    """The journal of an item whose key says `name`.

    Raises: ValidationError: no such message, another name, or a broken rule.
    """
    spec = JournalSpec.from_pb(_parse(_JOURNAL_SPEC, raw))
    spec.validate()
    if spec.name != name:
        raise ValidationError(f"journal spec is of {spec.name!r}; the key says {name!r}")
    return spec


def encode_member_spec(spec: MemberSpec) -> bytes:
    """The value of a member, of whatever kind."""
    return spec.to_pb().SerializeToString(deterministic=True)


def encode_broker_spec(spec: BrokerSpec) -> bytes:
    """The value of a member."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_broker_spec(raw: bytes, *, process_id: ProcessId) -> BrokerSpec:
    """The broker of a member whose key says `process_id`.

    Raises: ValidationError: no such message, another id, or a broken rule.
    """
    spec = BrokerSpec.from_pb(_parse(_BROKER_SPEC, raw))
    spec.validate()
    if spec.id != process_id:
        raise ValidationError(f"broker spec is of {{{spec.id}}}; the key says {{{process_id}}}")
    return spec


def encode_route(route: Route) -> bytes:
    """The value of an assignment: members and primary, no endpoints."""
    return route.without_endpoints().to_pb().SerializeToString(deterministic=True)


@lru_cache(maxsize=_ROUTES_MAX)
def decode_route(raw: bytes) -> Route:
    """The route of an assignment; no value at all is a route without members and primary.

    All assignments of a journal have the same value, and journals share their brokers: the same
    bytes give the same object.

    Raises: ValidationError: no such message, or a broken rule.
    """
    if not raw:
        return Route()
    route = Route.from_pb(_parse(_ROUTE, raw))
    route.validate()
    return route


def _parse(message_class: Any, raw: bytes) -> Any:
    try:
        return message_class.FromString(raw)
    except DecodeError as err:
        name = message_class.DESCRIPTOR.name
        raise ValidationError(f"{len(raw)} bytes are no {name}: {err}") from err


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
        return decode_journal_spec(raw, name=name)

    @override
    def _decode_member(self, raw: bytes, process_id: ProcessId) -> BrokerSpec:
        return decode_broker_spec(raw, process_id=process_id)

    @override
    def _decode_assignment(
        self, key: AssignmentKey, kv: KeyValue, known: Assignment | None
    ) -> tuple[Assignment, Exception | None]:
        return Assignment.decoded(key, kv, decode_route, known)
