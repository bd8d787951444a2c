"""The cursor of the fragment sensor: offsets per table and journal, problems told already, audits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake import RegistrationCursor
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
        return cls(
            registered,
            {str(table): str(digest) for table, digest in problems.items()},
            {str(table): AuditState.from_json(state) for table, state in audits.items()},
        )

    def dump(self) -> str:
        """The cursor as text."""
        raw = json.loads(self.registered.dump())
        if self.problems:
            raw["problems"] = dict(self.problems)
        if self.audits:
            raw["audits"] = {table: state.to_json() for table, state in self.audits.items()}
        return json.dumps(raw, sort_keys=True, separators=(",", ":"))


def problem_digest(texts: list[str]) -> str:
    """16 hex digits of problems; empty text if there are none."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else ""
