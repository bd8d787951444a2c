"""The cursor of the fragment sensor: offsets per table and journal, problems told already, audits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake import RegistrationCursor, SweepPoint
from gazette_platform.sensors.audits import AuditState
from gazette_platform.sensors.retention import RetentionState
from gazette_platform.sensors.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SensorCursor", "problem_digest"]

# Dagster's UI shows the whole text of a cursor on the page of its sensor. Of one that begins with this
# key, as those of its own do, it shows the other keys and their values, those that are 0 left out.
_HIDDEN: Final = "__class__"


@final
@dataclass(frozen=True, slots=True)
class SensorCursor:
    """What a tick starts from. Its text is canonical."""

    registered: RegistrationCursor = field(default_factory=RegistrationCursor)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Digest of the problems last told, or of there being none, by table; absent: never told."""
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
    waits: Mapping[str, Mapping[str, Wait]] = field(default_factory=dict)
    """By table and journal, what is waited for. Only here are times, and none while all is there."""
    folder: str = ""
    """Digest of the folder of table specs as Dagster was told of it; empty: it was not."""
    retention: RetentionState = field(default_factory=RetentionState)
    """What is known of prunes."""

    @classmethod
    def parse(cls, text: str | None) -> SensorCursor:
        """The cursor whose `dump` was `text`; empty for None.

        Raises: ValidationError: not a cursor of this version; says how to reset it.
        """
        registered = RegistrationCursor.parse(_inner(text))
        raw = json.loads(_inner(text) or "{}")
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
            waits=_waits(raw.get("waits", {})),
            folder=str(raw.get("folder", "")),
            retention=RetentionState.from_json(raw.get("retention", {})),
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
        retention = self.retention.to_json()
        if retention:
            raw["retention"] = retention
        if self.waits:
            raw["waits"] = {
                table: {journal: wait.to_json() for journal, wait in waits.items()}
                for table, waits in self.waits.items()
            }
        if self.folder:
            raw["folder"] = self.folder
        return json.dumps({_HIDDEN: raw, **self.summary}, sort_keys=True, separators=(",", ":"))

    @property
    def summary(self) -> dict[str, int]:
        """What a person is shown of it."""
        journals = self.registered.tables.values()
        return {
            "tables": len(self.registered.tables),
            "journals": sum(map(len, journals)),
            "waiting": sum(map(len, self.waits.values())),
            "red": sum(digest != problem_digest([]) for digest in self.problems.values()),
        }


def _inner(text: str | None) -> str | None:
    """The text without what is for people; as it is if it has nothing for them."""
    try:
        raw = json.loads(text or "{}")
    except ValueError:
        return text  # what is wrong with it is told there
    inner = raw.get(_HIDDEN) if isinstance(raw, dict) else None
    return text if inner is None else json.dumps(inner)


def _sweep(raw: Any) -> tuple[str, str, int, str]:
    """Where a round of looking again stood; at its begin if that cannot be read."""
    try:
        table, journal, offset, *looked = raw
        return str(table), str(journal), int(offset), str(looked[0]) if looked else ""
    except (TypeError, ValueError):
        return "", "", 0, ""


def _waits(raw: Any) -> dict[str, dict[str, Wait]]:
    """What is waited for; nothing if that cannot be read, since it is all seen again."""
    try:
        return {
            str(table): {str(j): Wait.from_json(wait) for j, wait in waits.items()}
            for table, waits in raw.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


def problem_digest(texts: list[str]) -> str:
    """16 hex digits of problems; `ok` if there are none."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else "ok"
