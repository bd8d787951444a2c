"""A primary's side of Replicate: what the answers of its peers amount to. Pure: no I/O.

A pipeline is one stream to each peer. Every proposal that asks for an answer goes to all peers, and
each peer answers in order. So all peers have as many proposals as the smallest of their counts.

The order of peers is that of the route, which is the same at every broker: a count or an answer needs
no name beside it, and of several faults every run reports the same one.

    state     event                       effect
    --------  --------------------------  ----------------------------------------------------------
    STEADY    Replied(OK), the last one   Settled(how many proposals all peers have by now)
              Replied(OK), others missing none
              Replied(other)              Broke(unexpected !OK response)
              Replied, nothing asked      Broke(unexpected response)
              Failed                      Broke
    SYNCING   Replied, the last one       Gathered(what the answers amount to together)
              Failed                      Broke(gatherSync: ...)
    BROKEN    anything                    none: only the first error counts

Source: Gazette broker/pipeline.go. Departs: a peer may say at a later revision that it does not serve
the journal at all, and not only that its route has changed. It is believed in both cases, and the
journal is resolved again; in Go, the append fails in the first case.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, final

from gazette_platform.broker.replicate.replica_fsm import response_text
from gazette_platform.protocol import Fragment, Header, LabelSet, ProcessId, Route, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Broke",
    "Effect",
    "Event",
    "Failed",
    "Gathered",
    "PipelineFSM",
    "Replied",
    "Reply",
    "Settled",
    "SyncOutcome",
    "sync_outcome",
]


@dataclass(frozen=True, slots=True)
class Reply:
    """A peer's answer to a proposal."""

    status: Status
    header: Header | None = None
    fragment: Fragment | None = None
    registers: LabelSet | None = None


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """What the answers to a sync amount to. If all fields are zero, every peer is where we are."""

    roll_to: int = 0
    registers: LabelSet | None = None
    """Those of the peer that is furthest ahead; None: keep ours."""
    read_revision: int = 0
    """The revision at which a peer knows another route; 0: none does."""
    error: str = ""


# Statuses with which a peer says that the route is not, or not any more, the one that we know.
_ELSEWHERE = frozenset(
    {Status.WRONG_ROUTE, Status.NOT_JOURNAL_BROKER, Status.JOURNAL_NOT_FOUND, Status.SUSPENDED}
    | {Status.INSUFFICIENT_JOURNAL_BROKERS}
)


def sync_outcome(
    replies: Sequence[tuple[ProcessId, Reply]], *, own_end: int, route: Route, revision: int
) -> SyncOutcome:
    """Put the answers to a sync together.

    Args:
        replies: one of each peer, in the order of the route.
        own_end: end of the fragment that was proposed.
        route: as we knew it when the pipeline was built.
        revision: of the key space that `route` is from.
    """
    roll_to, read_revision = 0, 0
    registers: LabelSet | None = None
    for peer, reply in replies:
        header, fragment = reply.header, reply.fragment
        if reply.status is Status.OK:
            continue
        if reply.status in _ELSEWHERE and header is not None:
            is_other = not header.route.equivalent(route)
            if is_other and header.etcd.revision > revision:
                read_revision = max(read_revision, header.etcd.revision)
                continue
        elif reply.status is Status.PROPOSAL_MISMATCH and fragment is not None:
            if fragment.end > own_end:
                if fragment.end > roll_to:
                    roll_to, registers = fragment.end, reply.registers
                continue
            if fragment.end == own_end and fragment.content_length == 0:
                # The peer was behind, and begins a new fragment where we end. So must we, since its
                # spool lacks what precedes. Its registers may be older than ours, so we keep ours.
                roll_to = max(roll_to, own_end)
                continue
        kind = "WRONG_ROUTE" if reply.status is Status.WRONG_ROUTE else "response"
        text = response_text(reply.status, fragment)
        return SyncOutcome(error=f"gatherSync: recv from {peer}: unexpected {kind}: {text}")
    return SyncOutcome(roll_to, registers, read_revision)


# ---------------------------------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Replied:
    """The peer with this number answered."""

    peer: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream to the peer with this number ended or broke."""

    peer: int
    text: str
    """Begins with ``send to`` or ``recv from``."""


Event = Replied | Failed


# --------------------------------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class Settled:
    """All peers have the first `count` proposals that asked for an answer."""

    count: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """All peers answered a sync."""

    outcome: SyncOutcome


@dataclass(frozen=True, slots=True)
class Broke:
    """The pipeline cannot be used any more."""

    text: str


Effect = Settled | Gathered | Broke


class _State(Enum):
    STEADY = auto()
    SYNCING = auto()
    BROKEN = auto()


@final
class PipelineFSM:
    """The answers of the peers of one pipeline.

    Args:
        peers: the members of `route` other than ourselves, in its order; at least one.
        route: what the pipeline was built for.
        revision: of the key space that `route` is from.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_own_end",
        "_peers",
        "_replies",
        "_revision",
        "_route",
        "_state",
    )

    def __init__(self, peers: Sequence[ProcessId], *, route: Route, revision: int) -> None:
        self._peers = tuple(peers)
        self._route = route
        self._revision = revision
        self._state = _State.STEADY
        self._asked = 0
        self._answered = [0] * len(self._peers)
        self._own_end = 0
        self._replies: list[Reply | None] = []

    @property
    def is_broken(self) -> bool:
        """Whether the pipeline cannot be used any more."""
        return self._state is _State.BROKEN

    @property
    def unsettled(self) -> int:
        """How many proposals that ask for an answer some peer has not answered yet."""
        return self._asked - min(self._answered)

    def ask(self) -> int:
        """Note that a proposal which asks for an answer goes to all peers. Returns: its number, from 1."""
        if self._state is not _State.STEADY:
            raise RuntimeError(f"a proposal while {self._state.name}")
        self._asked += 1
        return self._asked

    def sync(self, own_end: int) -> None:
        """Note that a sync goes to all peers. Nothing may be unsettled then."""
        if self._state is not _State.STEADY or self.unsettled:
            raise RuntimeError(f"a sync while {self._state.name}, {self.unsettled} unsettled")
        self._state = _State.SYNCING
        self._own_end = own_end
        self._replies = [None] * len(self._peers)

    def step(self, event: Event) -> Effect | None:
        """Take one event. Returns: what follows, if anything does."""
        if self._state is _State.BROKEN:
            return None
        match event:
            case Failed(_, text):
                return self._break(f"gatherSync: {text}" if self._is_syncing else text)
            case Replied(peer, reply) if self._is_syncing:
                return self._on_sync_reply(peer, reply)
            case Replied(peer, reply):
                return self._on_reply(peer, reply)

    @property
    def _is_syncing(self) -> bool:
        return self._state is _State.SYNCING

    def _break(self, text: str) -> Broke:
        self._state = _State.BROKEN
        return Broke(text)

    def _on_reply(self, peer: int, reply: Reply) -> Effect | None:
        answered = self._answered
        text = response_text(reply.status, reply.fragment)
        if answered[peer] == self._asked:
            return self._break(f"recv from {self._peers[peer]}: unexpected response: {text}")
        if reply.status is not Status.OK:
            return self._break(f"recv from {self._peers[peer]}: unexpected !OK response: {text}")
        before = min(answered)
        answered[peer] += 1
        now = min(answered)
        return Settled(now) if now > before else None

    def _on_sync_reply(self, peer: int, reply: Reply) -> Effect | None:
        if self._replies[peer] is not None:
            text = response_text(reply.status, reply.fragment)
            return self._break(
                f"gatherSync: recv from {self._peers[peer]}: unexpected response: {text}"
            )
        self._replies[peer] = reply
        replies = [one for one in self._replies if one is not None]
        if len(replies) < len(self._peers):
            return None
        outcome = sync_outcome(
            list(zip(self._peers, replies, strict=True)),
            own_end=self._own_end,
            route=self._route,
            revision=self._revision,
        )
        if outcome.error:
            return self._break(outcome.error)
        self._state = _State.STEADY
        return Gathered(outcome)
