"""Whether a run was good: it proved something, and showed nothing that must not be. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gazette_platform.testing.waiting import patient
from tests.chaos.availability import unavailable_s_max
from tests.chaos.readers import ReaderKind, kind_of as reader_kind
from tests.chaos.writers import kind_of as writer_kind
from tests.harness import Judged, Late, headline, starved_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.chaos.availability import Gap
    from tests.chaos.plan import FaultKind
    from tests.chaos.scene import WorkloadConfig
    from tests.checker import Report
    from tests.harness import Stall

__all__ = ["ChaosResult", "Evidence", "reasons"]

# Fewer acknowledged appends in a second of the run, of all writers, say nothing.
_APPENDS_PER_S_MIN = 2.0
# Of runs at least so long, every kind of client must have got something done.
_LONG_ENOUGH_S = 50.0
# Anomalies that rest on a limit of time; all others are wrong on any machine.
_LATE_ANOMALIES = frozenset({"stuck-read", "unseen"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a run did, apart from its history."""

    duration_s: float
    """Seconds that faults and clients were to have."""
    lease_s: float
    workload: WorkloadConfig
    planned: Sequence[FaultKind]
    """Kinds in the plan."""
    inflicted: Sequence[FaultKind]
    """Kinds of the faults that were begun."""
    left_out: Mapping[FaultKind, str] = field(default_factory=dict)
    """Kinds that cannot be inflicted here."""
    ended: Sequence[str] = ()
    """Brokers that ended by themselves."""
    findings: Sequence[str] = ()
    """What must not be, as clients, replicas and the store showed it."""
    unforeseen: Sequence[str] = ()
    """Return unforeseen errors in the logs of brokers, each with its broker."""
    took_part: Mapping[str, int] = field(default_factory=dict)
    """What was done with success, by who did it."""
    trouble: str = ""
    """Why the run did not come to its end, or the cluster not back to life."""


def reasons(
    evidence: Evidence, report: Report, longest: Mapping[str, Gap], stalls: Sequence[Stall]
) -> list[str]:
    """Return why a run is not ok, the clearest reason first; empty if it is."""
    found = [evidence.trouble] if evidence.trouble else []
    found += evidence.findings
    found += evidence.ended
    found += evidence.unforeseen
    if report.anomaly_count:
        text = f"the history shows {report.anomaly_count} anomalies"
        names = {anomaly.name for anomaly in report.anomalies} | set(report.suppressed)
        found.append(Late(text) if names <= _LATE_ANOMALIES else text)
    missing = set(evidence.planned) - set(evidence.inflicted) - set(evidence.left_out)
    if not evidence.inflicted:
        found.append(Late("there were no faults"))
    elif missing:
        found.append(Late(f"these faults were planned, and never begun: {_names(missing)}"))
    found += _idle(evidence, report)
    limit_s = patient(unavailable_s_max(evidence.lease_s))
    for kind, gap in sorted(longest.items()):
        length_s = gap.length_s - starved_s(stalls, gap.begin, gap.end)
        if length_s > limit_s:
            found.append(
                Late(
                    f"{gap.journal} took no appends for {length_s:.1f} s ({kind}); "
                    f"more than {limit_s:.0f} s is for ever"
                )
            )
    return found


def _idle(evidence: Evidence, report: Report) -> list[str]:
    """What was done too little: of what takes time, on a starved machine."""
    return [Late(reason) for reason in _idle_reasons(evidence, report)]


def _idle_reasons(evidence: Evidence, report: Report) -> list[str]:
    found = []
    workload = evidence.workload
    enough = _APPENDS_PER_S_MIN * evidence.duration_s
    if report.appends_ok < min(enough, workload.writers * evidence.duration_s):
        found.append(f"only {report.appends_ok} appends were acknowledged, expected {enough:.0f}")
    if workload.readers and not report.bytes_read:
        found.append("readers got nothing")
    if evidence.duration_s < _LONG_ENOUGH_S:
        return found
    expected: set[str] = {writer_kind(number) for number in range(workload.writers)}
    expected |= {reader_kind(number) for number in range(workload.readers)}
    if workload.has_upkeep:
        expected |= {"flushes", "spec changes", "suspensions", "head resets", "prunes"}
    if workload.has_time_for_streams(evidence.duration_s):
        expected.add("streamed appends")
    for who in sorted(expected):
        if not evidence.took_part.get(who):
            is_reader = who in tuple(ReaderKind)
            found.append(f"{who} readers got nothing" if is_reader else f"there were no {who}")
    return found


def _names(kinds: set[FaultKind]) -> str:
    return ", ".join(sorted(kinds))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosResult(Judged):
    """How a run went."""

    seed: int
    faults: int
    report: Report
    longest: Mapping[str, Gap]
    """The longest unavailability by kind of fault."""
    stalls: Sequence[Stall]
    folder: Path | None
    """Where history, explanation and logs are; None if they were removed."""
    reasons: Sequence[str] = ()
    """Why it is not ok."""
    took_part: Mapping[str, int] = field(default_factory=dict)
    """What was done with success, by who did it."""
    inflicted: Mapping[FaultKind, int] = field(default_factory=dict)
    """How often each kind of fault was begun."""
    left_out: Mapping[FaultKind, str] = field(default_factory=dict)
    """Kinds that cannot be inflicted here, with the reason."""
    allowed: Mapping[str, int] = field(default_factory=dict)
    """Anomalies that the protocol allows during the faults that there were, by name."""
    starved_by: str = ""
    """What starved the run, see `starvation.starved_by`; empty: nothing did."""

    @property
    def longest_unavailable_s(self) -> float:
        """Seconds, over all kinds of faults."""
        return max((gap.length_s for gap in self.longest.values()), default=0.0)

    @property
    def summary(self) -> str:
        """The last line of the run."""
        line = (
            f"chaos: {self.state} seed={self.seed} "
            f"ops={self.report.operations} faults={self.faults} "
            f"anomalies={self.report.anomaly_count} "
            f"longest_unavailable_s={self.longest_unavailable_s:.1f}"
        )
        if self.is_ok:
            return line
        return f"{line}: {headline(self.reasons, self.starved_by)}"
