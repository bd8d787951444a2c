"""The cursor of the fragment sensor: offsets per table and journal, problems told already, audits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake import RegistrationCursor, SweepPoint
from gazette_platform.sensors.audits import AuditState

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SensorCursor", "problem_digest"]


@final
@dataclass(frozen=True, slots=True)
class SensorCursor:
    """What a tick starts from. No times are in it; its text is canonical."""

    registered: RegistrationCursor = field(default_factory=RegistrationCursor)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Digest of the problem last told, by table; absent when there is none."""
    audits: Mapping[str, AuditState] = field(default_factory=dict)
    """What the audits of each table know."""
    turn: str = ""
    """The table that comes first, since the time was up before it had its turn; empty: none."""
    swept: str = ""
    """The table whose old fragments are looked at again."""
    sweep: SweepPoint = field(default_factory=SweepPoint)
    """Where that goes on."""
    looked: str = ""
    """Where it goes on, after that, with the partitions that Dagster knows of that table."""
    audited: str = ""
    """The table audited last in turn."""

    @classmethod
    def parse(cls, text: str | None) -> SensorCursor:
        """The cursor whose `dump` was `text`; empty for None.

        Raises: ValidationError: not a cursor of this version; says how to reset it.
        """
        registered = RegistrationCursor.parse(text)
        raw = json.loads(text) if text else {}
        problems = raw.get("problems", {})
        if not isinstance(problems, dict):
            raise ValidationError("problems is not an object", path="cursor")
        audits = raw.get("audits", {})
        if not isinstance(audits, dict):
            raise ValidationError("audits is not an object", path="cursor")
        swept, journal, offset, looked = _sweep(raw.get("sweep"))
        return cls(
            registered,
            {str(table): str(digest) for table, digest in problems.items()},
            {str(table): AuditState.from_json(state) for table, state in audits.items()},
            turn=str(raw.get("turn", "")),
            swept=swept,
            sweep=SweepPoint(journal, offset),
            looked=looked,
            audited=str(raw.get("audited", "")),
        )

    def dump(self) -> str:
        """The cursor as text."""
        raw = json.loads(self.registered.dump())
        if self.problems:
            raw["problems"] = dict(self.problems)
        if self.audits:
            raw["audits"] = {table: state.to_json() for table, state in self.audits.items()}
        if self.turn:
            raw["turn"] = self.turn
        if self.swept:
            raw["sweep"] = [self.swept, self.sweep.journal, self.sweep.offset]
            raw["sweep"] += [self.looked] if self.looked else []
        if self.audited:
            raw["audited"] = self.audited
        return json.dumps(raw, sort_keys=True, separators=(",", ":"))


def _sweep(raw: Any) -> tuple[str, str, int, str]:
    """Where a round of looking again stood; at its begin if that cannot be read."""
    try:
        table, journal, offset, *looked = raw
        return str(table), str(journal), int(offset), str(looked[0]) if looked else ""
    except (TypeError, ValueError):
        return "", "", 0, ""


def problem_digest(texts: list[str]) -> str:
    """16 hex digits of problems; empty text if there are none."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else ""
