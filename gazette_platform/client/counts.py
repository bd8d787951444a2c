"""What a client moved, as the metrics of Gazette's clients."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gazette_platform.protocol import Fragment

__all__ = ["ClientCounts"]

_Codec = tuple[str, str]


@final
class ClientCounts:
    """Bytes and fragments of a client: a collector, which ``prometheus_client.REGISTRY.register`` takes.

    The event loop of the client adds to it; any thread may read it. Fragments are those that the client
    fetched from stores itself; each is counted as often as it was opened.

    Attributes:
        appended_bytes: of appends that were acknowledged, by journal.
        read_bytes: that were given to readers, by journal.
        opened: fragments, by journal and codec; likewise below.
        opened_content_bytes: content of these.
        fetched_bytes: content of these that was given to readers.
        skipped_bytes: content of these before the offset that was read from.
    """

    def __init__(self) -> None:
        self.appended_bytes: defaultdict[str, int] = defaultdict(int)
        self.read_bytes: defaultdict[str, int] = defaultdict(int)
        self.opened: defaultdict[_Codec, int] = defaultdict(int)
        self.opened_content_bytes: defaultdict[_Codec, int] = defaultdict(int)
        self.fetched_bytes: defaultdict[_Codec, int] = defaultdict(int)
        self.skipped_bytes: defaultdict[_Codec, int] = defaultdict(int)

    def open_fragment(self, fragment: Fragment, offset: int) -> None:
        """A fragment is fetched, to be read from an offset on."""
        key = fragment.journal, fragment.codec.name
        self.opened[key] += 1
        self.opened_content_bytes[key] += fragment.content_length
        self.skipped_bytes[key] += max(0, offset - fragment.begin)

    def read_fragment(self, fragment: Fragment, length: int) -> None:
        """So many bytes of a fragment were given to a reader."""
        self.fetched_bytes[fragment.journal, fragment.codec.name] += length

    def collect(self) -> Iterator[Any]:
        """The metrics, by Gazette's names."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415  slow to import

        def counter(name: str, text: str, values: Mapping[Any, int], *labels: str) -> Any:
            family = CounterMetricFamily(name, text, labels=labels)
            for key, value in list(values.items()):
                family.add_metric([key] if isinstance(key, str) else list(key), value)
            return family

        journal, both = ("journal",), ("journal", "codec")
        yield counter("gazette_append_bytes", "Bytes appended.", self.appended_bytes, *journal)
        yield counter("gazette_read_bytes", "Bytes read.", self.read_bytes, *journal)
        yield counter("gazette_fragment_open", "Fragments opened.", self.opened, *both)
        yield counter(
            "gazette_fragment_open_content_length",
            "Content of the fragments opened, in bytes.",
            self.opened_content_bytes,
            *both,
        )
        yield counter(
            "gazette_read_fragment_bytes", "Bytes read of fragments.", self.fetched_bytes, *both
        )
        yield counter(
            "gazette_discard_fragment_bytes",
            "Bytes of fragments before the offset read from.",
            self.skipped_bytes,
            *both,
        )
