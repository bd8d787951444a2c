"""Reading persisted fragments from where engines read them: samples and row counts.

Counting reads each new fragment once, decompressed in large blocks by C code that releases the GIL
(about half a gigabyte of content a second a core), and never asks an engine. A row is a line; a last
line without newline counts, as it does in Trino and Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

import orjson

from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.check import SAMPLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.protocol import Fragment

__all__ = ["FragmentContent", "FragmentCount", "local_path"]

_STORED_BLOCK_BYTES = 1 << 20
# A stored block may inflate a thousandfold.
_CONTENT_BLOCK_BYTES = 4 << 20


@final
@dataclass(frozen=True, slots=True)
class FragmentCount:
    """What reading a fragment told: rows, and stored bytes if it is a local file."""

    rows: int
    stored_bytes: int | None
    head: bytes = b""
    """The first bytes of content, at most `SAMPLE_BYTES`."""
    columns: frozenset[str] = frozenset()
    """Those of the columns asked for that occur as keys of JSON records."""


@final
class FragmentContent:
    """Content of fragments: from local files where the location is one, else through brokers."""

    def __init__(self, source: FragmentSource) -> None:
        self._source = source

    def blocks(self, fragment: Fragment, location: str) -> Iterator[bytes]:
        """Decompressed content in blocks of a few MiB.

        Args:
            location: directory of the fragment's file, as engines know it.

        Raises: LakeError: there is no such file. DataError: it is damaged.
        """
        path = local_path(fragment, location)
        if path is None:
            yield from self._source.content(fragment)
            return
        codec = decompressor(fragment.codec)
        try:
            with path.open("rb", buffering=0) as file:
                while stored := file.read(_STORED_BLOCK_BYTES):
                    yield from decompress_steps(codec, stored, step_bytes_max=_CONTENT_BLOCK_BYTES)
            codec.finish()
        except FileNotFoundError as err:
            raise _missing(fragment, path) from err
        except OSError as err:
            raise LakeError(f"cannot read fragment {path}: {err.strerror}") from err
        except DataError as err:
            raise DataError(
                f"fragment {path} is damaged: {err} (restore the file, or move it out of the table)"
            ) from err

    def count(
        self, fragment: Fragment, location: str, *, columns: Iterable[str] = ()
    ) -> FragmentCount:
        """Rows and stored size of a fragment, as engines will see them.

        Args:
            columns: names to look for.

        Raises: LakeError: there is no such file. DataError: it is damaged, or of another length.
        """
        rows = length = 0
        head, last = b"", b"\n"
        unseen = {name: orjson.dumps(name) for name in columns}
        seen: set[str] = set()
        for block in self.blocks(fragment, location):
            if len(head) < SAMPLE_BYTES:
                head += bytes(block[: SAMPLE_BYTES - len(head)])
            if unseen:
                found = [name for name, key in unseen.items() if key in block]
                seen.update(found)
                for name in found:
                    del unseen[name]
            rows += block.count(b"\n")
            length += len(block)
            last = block[-1:] or last
            if length > fragment.content_length:
                raise _wrong_length(fragment, "more")
        if length != fragment.content_length:
            raise _wrong_length(fragment, str(length))
        path = local_path(fragment, location)
        stored = path.stat().st_size if path is not None else None
        return FragmentCount(rows + (last != b"\n"), stored, head, frozenset(seen))

    def require_stored(self, fragment: Fragment, location: str) -> None:
        """Refuse a local location without the fragment's file: a wrong root, most likely.

        Raises: LakeError: names the file and the setting.
        """
        path = local_path(fragment, location)
        if path is not None and not path.is_file():
            raise _missing(fragment, path)

    def head(self, fragment: Fragment, location: str, length: int) -> bytes:
        """The first `length` bytes of content, or all if there are fewer."""
        head = b""
        blocks = self.blocks(fragment, location)
        for block in blocks:
            head += block
            if len(head) >= length:
                break
        return head[:length]


def _wrong_length(fragment: Fragment, held: str) -> DataError:
    return DataError(
        f"fragment {fragment.content_path} holds {held} bytes where its name says "
        f"{fragment.content_length} (restore the file, or move it out of the table)"
    )


def _missing(fragment: Fragment, path: Path) -> LakeError:
    return LakeError(
        f"the broker says that {fragment.content_path} is persisted, but there is no file {path}: "
        f"does `lake.store_roots` map {fragment.backing_store} to the right place?"
    )


def local_path(fragment: Fragment, location: str) -> Path | None:
    """Where the fragment's file is on this machine, or None if it lies in an object store."""
    parts = urlsplit(location)
    if parts.scheme != "file":
        return None
    # Locations hold paths as they are: engines and brokers do not percent-encode them.
    return Path(location.removeprefix("file://")) / fragment.content_name
