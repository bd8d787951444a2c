"""Check the content of a fragment against the length and SHA-1 in its name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ChecksumMismatch, DataError

if TYPE_CHECKING:
    from gazette_platform.protocol.fragments import Fragment

__all__ = ["FragmentCheck"]


@final
class FragmentCheck:
    """Takes the content of a fragment from its beginning, piece by piece.

    Args:
        is_known: whether its SHA-1 is known to be right, so that only its length is checked.
    """

    def __init__(self, fragment: Fragment, *, is_known: bool = False) -> None:
        self.is_known = is_known
        self._fragment = fragment
        self._digest = hashlib.sha1(usedforsecurity=False)
        self._length = 0

    def take(self, content: bytes) -> None:
        """Take the next piece. Raises: DataError: it goes beyond the end that the name gives."""
        self._length += len(content)
        if self._length > self._fragment.content_length:
            raise DataError(
                f"the stored object is longer than its name says ({self._fragment.content_length} bytes "
                "of content)"
            )
        if not self.is_known:
            self._digest.update(content)

    def finish(self) -> None:
        """Claim that the content has ended.

        Raises: DataError: it is too short. ChecksumMismatch: it is other content.
        """
        missing = self._fragment.content_length - self._length
        if missing:
            raise DataError(f"the stored object ends {missing} bytes before its name says")
        if not self.is_known and self._digest.digest() != self._fragment.sum:
            raise ChecksumMismatch(
                f"content has SHA-1 {self._digest.hexdigest()}, expected {self._fragment.sum.hex()}"
            )
