"""A primary's side of Replicate: what its peers' answers amount to, decided without I/O.

A pipeline is one stream to each peer. Every proposal that asks for an answer goes to all of them,
and each answers in order; so "all peers have it" is the smallest count of answers among them.

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

Source: Gazette broker/pipeline.go. Departs: peers that say at a later revision that they do not
serve the journal (not only that its route is another) are believed, and the journal is resolved
anew, where Go's append fails.
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
    """What the answers to a sync amount to; all zero: every peer is where we are."""

    roll_to: int = 0
    registers: LabelSet | None = None
    """Of the peer that is furthest ahead; None: keep ours."""
    read_revision: int = 0
    """At which a peer knows another route."""
    error: str = ""


# Statuses by which a peer says that it is not (or not any more) in the route that we believe in.
_ELSEWHERE = frozenset(
    {Status.WRONG_ROUTE, Status.NOT_JOURNAL_BROKER, Status.JOURNAL_NOT_FOUND, Status.SUSPENDED}
    | {Status.INSUFFICIENT_JOURNAL_BROKERS}
)


def sync_outcome(
    replies: Sequence[tuple[ProcessId, Reply]], *, own_end: int, route: Route, revision: int
) -> SyncOutcome:
    """Put the answers to a sync together.

    Args: replies: of each peer, in the order of the route.
          own_end: of the fragment that was proposed.
          route, revision: what we knew when the pipeline was built.
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
                # It was behind, and begins anew where we end. So must we, since what precedes is
                # not in its spool; its registers may be older than ours.
                roll_to = max(roll_to, own_end)
                continue
        kind = "WRONG_ROUTE" if reply.status is Status.WRONG_ROUTE else "response"
        text = response_text(reply.status, fragment)
        return SyncOutcome(error=f"gatherSync: recv from {peer}: unexpected {kind}: {text}")
    return SyncOutcome(roll_to, registers, read_revision)


# ---------------------------------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Replied:
    """The peer of this number answered."""

    peer: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream to the peer of this number ended or broke."""

    peer: int
    text: str
    """Begins with ``send to`` or ``recv from``."""


Event = Replied | Failed


# --------------------------------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class Settled:
    """All peers have the first `count` proposals that were asked for."""

    count: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """All peers answered a sync."""

    outcome: SyncOutcome


@dataclass(frozen=True, slots=True)
class Broke:
    """The pipeline is of no use any more."""

    text: str


Effect = Settled | Gathered | Broke


class _State(Enum):
    STEADY = auto()
    SYNCING = auto()
    BROKEN = auto()


@final
class PipelineFSM:
    """The answers of the peers of one pipeline.

    Args: peers: those of `route` other than ourselves, in its order; at least one.
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
        """Whether it is of no use any more."""
        return self._state is _State.BROKEN

    @property
    def unsettled(self) -> int:
        """Proposals asked for that some peer has not answered."""
        return self._asked - min(self._answered)

    def ask(self) -> int:
        """A proposal that asks for an answer goes to all peers. Returns: its number, from 1."""
        if self._state is not _State.STEADY:
            raise RuntimeError(f"a proposal while {self._state.name}")
        self._asked += 1
        return self._asked

    def sync(self, own_end: int) -> None:
        """A sync goes to all peers, once nothing is unsettled."""
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
