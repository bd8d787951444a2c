"""What `gazctl journals append` appends: files or stdin in blocks, decompressed and transcoded if an option says so.

And `gazctl attach-uuids`, which gives each line of such files a message UUID.
"""

from __future__ import annotations

import asyncio
import bz2
import codecs
import lzma
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, BinaryIO, Final, Protocol, Self, final

import typer

from gazette_platform.cli.gazctl.connection import opened
from gazette_platform.cli.output import note, writing
from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.gotemplate import GoObject, Method, Template
from gazette_platform.lake.spec.formats import HEAD_BYTES, Kind, recognize
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec

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


_BLOCK_BYTES: Final = 1 << 20
_STDIN: Final = 0
# More than any format needs to be known by its magic.
_MAGIC_BYTES: Final = 4 << 10
_NAMES_SHOWN: Final = 3


class CannotReadError(ValidationError):
    """A file cannot be read."""


@final
class AppendInput:
    """The input in blocks, read by a thread, with a progress bar on a terminal.

    Args:
        name: of a file; - is stdin.
        is_decompressed: whether to decompress what is compressed.
        encoding: of the text, which becomes UTF-8; empty: bytes stay as they are.

    Attributes:
        title: what to call it in messages.
        head: the first bytes of the content, which show its format.
        last_byte: of what was read last; empty if there is no content.
    """

    def __init__(
        self,
        name: str,
        *,
        is_decompressed: bool = False,
        encoding: str = "",
    ) -> None:
        self._is_stdin = name == "-"
        self.title = "stdin" if self._is_stdin else name
        try:
            self._fd = _STDIN if self._is_stdin else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as err:
            raise CannotReadError(f"cannot read {name}: {err.strerror}", path="FILE") from err
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise CannotReadError(f"is a directory ({name})", path="FILE")
        if self._is_stdin and sys.stdin.isatty():
            note("reading from the terminal; Ctrl-D ends it (or give a FILE)")
        self._is_file = stat.S_ISREG(status.st_mode)
        self._begin = os.lseek(self._fd, 0, os.SEEK_CUR) if self._is_file else 0
        self._spool: BinaryIO | None = None
        self._is_decompressed = is_decompressed
        self._encoding = encoding
        self.head = b""
        self.last_byte = b""
        from gazette_platform.cli.bars import transfer_bar  # noqa: PLC0415  slow to import

        is_shown = sys.stderr.isatty() and not (self._is_stdin and sys.stdin.isatty())
        self._progress = transfer_bar("appending", is_shown=is_shown)
        self._task = self._progress.add_task("", total=status.st_size if self._is_file else None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._spool is not None:
            self._spool.close()
        if not self._is_stdin:
            os.close(self._fd)

    async def spool(self) -> None:
        """Read a pipe or terminal to its end, into a temporary file.

        Brokers roll an append back whose content comes slower than their minimum, and without
        the file it could not be made again.
        """
        if self._is_file:
            return
        spool = tempfile.TemporaryFile(prefix="gazctl-append-")  # noqa: SIM115  by __exit__
        async for block in self._stored():
            await asyncio.to_thread(spool.write, block)
        self._spool = spool

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Content from the beginning each time, if that can be."""
        return self._content()

    async def _content(self) -> AsyncIterator[bytes]:
        self.head = self.last_byte = b""
        async for block in self._changed():
            if len(self.head) < HEAD_BYTES:
                self.head += block[: HEAD_BYTES - len(self.head)]
            self.last_byte = block[-1:] or self.last_byte
            yield block

    async def _changed(self) -> AsyncIterator[bytes]:
        """Content after the steps that were asked for, each done in a thread."""
        stored = self._stored()
        if not self._is_decompressed and not self._encoding:
            async for block in stored:
                yield block
            return
        first = b""
        while len(first) < _MAGIC_BYTES and (block := await anext(stored, b"")):
            first += block
        kind = recognize(first).kind if self._is_decompressed else Kind.TEXT
        steps: list[Step] = [Transcode(self._encoding, self.title)] if self._encoding else []
        if kind is Kind.ZIP:
            async for block in _in_thread(_through(steps, self._unzipped())):
                yield block
            return
        steps = [Decompress(kind, self.title), *steps]
        block = first
        while block:
            async for out in _in_thread(_fed(steps, block)):
                yield out
            block = await anext(stored, b"")
        async for out in _in_thread(_finished(steps)):
            yield out

    def _unzipped(self) -> Iterator[bytes]:
        """The one file in a zip archive, in a thread."""
        spool = self._spool
        if spool is None and not self._is_file:
            raise DataError(
                f"{self.title} is a zip archive, which is read from its end: give it as a FILE, or leave --framing out"
            )
        with (
            os.fdopen(os.dup(self._fd if spool is None else spool.fileno()), "rb") as file,
            _archive(file, self.title) as archive,
        ):
            names = [each.filename for each in archive.infolist() if not each.is_dir()]
            if len(names) != 1:
                shown = ", ".join(names[:_NAMES_SHOWN]) + (" …" if names[_NAMES_SHOWN:] else "")
                raise DataError(
                    f"{self.title} is a zip archive of {len(names)} files ({shown}): unpack it, and append them"
                )
            try:
                with archive.open(names[0]) as member:
                    while block := member.read(_BLOCK_BYTES):
                        yield block
            except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as err:
                raise DataError(f"{self.title} cannot be decompressed: {err}") from err

    async def _stored(self) -> AsyncIterator[bytes]:
        """Bytes as they are, from the beginning each time, if that can be."""
        if self._spool is not None:
            self._spool.seek(0)
            while block := await asyncio.to_thread(self._spool.read, _BLOCK_BYTES):
                yield block
            return
        if self._is_file:
            os.lseek(self._fd, self._begin, os.SEEK_SET)
            self._progress.reset(self._task)
        while block := await self._read():
            yield block
            self._progress.advance(self._task, len(block))

    async def _read(self) -> bytes:
        """The next block; b"" at the end. Cancellation: safe, also while a terminal is silent."""
        if not self._is_file:
            loop = asyncio.get_running_loop()
            is_ready = asyncio.Event()
            try:
                loop.add_reader(self._fd, is_ready.set)
            except PermissionError:
                pass  # a device that never blocks, such as /dev/null
            else:
                try:
                    await is_ready.wait()
                finally:
                    loop.remove_reader(self._fd)
        return await asyncio.to_thread(os.read, self._fd, _BLOCK_BYTES)


@contextmanager
def _archive(file: BinaryIO, title: str) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as err:
        raise DataError(f"{title} cannot be decompressed: {err}") from err
    with archive:
        yield archive


async def _in_thread(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while block := await asyncio.to_thread(next, blocks, b""):
        yield block


def _fed(steps: Sequence[Step], block: bytes) -> Iterator[bytes]:
    """What a block gives after all steps."""
    if not steps:
        yield block
        return
    for out in steps[0].feed(block):
        yield from _fed(steps[1:], out)


def _finished(steps: Sequence[Step]) -> Iterator[bytes]:
    """What is left in the steps, each through those after it."""
    for index, step in enumerate(steps):
        for out in step.finish():
            yield from _fed(steps[index + 1 :], out)


def _through(steps: Sequence[Step], blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield from _fed(steps, block)
    yield from _finished(steps)


_LENGTH_MAX = 4 << 20
# Lines need not be text.
_ENCODING = ("utf-8", "surrogateescape")


def attach_uuids(
    files: list[str] | None = None,
    *,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            help="What to write for a line: a template of Go's, with {{.UUID}} and {{.Line}}.",
            show_default=r"'{{.UUID}},{{.Line}}\n'",
        ),
    ] = "{{.UUID}},{{.Line}}\n",
    max_length: Annotated[int, typer.Option(min=1)] = _LENGTH_MAX,
    skip_header: bool = False,
) -> None:
    r"""Write the lines of files, each with a message UUID of its own.

    All have the same producer, a clock that grows from line to line, and are outside of transactions.
    So readers of messages take each once, also if the output is appended twice.

    **Examples**

    gazctl attach-uuids events.csv --skip-header | gazctl journals append events/part=0 -f lines

    gazctl attach-uuids events.jsonl --template $'{"uuid":"{{.UUID}}","event":{{.Line}}}\n'

    gazctl attach-uuids notes.txt --template '{{printf "%s %q\n" .UUID .Line}}'

    Options:
        FILE: Files to read; - or none is stdin.
        --max-length: Longest line, in bytes.
        --skip-header: Leave out the first line of each file.
    """
    write = _writer(template)
    uuids = _uuids()
    out = sys.stdout.buffer
    for name in files or ["-"]:
        with ExitStack() as stack:
            file = sys.stdin.buffer if name == "-" else stack.enter_context(opened(name, "FILE"))
            for line in _lines(file, name, max_length, skip=int(skip_header)):
                content = write(next(uuids), line)
                with writing("stdout"):
                    out.write(content)
    with writing("stdout"):
        out.flush()


def _uuids() -> Iterator[str]:
    """UUIDs of one producer, each later than the one before."""
    from gazette_platform.message import (  # noqa: PLC0415  slow to import
        Flags,
        MessageClock,
        build_uuid,
        new_producer_id,
    )

    producer, clock, now = new_producer_id(), MessageClock(), SystemClock()
    while True:
        clock.update(int(now.unix_s() * 1e9))
        yield str(build_uuid(producer, clock.tick(), Flags.OUTSIDE_TXN))


def _writer(text: str) -> Callable[[str, bytes], bytes]:
    """Return what makes the output of a UUID and its line. Raises: ValidationError: not a template."""

    def write(uuid: str, line: bytes) -> bytes:
        made = GoObject("uuid.UUID", {"String": Method(lambda: uuid)}, text=uuid)
        fields = GoObject("line", {"UUID": made, "Line": line.decode(*_ENCODING)})
        try:
            # The user's own, who gives the lines as well.
            return template.execute(fields, is_bounded=False).encode(*_ENCODING)
        except ValidationError as err:
            raise err.within("--template") from err

    try:
        template = Template(text)
    except ValidationError as err:
        raise err.within("--template") from err
    return write


def _lines(file: BinaryIO, name: str, length_max: int, *, skip: int) -> Iterator[bytes]:
    """Lines without their ends, which may be CRLF. Raises: DataError: one is too long."""
    number = 0
    while line := file.readline(length_max + 2):
        number += 1
        content = line.removesuffix(b"\n")
        content = content.removesuffix(b"\r") if content != line else content
        if len(content) > length_max:
            raise DataError(
                f"line {number} of {name} has more than {length_max} bytes (--max-length raises that)"
            )
        if number > skip:
            yield content
