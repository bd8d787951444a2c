"""A closed fragment on its way to the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    """The content of a closed, non-empty fragment, with what decides where it is stored."""

    fragment: Fragment
    """Its span, sum and codec; neither store nor postfix yet."""
    first_append_time: datetime
    """UTC, by this broker's clock, of the first commit."""
    registers: LabelSet
    is_primary: bool
    """Whether this broker was primary, and so is the first to persist."""
    content: LocalFile
    """The bytes of the fragment, from position 0."""
    compressed: CompressedForm | None = None
    """As far as the content is compressed; None if it is not."""
    create_revision: int = 0
    """Of the journal's spec in etcd: one made anew under the same name has a greater one."""
    _is_closed: bool = field(default=False, init=False, repr=False)

    @property
    def content_fd(self) -> int:
        """Descriptor of the content."""
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
