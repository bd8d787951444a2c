"""Where the lake learns of fragments: a broker, seen through the four questions it asks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.errors import Suspended, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.client import Client
    from gazette_platform.protocol import Fragment, JournalSpec, LabelSelector

_READ_BYTES = 1 << 20
_PAGE_FRAGMENTS = 1000
# Of one piece, which brokers read from their store: as long as `storage` waits for an answer of one.
_PIECE_TIMEOUT_S: Final = 12.0


class FragmentSource(Protocol):
    """Answers which journals and fragments there are, and what a fragment holds."""

    def journals(self, selector: LabelSelector) -> list[JournalSpec]:
        """Specs of the journals that match, ordered by name."""
        ...

    def created(self, selector: LabelSelector) -> dict[str, int]:
        """Which journals match (`protocol.offsets`), by name. Ask for them after fragments."""
        ...

    def fragments(self, journal: str, offset: int, limit: int) -> list[Fragment]:
        """Fragments that begin at `offset` or later, in offset order, at most `limit`.

        Those that are not persisted yet have no backing store.
        """
        ...

    def content(self, fragment: Fragment) -> Iterator[bytes]:
        """The fragment's content, decompressed, in pieces."""
        ...


@final
class BrokerSource:
    """A FragmentSource that asks brokers. The client stays its caller's to close."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def journals(self, selector: LabelSelector) -> list[JournalSpec]:
        """Specs of the journals that match, ordered by name."""
        return [listing.spec for listing in self._client.list(selector)]

    def created(self, selector: LabelSelector) -> dict[str, int]:
        """Which journals match, by name."""
        return {listing.name: listing.created for listing in self._client.list(selector)}

    def fragments(self, journal: str, offset: int, limit: int) -> list[Fragment]:
        """Fragments that begin at `offset` or later, in offset order, at most `limit`.

        Fewer only if there are no more: a page ends early, too, where names are long. A journal that is
        suspended in full has none stored, and no broker that would say so.
        """
        found: list[Fragment] = []
        token = offset
        while len(found) < limit:
            try:
                page = self._client.fragment_page(
                    journal, next_page_token=token, page_limit=limit - len(found)
                )
            except Suspended:
                break
            found += [listing.fragment for listing in page.fragments]
            token = page.next_page_token
            if not token or not page.fragments:
                break
        return found

    def content(self, fragment: Fragment) -> Iterator[bytes]:
        """The fragment's content, read through the brokers.

        Raises: TransportError: they give none for a while, as when their store does not answer.
        """
        with self._client.read(fragment.journal, fragment.begin, end_offset=fragment.end) as reader:
            while True:
                # Who closes a reader ends the read that waits.
                timer = threading.Timer(_PIECE_TIMEOUT_S, reader.close)
                timer.daemon = True
                timer.start()
                try:
                    block = reader.read(_READ_BYTES)
                except ValueError:  # it was closed just before
                    block = b""
                finally:
                    timer.cancel()
                if not block and reader.closed:
                    raise TransportError(
                        f"brokers gave nothing of {fragment.content_path} within {_PIECE_TIMEOUT_S:.0f} s: "
                        f"does {fragment.backing_store} answer them? (it is tried again)"
                    )
                if not block:
                    return
                yield block


def all_fragments(source: FragmentSource, journal: str) -> Iterator[Fragment]:
    """All fragments of a journal, in offset order, asked for page by page."""
    offset = 0
    while page := source.fragments(journal, offset, _PAGE_FRAGMENTS):
        yield from page
        if len(page) < _PAGE_FRAGMENTS:
            return
        offset = page[-1].begin + 1
