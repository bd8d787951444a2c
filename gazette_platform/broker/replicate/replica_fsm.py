"""A replica's side of a Replicate stream: what each message of the primary does to the spool.

Pure: the caller feeds messages to `ReplicateFSM`, with the digest of the content that it wrote so far,
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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet, Status

__all__ = [
    "Abort",
    "Answer",
    "Applied",
    "Commit",
    "Discard",
    "Effect",
    "Proposal",
    "ReplicateFSM",
    "Roll",
    "SpoolState",
    "Write",
    "apply_proposal",
    "response_text",
]


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
    effects: list[Effect] = []
    proposed, registers = proposal.fragment, proposal.registers
    own = state.fragment
    is_empty = proposed.content_length == 0
    if proposed.end > own.end + state.delta or (proposed.end == own.end and is_empty):
        adopted = registers if proposed.end > own.end else state.registers
        effects.append(Roll(proposed.end, proposed.codec, adopted, is_urgent))
        own = Fragment(own.journal, proposed.end, proposed.end, ZERO_SUM, proposed.codec)
        state = SpoolState(own, adopted)
    if proposed == own and registers == state.registers:
        if state.delta:
            effects.append(_DISCARD)
        return Applied(Status.OK, replace(state, delta=0), tuple(effects))
    if state.delta:
        following = replace(own, end=own.end + state.delta, sum=next_sum)
        if proposed == following:
            effects.append(Commit(registers))
            return Applied(Status.OK, SpoolState(following, registers), tuple(effects))
    return Applied(Status.PROPOSAL_MISMATCH, state, tuple(effects))


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
