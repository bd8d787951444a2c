"""A closed fragment on its way to the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from gazette_platform.fragment.files import CompressedForm
    from gazette_platform.protocol import Fragment, LabelSet

__all__ = ["CompletedSpool", "LocalFile"]


class LocalFile(Protocol):
    """An open file with several holders, closed when the last one releases it."""

    @property
    def fd(self) -> int:
        """Its descriptor; valid while held."""
        ...

    def hold(self) -> object:
        """Keep it open until a matching `release`. Raises: ValueError: it is closed already."""
        ...

    def release(self) -> None:
        """Give up one hold."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class CompletedSpool:
    """The content of a closed, non-empty fragment, with all that its place in the store depends on."""

    fragment: Fragment
    """Its span, sum and codec. It has no store and no postfix yet."""
    first_append_time: datetime
    """UTC, by this broker's clock: when its first append was committed."""
    registers: LabelSet
    is_primary: bool
    """Whether this broker was primary. The primary persists first; its replicas only look, later."""
    content: LocalFile
    """The bytes of the fragment, from position 0."""
    compressed: CompressedForm | None = None
    """The content as far as it is compressed; None if it is not."""
    create_revision: int = 0
    """That of the journal's spec in etcd. A journal recreated under the same name has a greater one."""
    is_stored: Callable[[int, int], bool] | None = None
    """Whether listings of its journal have all bytes from a begin to an end; None: no listing says so."""
    _is_closed: bool = field(default=False, init=False, repr=False)

    @property
    def is_closed(self) -> bool:
        """Whether it is persisted, or no longer wanted."""
        return self._is_closed

    @property
    def is_listed(self) -> bool:
        """Whether a listing has all of its content."""
        return self.is_stored is not None and self.is_stored(self.fragment.begin, self.fragment.end)

    @property
    def content_fd(self) -> int:
        """Descriptor of the content's file."""
        return self.content.fd

    def drop_compressed(self) -> None:
        """Give up the compressed form; it can be made again."""
        if self.compressed is not None:
            self.compressed.file.release()
            self.compressed = None

    def close(self) -> None:
        """Release the files. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.content.release()
        if self.compressed is not None:
            self.compressed.file.release()
