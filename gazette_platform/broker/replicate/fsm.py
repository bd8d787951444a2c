"""What both sides of Replicate decide. Pure: no I/O.

A replica's side of a Replicate stream: what each message of the primary does to the spool.

The caller feeds messages to `ReplicateFSM`, with the digest of the content that it wrote so far,
and carries out the effects in order.

    message                                        effects
    ---------------------------------------------  ---------------------------------------------
    content, its delta is ours                     Write
    content, its delta is another                  Abort(invalid ContentDelta)
    proposal that ends beyond us, or is empty      Roll, then as below
    and begins at our end
      equals the committed fragment                Discard, Answer(OK)
      equals the fragment with the new content     Commit, Answer(OK)
      anything else                                Answer(PROPOSAL_MISMATCH, what we have)
    any of these without `acknowledge`             no Answer; a mismatch is Abort(no ack requested)

A proposal that ends beyond us moves us there even if it is then refused. The primary has content that
we lack, so it will begin a fragment at an offset which all replicas have reached, and we can take part
from there on.

Source: Gazette broker/fragment/spool.go and replicate_api.go. Departs: a replica may hold content that
its primary lacks, left by a former primary that died between two commits. It remembers that, and hands
the content over to be persisted at once, so that readers elsewhere need not wait for it.

A primary's side of Replicate: what the answers of its peers amount to.

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

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, final

from gazette_platform.broker.epochs import RESTORED
from gazette_platform.protocol import (
    ZERO_SUM,
    CompressionCodec,
    Fragment,
    Header,
    LabelSet,
    ProcessId,
    Route,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Synced:
    """Every replica is at the spool's end."""


@dataclass(frozen=True, slots=True)
class SyncMismatch:
    """A peer is ahead of us, or has begun a new fragment at our end: all have to roll there."""

    roll_to: int
    registers: LabelSet | None


@dataclass(frozen=True, slots=True)
class WrongRoute:
    """A peer knows a newer route."""

    revision: int


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The resolution that the sync relied on no longer holds."""


SyncResult = Synced | SyncMismatch | WrongRoute | Invalidated


@dataclass(frozen=True, slots=True)
class SpoolState:
    """A spool: what it has committed, and how many bytes it wrote after that."""

    fragment: Fragment
    registers: LabelSet
    delta: int = 0
    """Bytes that are written, but not committed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a primary wants the spools of its replicas to be."""

    fragment: Fragment
    registers: LabelSet
    acknowledge: bool


# --------------------------------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class Roll:
    """Close the fragment, and begin an empty one."""

    to: int
    codec: CompressionCodec
    registers: LabelSet
    is_urgent: bool = False
    """The primary lacks some of the closed fragment: persist it without delay."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the message's content after what was written."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Make the content that was written part of the fragment."""

    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the content that was written, but not committed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the primary. If the proposal does not match, say what we have."""

    status: Status
    fragment: Fragment | None = None
    registers: LabelSet | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """End the stream with an error."""

    text: str


Effect = Roll | Write | Commit | Discard | Answer | Abort


@dataclass(frozen=True, slots=True)
class Applied:
    """A proposal's outcome."""

    status: Status
    state: SpoolState
    effects: tuple[Effect, ...]


_DISCARD = Discard()
_WRITE = Write()
_OK = Answer(Status.OK)


def apply_proposal(
    state: SpoolState, proposal: Proposal, next_sum: bytes, *, is_urgent: bool = False
) -> Applied:
    """Apply a proposal to a spool.

    Args:
        next_sum: SHA-1 of the committed content and what is written after it. It does not matter
            while nothing is.
        is_urgent: passed on to a roll.

    Returns: the status, the spool afterwards, and the effects that lead there, without answers.
    """
    # A proposal is a whole fragment, not a step: begin, end, sum, codec and registers. So a replica needs no memory of
    # what came before, and a proposal that is repeated after a broken stream finds itself applied already.
    effects: list[Effect] = []
    proposed, registers = proposal.fragment, proposal.registers
    own = state.fragment
    is_empty = proposed.content_length == 0
    if proposed.end > own.end + state.delta or (proposed.end == own.end and is_empty):
        # Registers belong to the end of content. If the primary is further, its registers are newer than ours. At
        # our own end they rarely are. Else a proposal has to match ours there, or is refused below.
        is_newer = proposed.end > own.end or supersedes(registers, state.registers)
        adopted = registers if is_newer else state.registers
        effects.append(Roll(proposed.end, proposed.codec, adopted, is_urgent))
        own = Fragment(own.journal, proposed.end, proposed.end, ZERO_SUM, proposed.codec)
        state = SpoolState(own, adopted)
    if proposed == own and registers == state.registers:
        if state.delta:
            effects.append(_DISCARD)
        return Applied(Status.OK, replace(state, delta=0), tuple(effects))
    # The sum is compared, and not only the length: a replica commits only bytes that the primary hashed, too. A bit
    # that flipped on the way, or a primary that reused an offset, ends here and not in a store.
    if state.delta:
        following = replace(own, end=own.end + state.delta, sum=next_sum)
        if proposed == following:
            effects.append(Commit(registers))
            return Applied(Status.OK, SpoolState(following, registers), tuple(effects))
    return Applied(Status.PROPOSAL_MISMATCH, state, tuple(effects))


def supersedes(registers: LabelSet, own: LabelSet) -> bool:
    """Whether registers of a primary are newer than ours, although both are at one end of content.

    They are only if etcd was restored from a backup, which ours do not show yet: a primary proposes them
    after a reset. Having none is not a reason to take any: their removal may have been acknowledged.
    """
    return not set(registers.values_of(RESTORED)) <= set(own.values_of(RESTORED))


@final
class ReplicateFSM:
    """One Replicate stream, which owns the spool.

    Attributes:
        state: the spool, as it is after the effects that were returned so far.
    """

    __slots__ = ("_is_ahead", "state")

    def __init__(self, state: SpoolState) -> None:
        self.state = state
        self._is_ahead = False

    def on_content(self, length: int, delta: int) -> Effect:
        """Take a message with content.

        Args:
            length: of the content; more than 0.
            delta: bytes between the last commit and this content, as the primary counts them.
        """
        # Content carries no offset of the journal, only its distance from the last commit. A message that was lost or
        # came twice shows here, and ends the stream. Written, it would shift all that follows.
        state = self.state
        if delta != state.delta:
            return Abort(f"invalid ContentDelta ({delta}; expected {state.delta})")
        self.state = SpoolState(state.fragment, state.registers, delta + length)
        return _WRITE

    def on_proposal(self, proposal: Proposal, next_sum: bytes) -> tuple[Effect, ...]:
        """Take a proposal, once all content before it is written. For `next_sum` see `apply_proposal`."""
        applied = apply_proposal(self.state, proposal, next_sum, is_urgent=self._is_ahead)
        self.state = applied.state
        own = applied.state.fragment
        if applied.status is Status.OK:
            self._is_ahead = False
            return (*applied.effects, _OK) if proposal.acknowledge else applied.effects
        # We hold content that the primary lacks: a former primary died between two commits. Readers here may have
        # seen it, so it must reach the store. The roll that follows is marked urgent for that.
        self._is_ahead = own.end > proposal.fragment.end
        if not proposal.acknowledge:
            text = response_text(applied.status, own)
            return (*applied.effects, Abort(f"no ack requested but status != OK: {text}"))
        return (*applied.effects, Answer(applied.status, own, applied.state.registers))


def response_text(status: Status, fragment: Fragment | None = None) -> str:
    """A replica's response, in the compact text of Gazette's errors.

    >>> response_text(Status.PROPOSAL_MISMATCH)
    'status:PROPOSAL_MISMATCH '
    """
    text = f"status:{status.name} " if status is not Status.OK else ""
    if fragment is not None:
        text += (
            f'fragment:<journal:"{fragment.journal}" begin:{fragment.begin} end:{fragment.end} '
            f"sum:{fragment.sum.hex()} compression_codec:{fragment.codec.name} > "
        )
    return text


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
    unlike: tuple[ProcessId, ...] = ()
    """Peers that have begun a new fragment at our end: they were behind, or their registers are not ours."""


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
    unlike: list[ProcessId] = []
    for peer, reply in replies:
        header, fragment = reply.header, reply.fragment
        if reply.status is Status.OK:
            continue
        if reply.status in _ELSEWHERE and header is not None:
            # Our header makes a peer resolve at our revision of etcd or a later one. If it knows another route at a
            # revision that is not later, one of us is wrong, and to resolve again would bring the same route.
            is_other = not header.route.equivalent(route)
            if is_other and header.etcd.revision > revision:
                read_revision = max(read_revision, header.etcd.revision)
                continue
        elif reply.status is Status.PROPOSAL_MISMATCH and fragment is not None:
            # No broker truncates: what a peer has may have been acknowledged by the primary before us. So all
            # meet at the furthest end, and the gap in between is closed by that peer's fragment in the store.
            if fragment.end > own_end:
                if fragment.end > roll_to:
                    roll_to, registers = fragment.end, reply.registers
                continue
            if fragment.end == own_end and fragment.content_length == 0:
                # The peer was behind, and begins a new fragment where we end. So must we, since its
                # spool lacks what precedes. Its registers may be older than ours, so we keep ours.
                roll_to = max(roll_to, own_end)
                unlike.append(peer)
                continue
        kind = "WRONG_ROUTE" if reply.status is Status.WRONG_ROUTE else "response"
        text = response_text(reply.status, fragment)
        return SyncOutcome(error=f"gatherSync: recv from {peer}: unexpected {kind}: {text}")
    return SyncOutcome(roll_to, registers, read_revision, unlike=tuple(unlike))


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


PipelineEffect = Settled | Gathered | Broke


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
        # Answers name no proposal; they are told apart by their order only. An answer to an earlier proposal
        # would be taken for one to the sync.
        if self._state is not _State.STEADY or self.unsettled:
            raise RuntimeError(f"a sync while {self._state.name}, {self.unsettled} unsettled")
        self._state = _State.SYNCING
        self._own_end = own_end
        self._replies = [None] * len(self._peers)

    def step(self, event: Event) -> PipelineEffect | None:
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

    def _on_reply(self, peer: int, reply: Reply) -> PipelineEffect | None:
        answered = self._answered
        text = response_text(reply.status, reply.fragment)
        if answered[peer] == self._asked:
            return self._break(f"recv from {self._peers[peer]}: unexpected response: {text}")
        if reply.status is not Status.OK:
            return self._break(f"recv from {self._peers[peer]}: unexpected !OK response: {text}")
        # The slowest peer counts. Settling by a majority was rejected, as in Gazette: any replica may have to
        # take over alone, so each must have all that was acknowledged.
        before = min(answered)
        answered[peer] += 1
        now = min(answered)
        return Settled(now) if now > before else None

    def _on_sync_reply(self, peer: int, reply: Reply) -> PipelineEffect | None:
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
