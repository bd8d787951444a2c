"""When a broker counts as crashed, and who may say so. Pure: no clock, no socket, no etcd.

When a process dies, its keys stay in etcd until its lease ends, and no broker takes over its journals
meanwhile. Its peers can see the crash earlier: the kernel refuses connections to a port that no
process listens on. When two brokers of different zones both see that, one has etcd revoke the lease.

The state of one instance of a peer (its id, and the revision of its member key) at each broker:

    state   | connection accepted  | refused                          | anything else
    UNKNOWN | WELL                 | stays                            | stays
    WELL    | stays                | REFUSED                          | stays
    REFUSED | WELL                 | after `after_s`: ACCUSED, testify | WELL
    ACCUSED | WELL, withdraw       | testify again                    | WELL, withdraw

    ACCUSED, and another zone has testified later than we did first: evict.
    From any state: the peer announces that it exits, or is another instance: withdraw, forget it.

**Why no live process is evicted.** Only ECONNREFUSED counts: it is the answer of a host that is up
and has no listener at that port. A process that is stopped, slow or out of sockets still has its
listener, and the kernel completes connections for it; a host or network that is gone answers
nothing, or something else. Further:

* The instance must have accepted a connection of ours before. So no broker is accused over an address
  that never led to it (a wrong one, or one behind a proxy that is closed to us), nor while it starts:
  a broker binds its port before it announces itself.
* A broker that leaves says `exiting` in etcd before it closes its port, and no broker looks at it from
  then on. The broker that evicts *first* sees a refusal, and *then* reads in etcd that the member key
  is unchanged and not exiting. So a proper exit is not taken for a crash, however events interleave.
* If another process listens at the address by now, connections are accepted, and nothing happens.
* Each witness must have seen a refusal after the other had, by the order of revisions in etcd, so
  that two hiccups at different times do not add up. Also, the other witness must accept a connection
  of the one that evicts, at that moment: a broker whose own network refuses everything evicts no one.
* Each instance has its own lease, and etcd never grants a lease twice. So a revocation that comes late
  hits nothing else.

One case remains: an address that accepted connections before now refuses them for all zones at once,
while the broker lives (a firewall that rejects; a proxy or a service address whose backend is out).
Such a broker is of no use to its peers. It is evicted, stops itself, and has to be started again. Where
brokers advertise the address of a proxy that may refuse while they live, switch the crash watch off.

**Why an evicted broker that still lives acknowledges nothing.** Its assignments vanish with its lease,
in one revision. An append needs the acknowledgement of every other broker of the route. These end the
evicted broker's replication streams when that revision reaches them; the new primary then takes their
spools, which hold everything that was acknowledged before. A journal with one replica has no others to
ask. There the process itself refuses (`Membership`): it closes its port only once etcd knows that it leaves,
or once it has stopped acknowledging. From the moment at which its mirror of etcd lacks its member
key, or its lease has run out by its own clock, the outcome of every append is reported as unknown. It
learns that its lease is gone when it next renews it, at the latest (`LeaseLost`), and stops.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

from gazette_platform.ops.faults import backoff_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.protocol import ProcessId


LOOKS_MAX = 16
"""Looks at peers that may be under way at a time."""

# Seconds between two looks at a neighbour. Each broker is watched by two neighbours.
_LOOK_EVERY_S = 0.25
# Seconds between two looks at a broker that is not a neighbour: its neighbours may have crashed with it.
_SWEEP_EVERY_S = 2.0
# At most this many of these looks a second: in large clusters each broker is looked at less often.
_SWEEPS_PER_S = 16.0
# Seconds between two looks at a suspect: at first, and without agreement for `_ALONE_AFTER_S`.
_RECHECK_S = 0.1
_ALONE_AFTER_S = 3.0
_RECHECK_ALONE_S = 1.0
# Refusals in a row before an accusation. They also have to go on for `after_s`.
_REFUSALS_MIN = 3
# A peer that has not accepted anything yet is tried less and less often.
_UNKNOWN_S = (_LOOK_EVERY_S, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
_ETCD_RETRY_S = 0.5


class Seen(Enum):
    """How an attempt to connect went."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """ECONNREFUSED, from every address that the name has."""
    UNCLEAR = "unclear"
    """Timeout, reset, unreachable, no such name: it says nothing about the process."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the cluster, as its key in etcd describes it."""

    id: ProcessId
    create_revision: int
    mod_revision: int
    lease: int
    endpoint: str
    is_exiting: bool = False


# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members of the cluster, ourselves among them."""

    members: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """A call to this endpoint failed: look at it now."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Connected:
    """Answers `Connect`."""

    peer: Peer
    seen: Seen


@dataclass(frozen=True, slots=True)
class Accused:
    """Answers `Accuse`: our testimony is written at `revision`.

    Attributes:
        witnesses: all brokers that testify, with the revisions of their latest testimonies.
    """

    peer: Peer
    revision: int
    witnesses: Mapping[ProcessId, int]


@dataclass(frozen=True, slots=True)
class Refuted:
    """Answers `Accuse` or `Evict`: etcd, or a last look, contradicts us. Nothing was done."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Unheard:
    """Answers `Accuse` or `Evict`: etcd did not answer."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Evicted:
    """Answers `Evict`: the lease is revoked."""

    peer: Peer


Event = MembersChanged | Ticked | Hinted | Connected | Accused | Refuted | Unheard | Evicted


# ------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the peer's address, and close."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Accuse:
    """Testify in etcd that the peer refuses connections, if its member key is as we know it."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back our testimony about this instance."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Evict:
    """Look a last time, compare all of this with etcd, and have the peer's lease revoked."""

    peer: Peer
    own_revision: int
    """That of our latest testimony."""
    witness: Peer
    witness_revision: int
    """That of the witness's latest testimony."""


Effect = Connect | Accuse | Withdraw | Evict


class _State(Enum):
    UNKNOWN = "unknown"
    WELL = "well"
    REFUSED = "refused"
    ACCUSED = "accused"


@dataclass(slots=True)
class _Track:
    """What we think of one instance."""

    peer: Peer
    due_at: float
    state: _State = _State.UNKNOWN
    is_neighbour: bool = False
    is_busy: bool = False
    """An effect is under way."""
    attempts: int = 0
    refusals: int = 0
    refused_since: float = 0.0
    first_revision: int = 0
    """That of our first testimony in this accusation."""


@final
class CrashWatch:
    """What one broker thinks of all others.

    Args:
        own: id of this broker.
        after_s: seconds for which a peer has to refuse connections, more than 0.
    """

    def __init__(self, own: ProcessId, *, after_s: float) -> None:
        self._own = own
        self._after_s = after_s
        self._members: dict[ProcessId, Peer] = {}
        self._tracks: dict[ProcessId, _Track] = {}

    def next_due(self) -> float | None:
        """When the next look is due; None: there is no broker to look at."""
        return min((t.due_at for t in self._tracks.values() if not t.is_busy), default=None)

    def step(self, event: Event, now_s: float) -> list[Effect]:
        """Take an event.

        Args:
            now_s: monotonic seconds.

        Returns: what is to be done, in order.
        """
        match event:
            case MembersChanged(members):
                return self._members_changed(members, now_s)
            case Ticked():
                return self._looks(now_s)
            case Hinted(endpoint):
                for track in self._tracks.values():
                    if track.peer.endpoint == endpoint and track.state is _State.WELL:
                        track.due_at = now_s
                return []
            case _:
                found = self._tracks.get(event.peer.id)
                if found is None or found.peer != event.peer:
                    return []  # it is about another instance, or about this one before it changed
                return self._answered(found, event, now_s)

    # ------------------------------------------------------------------------------- members

    def _members_changed(self, members: tuple[Peer, ...], now_s: float) -> list[Effect]:
        self._members = {member.id: member for member in members}
        wanted = self._suspectable()
        effects: list[Effect] = []
        for process_id, track in list(self._tracks.items()):
            peer = wanted.get(process_id)
            if peer == track.peer:
                continue
            if track.state is _State.ACCUSED:
                effects.append(Withdraw(track.peer))
            # Another instance, or another address: what was seen says nothing about it. The same
            # one with another key (a new limit, say) starts over, so that no refusal from before
            # the change counts, but it need not accept again before it can be suspected.
            if peer is None or not _is_same_instance(peer, track.peer):
                del self._tracks[process_id]
            else:
                is_known = track.state is not _State.UNKNOWN
                self._tracks[process_id] = _Track(
                    peer, now_s, state=_State.WELL if is_known else _State.UNKNOWN
                )
        for process_id, peer in wanted.items():
            self._tracks.setdefault(process_id, _Track(peer, now_s))
        by_zone: dict[str, list[ProcessId]] = defaultdict(list)
        for process_id in sorted(self._members):
            by_zone[process_id.zone].append(process_id)
        for process_id, track in self._tracks.items():
            track.is_neighbour = self._own in self._neighbours(process_id, by_zone)
        return effects

    def _suspectable(self) -> dict[ProcessId, Peer]:
        """The members that may be found to have crashed."""
        # A broker that is not a member accuses no one: it would be the one that was cut off or
        # evicted.
        if self._own not in self._members:
            return {}
        zones: dict[str, int] = defaultdict(int)
        for process_id in self._members:
            zones[process_id.zone] += 1

        # Two witnesses of different zones have to agree. Where there cannot be two, looks would
        # lead nowhere.
        def can_be_agreed(process_id: ProcessId) -> bool:
            """Whether the others are in two zones at least."""
            return len(zones) - (zones[process_id.zone] == 1) >= 2

        return {
            process_id: peer
            for process_id, peer in self._members.items()
            if process_id != self._own
            and not peer.is_exiting
            and peer.lease
            # A Unix socket is seen from its own host only.
            and peer.endpoint.startswith(("http://", "https://"))
            and can_be_agreed(process_id)
        }

    def _neighbours(
        self, suspect: ProcessId, by_zone: Mapping[str, Sequence[ProcessId]]
    ) -> list[ProcessId]:
        """The two brokers that look at `suspect` often.

        They are of two zones, and of its own zone only if there are no two others. All brokers come to
        the same result.

        Args:
            by_zone: all members by their zones, in order.
        """
        found: list[ProcessId] = []
        # Any number that all brokers derive alike. Python's own hash of a text differs from process
        # to process.
        spread = zlib.crc32(suspect.name.encode())
        last = suspect.zone
        for zone in sorted(by_zone, key=lambda zone: (zone == last, zone < last, zone))[:3]:
            of_zone = by_zone[zone]
            first = spread % len(of_zone)
            at_zone = (of_zone[first], of_zone[(first + 1) % len(of_zone)])
            found += [process_id for process_id in at_zone if process_id != suspect][:1]
        return found[:2]

    # --------------------------------------------------------------------------------- looks

    def _looks(self, now_s: float) -> list[Effect]:
        busy = sum(track.is_busy for track in self._tracks.values())
        due = [t for t in self._tracks.values() if not t.is_busy and t.due_at <= now_s]
        # Suspects first: if many brokers are looked at, the one that refuses must not wait its
        # turn.
        due.sort(key=lambda t: (t.state not in (_State.REFUSED, _State.ACCUSED), t.due_at))
        chosen = due[: max(0, LOOKS_MAX - busy)]
        for track in chosen:
            track.is_busy = True
        return [Connect(track.peer) for track in chosen]

    def _answered(
        self,
        track: _Track,
        event: Connected | Accused | Refuted | Unheard | Evicted,
        now_s: float,
    ) -> list[Effect]:
        track.is_busy = False
        match event:
            case Connected(_, Seen.REFUSED):
                return self._refused(track, now_s)
            case Connected(_, seen):
                return self._not_refused(track, seen, now_s)
            case Accused(_, revision, witnesses):
                return self._testified(track, revision, witnesses, now_s)
            case Refuted():
                return self._acquit(track, now_s)
            case Unheard():
                track.due_at = now_s + _ETCD_RETRY_S
            case Evicted():
                # No hurry: its key is about to vanish from our mirror.
                track.due_at = now_s + _RECHECK_ALONE_S
        return []

    def _refused(self, track: _Track, now_s: float) -> list[Effect]:
        # It never accepted a connection of ours: it may still start, or its address is wrong or
        # closed to us.
        if track.state is _State.UNKNOWN:
            self._look_later(track, now_s)
            return []
        if track.state is _State.WELL:
            track.state, track.refusals, track.refused_since = _State.REFUSED, 0, now_s
            track.first_revision = 0
        track.refusals += 1
        # Both are asked for. Hints bring many looks in one moment; a loop that hung makes few of
        # them in a long time.
        is_long = now_s - track.refused_since >= self._after_s
        # This stays true while the peer refuses, so that an accusation is repeated.
        if is_long and track.refusals >= _REFUSALS_MIN:
            track.state, track.is_busy = _State.ACCUSED, True
            return [Accuse(track.peer)]
        track.due_at = now_s + _RECHECK_S
        return []

    def _not_refused(self, track: _Track, seen: Seen, now_s: float) -> list[Effect]:
        # Anything but a refusal acquits, a time-out too. Only a host that is up, without a
        # listener, refuses; a process that hangs must keep its lease.
        if track.state in (_State.REFUSED, _State.ACCUSED):
            return self._acquit(track, now_s)
        if seen is Seen.ACCEPTED:
            track.state = _State.WELL
        self._look_later(track, now_s)
        return []

    def _acquit(self, track: _Track, now_s: float) -> list[Effect]:
        was_accused = track.state is _State.ACCUSED
        track.state = _State.WELL
        self._look_later(track, now_s)
        return [Withdraw(track.peer)] if was_accused else []

    def _look_later(self, track: _Track, now_s: float) -> None:
        if track.state is _State.UNKNOWN:
            track.due_at = now_s + backoff_s(track.attempts, _UNKNOWN_S)
            track.attempts += 1
        elif track.is_neighbour:
            track.due_at = now_s + _LOOK_EVERY_S
        else:
            track.due_at = now_s + max(_SWEEP_EVERY_S, len(self._tracks) / _SWEEPS_PER_S)

    # ------------------------------------------------------------------------------ verdicts

    def _testified(
        self, track: _Track, revision: int, witnesses: Mapping[ProcessId, int], now_s: float
    ) -> list[Effect]:
        # It was acquitted while etcd was asked, and the withdrawal is on its way.
        if track.state is not _State.ACCUSED:
            return []
        track.first_revision = track.first_revision or revision
        for process_id, witness_revision in self._agreeing(witnesses):
            # A testimony from before ours may be of another hiccup. Ours is renewed while the peer
            # refuses, so the other side asks the same of us.
            if witness_revision > track.first_revision:
                track.is_busy = True
                witness = self._members[process_id]
                return [Evict(track.peer, revision, witness, witness_revision)]
        # No one agrees: perhaps only our own path is closed. Each look is a transaction in etcd, so
        # there are fewer from now on.
        is_alone = now_s - track.refused_since > _ALONE_AFTER_S + self._after_s
        track.due_at = now_s + (_RECHECK_ALONE_S if is_alone else _RECHECK_S)
        return []

    def _agreeing(self, witnesses: Mapping[ProcessId, int]) -> Iterable[tuple[ProcessId, int]]:
        """Testimonies of members of other zones than ours."""
        for process_id, revision in sorted(witnesses.items()):
            # Of another zone: a rack may be cut off as a whole, and all of its brokers would agree.
            if process_id.zone != self._own.zone and process_id in self._members:
                yield process_id, revision


def _is_same_instance(one: Peer, other: Peer) -> bool:
    return one.create_revision == other.create_revision and one.endpoint == other.endpoint
