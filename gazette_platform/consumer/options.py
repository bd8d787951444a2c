"""Options that an application has beside those of every consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from gazette_platform.errors import ValidationError

__all__ = ["Option"]

_TAKEN: Final = frozenset({"broker", "consumer", "etcd", "log"})


@final
@dataclass(frozen=True, slots=True)
class Option:
    """One option of ``serve`` and ``print-config``: a flag, a key of gazette.ini, and a variable.

    Raises: ValidationError: the name has no group, or one that every consumer has.
    """

    name: str
    """A group and a key with a dot between them: ``wordcount.N`` is the flag ``--wordcount.N``, the key
    ``N`` of the section ``[Wordcount]``, and the variable ``WORDCOUNT_N``."""
    kind: type
    """str, int, bool or Path; float stands for a duration in seconds, given as ``1m30s``."""
    default: Any
    """A value of that kind, or None."""
    help: str
    """One sentence."""

    def __post_init__(self) -> None:
        group, _, key = self.name.partition(".")
        if not group or not key or group.lower() in _TAKEN:
            raise ValidationError(
                f"expected a group of your own, a dot and a key ({self.name!r}; {', '.join(sorted(_TAKEN))} "
                "are taken)",
                path="Option.name",
            )
        if self.kind not in {str, int, bool, float} and self.kind.__name__ != "Path":
            raise ValidationError(
                f"{self.name}: no option has values of {self.kind.__name__}", path="Option.kind"
            )

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return self.name.replace(".", "_").replace("-", "_").upper()
