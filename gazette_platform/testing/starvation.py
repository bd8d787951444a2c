"""Tell a run that was starved from one that failed.

On a machine that is too busy, whatever rests on a limit of time says nothing about the code: a server that is "not
ready in 60 s" may have had a core for two of them. Such a run is *starved*: neither good nor bad. A lost byte is a
lost byte on any machine, so a run that has one is bad, starved or not.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import (
    CallUnanswered,
    EtcdError,
    StatusError,
    TransportError,
)
from gazette_platform.testing.waiting import TooLate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Late",
    "State",
    "Strain",
    "headline",
    "is_late",
    "joined",
    "judge",
    "reason_of",
    "starved_by",
]

# The limits are several times what an idle machine with two cores needs. With so many processes for each core that
# want to run, those limits no longer hold.
_READY_PER_CORE: Final = 6.0
# A process that only sleeps and ticks is never late by so much of a span unless the machine stands still.
_STALLED_SHARE: Final = 0.05
# A server that starts wants a core nearly all the time.
_WAITED_SHARE: Final = 0.5
_HEADLINE_CHARS: Final = 300


@final
class Late(str):
    """A reason that rests on a limit of time."""

    __slots__ = ()


class State(StrEnum):
    """How a run went."""

    OK = "ok"
    FAILED = "FAILED"
    STARVED = "starved"

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return {State.OK: 0, State.FAILED: 1, State.STARVED: 2}[self]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strain:
    """How busy the machine was over a span of time."""

    span_s: float
    stalled_s: float = 0.0
    """Seconds in which a process that only ticks did not tick."""
    ready: float = 0.0
    """Processes that ran or wanted to run, on average."""
    cores: int = 2
    load: float = 0.0
    """Load average of the last minute; only shown."""


def starved_by(strain: Strain, *, waited: float = 0.0) -> str:
    """Say what starved a run; empty: nothing did.

    Args:
        strain: of the machine, while the run waited.
        waited: share of that time in which the process that it waited for had no core.
    """
    found = []
    if waited >= _WAITED_SHARE:
        found.append(f"it had no core {waited:.0%} of that time")
    if strain.ready >= _READY_PER_CORE * strain.cores:
        found.append(f"{strain.ready:.0f} processes at a time wanted {strain.cores} cores")
    if strain.stalled_s >= _STALLED_SHARE * strain.span_s and strain.stalled_s > 0:
        found.append(f"the machine stood still for {strain.stalled_s:.1f} of {strain.span_s:.0f} s")
    if found:
        found.append(f"load average {strain.load:.1f}")
    return ", ".join(found)


def judge(reasons: Sequence[str], cause: str) -> State:
    """Decide how a run went.

    Args:
        reasons: why it is not ok; those that rest on a limit of time are `Late`.
        cause: what starved it, see `starved_by`; empty: nothing did.
    """
    if not reasons:
        return State.OK
    if cause and all(isinstance(reason, Late) for reason in reasons):
        return State.STARVED
    return State.FAILED


def headline(reasons: Sequence[str], cause: str) -> str:
    """Return what the last line of a run says of why it is not ok.

    Args:
        reasons: at least one; of the first the first line is shown, of the others how many there are.
        cause: what starved the run, if it was `starved`.
    """
    first = reasons[0].partition("\n")[0].removesuffix("; its log ends:")[:_HEADLINE_CHARS]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    starved = judge(reasons, cause) is State.STARVED
    return f"{first}{more}; {cause}" if starved else f"{first}{more}"


def is_late(err: BaseException) -> bool:
    """Return whether an error only says that time ran out."""
    if isinstance(err, BaseExceptionGroup):
        return all(map(is_late, err.exceptions))
    # A client repeats a call that failed by a retriable error, and raises it when its time is out.
    if isinstance(err, (TransportError, StatusError, EtcdError)) and err.retriable:
        return True
    return isinstance(err, (TooLate, CallUnanswered, TimeoutError, subprocess.TimeoutExpired))


def reason_of(err: BaseException, text: str = "") -> str:
    """Return an error's text, or `text`, as a reason; `Late` if time ran out."""
    text = text or str(err) or type(err).__name__
    return Late(text) if is_late(err) else text


def joined(reasons: Iterable[str]) -> str:
    """Join reasons into one, which is `Late` if all of them are."""
    reasons = list(reasons)
    text = "; ".join(reasons)
    return Late(text) if all(isinstance(reason, Late) for reason in reasons) else text
