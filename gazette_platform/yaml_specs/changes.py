"""What an entry of a document asks for, of whatever kind: to be set, or deleted."""

from __future__ import annotations

from typing import Protocol

from gazette_platform.errors import ValidationError

__all__ = ["check_change"]


class Spec(Protocol):
    """Of a journal, or of a shard."""

    def validate(self) -> None:
        """Raises: ValidationError."""
        ...


def check_change(what: str, spec: Spec, *, delete: bool | None, revision: int) -> None:
    """Check one entry, once what it shares is pushed down.

    Args:
        what: it is of, as ``journal a/b``.
        revision: that it must be at.

    Raises: ValidationError: the spec is not valid, or a deletion lacks its revision.
    """
    if delete:
        if revision == 0:
            raise ValidationError(f"{what}: delete needs the revision to delete, or -1 for any")
        return
    try:
        spec.validate()
    except ValidationError as err:
        raise ValidationError(f"{what}: {err}") from None
