"""`gazctl attach-uuids`: give each line of files a message UUID."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, BinaryIO

import typer

from gazette_platform.cli.gazctl.connection import opened
from gazette_platform.cli.output import writing
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.gotemplate import GoObject, Method, Template
from gazette_platform.ops.clock import SystemClock

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
