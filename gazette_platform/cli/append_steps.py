"""Changes of content that `gazctl journals append` makes if asked to: decompress, transcode. In bounded memory."""

import bz2
import codecs
import lzma
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, final

from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.lake.formats import Kind
from gazette_platform.protocol import CompressionCodec

__all__ = ["Decompress", "Step", "Transcode", "require_encoding"]

_STEP_BYTES: Final = 1 << 20


class Step(Protocol):
    """Content in, content out, block by block."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield what `block` gives, in bounded pieces.

        Raises: DataError: the bytes are damaged, or not what they should be.
        """
        ...

    def finish(self) -> Iterator[bytes]:
        """Yield what is left when all was fed.

        Raises: DataError: content ends too early.
        """
        ...


_CODECS: Final = {
    Kind.GZIP: CompressionCodec.GZIP,
    Kind.ZSTD: CompressionCodec.ZSTANDARD,
}
_STREAMS: Final[dict[Kind, Callable[[], Any]]] = {
    Kind.BZIP2: bz2.BZ2Decompressor,
    Kind.XZ: lzma.LZMADecompressor,
}


@final
class Decompress:
    """Decompresses gzip, zstd, bzip2 or xz; any other content stays as it is."""

    def __init__(self, kind: Kind, title: str) -> None:
        self._title = title
        self._codec = decompressor(_CODECS.get(kind, CompressionCodec.NONE))
        self._make = _STREAMS.get(kind)
        self._stream = self._make() if self._make is not None else None

    def feed(self, block: bytes) -> Iterator[bytes]:
        """See `Step.feed`."""
        try:
            if self._stream is None:
                yield from decompress_steps(self._codec, block, step_bytes_max=_STEP_BYTES)
            else:
                yield from self._of_streams(block)
        except (DataError, OSError, EOFError, lzma.LZMAError) as err:
            raise DataError(f"{self._title} cannot be decompressed: {err}") from err

    def _of_streams(self, block: bytes) -> Iterator[bytes]:
        """Decompress streams that may follow each other."""
        while True:
            assert self._stream is not None
            assert self._make is not None
            if self._stream.eof:
                block = self._stream.unused_data + block
                if not block.strip(b"\0"):  # padding
                    return
                self._stream = self._make()
            if out := self._stream.decompress(block, _STEP_BYTES):
                yield out
            block = b""
            if not self._stream.eof and self._stream.needs_input:
                return

    def finish(self) -> Iterator[bytes]:
        """See `Step.finish`."""
        try:
            self._codec.finish()
        except DataError as err:
            raise DataError(f"{self._title} cannot be decompressed: {err}") from err
        if self._stream is not None and not self._stream.eof:
            raise DataError(f"{self._title} cannot be decompressed: it ends too early")
        yield from ()


@final
class Transcode:
    """Makes UTF-8 of text in another encoding, without a byte order mark."""

    def __init__(self, encoding: str, title: str) -> None:
        self._encoding = encoding
        self._title = title
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._is_begin = True

    def feed(self, block: bytes) -> Iterator[bytes]:
        """See `Step.feed`."""
        yield from self._decoded(block, is_end=False)

    def finish(self) -> Iterator[bytes]:
        """See `Step.finish`."""
        yield from self._decoded(b"", is_end=True)

    def _decoded(self, block: bytes, *, is_end: bool) -> Iterator[bytes]:
        try:
            text = self._decoder.decode(block, is_end)
        except UnicodeError as err:
            what = f"{err.reason}" if isinstance(err, UnicodeDecodeError) else str(err)
            raise DataError(
                f"{self._title} is not text in {self._encoding} ({what}): nothing more of it was appended; "
                "correct --encoding"
            ) from err
        if self._is_begin and text:
            self._is_begin = False
            text = text.removeprefix("\ufeff")
        if text:
            yield text.encode("utf-8", "surrogatepass")


def require_encoding(name: str) -> str:
    """Return `name` if it is an encoding of text.

    Raises: ValidationError: it is not.
    """
    try:
        decoder = codecs.getincrementaldecoder(name)()
        is_text = isinstance(decoder.decode(b"", True), str)
    except (LookupError, UnicodeError, AssertionError, TypeError, ValueError):
        is_text = False
    if not is_text:
        raise ValidationError(
            f"{name!r} is not an encoding: give one such as utf-16, windows-1252 or latin-1",
            path="--encoding",
        )
    return name
