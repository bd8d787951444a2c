"""What concurrent clients did to journals, and the answers that they got: the input of the checker.

An *append* is invoked, and later ends **ok** (with begin and end), **fail** (a broker refused it:
not applied) or **unknown** (an error or a timeout: applied at most as often as it was attempted,
perhaps later). An operation that never ended, because its process did, is unknown too. A *poll* is
one step of a read: it asks at an offset and gets pieces of content. *Final* content is what a
journal holds when all is over. *Notes* say what else happened, such as faults.

A history is kept as JSON lines, written while it happens, so that a crash of the recording program
loses nothing that it had learned.

The content of an append is a `Payload`: it is made from a seed and a tag, and shows anywhere whose it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, final

from typing_extensions import override

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import TextIO

    from gazette_platform.ops.clock import Clock

_HEAD = re.compile(rb"<([A-Za-z0-9_.-]{1,64}) ([0-9]{6})>")
_LENGTH_MAX = 999_999


@dataclass(frozen=True, slots=True)
class Payload:
    """Names the content of one append; the bytes follow from it and the seed of the history.

    Raises: ValidationError: the tag cannot be recognized, or does not fit the length.
    """

    tag: str
    """Unique in its history; letters, digits, ``_``, ``.`` and ``-``."""
    length: int
    """Bytes in all, head and line feed included."""

    def __post_init__(self) -> None:
        """Check what `payload_bytes` relies on."""
        head = f"<{self.tag} {self.length:06d}>".encode()
        if _HEAD.fullmatch(head) is None:
            raise ValidationError(
                f"{self.tag!r} of {self.length} bytes: expected 1 to 64 of A-Za-z0-9_.- "
                f"and at most {_LENGTH_MAX} bytes",
                path="payload",
            )
        if self.length < len(head) + 1:
            raise ValidationError(
                f"{self.length} bytes cannot hold the tag {self.tag!r}; "
                f"at least {len(head) + 1} can",
                path="payload.length",
            )


def payload_bytes(seed: int, payload: Payload) -> bytes:
    r"""The content: ``<tag length>``, hexadecimal digits that follow from the seed, a line feed.

    The digits never hold ``<``, so that a head is the beginning of an append wherever it is found.

    >>> payload_bytes(7, Payload("w1-3", 30))
    b'<w1-3 000030>9a8191157626d0a3\n'
    """
    head = f"<{payload.tag} {payload.length:06d}>".encode()
    rest = payload.length - len(head) - 1
    shake = hashlib.shake_128(f"{seed}/{payload.tag}".encode())
    return head + shake.hexdigest((rest + 1) // 2)[:rest].encode() + b"\n"


def tags_of(content: bytes) -> list[tuple[int, Payload]]:
    r"""Heads within `content`: the position of each, and what it claims to begin.

    >>> tags_of(b"41cc\n<w1-3 000030>3e6c")
    [(5, Payload(tag='w1-3', length=30))]
    """
    found = []
    for match in _HEAD.finditer(content):
        tag, length = match[1].decode(), int(match[2])
        if length > match.end() - match.start():
            found.append((match.start(), Payload(tag, length)))
    return found


_VERSION = 1


class Outcome(StrEnum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One append of one client."""

    id: int
    """Unique in the history."""
    process: str
    """The client; it has one operation at a time on a journal."""
    journal: str
    content: bytes
    payload: Payload | None = None
    """Set when the content was made from it."""
    invoked_at: float
    """Monotonic seconds."""
    completed_at: float = math.inf
    """Monotonic seconds; infinite if the client never learned how it ended."""
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = 0
    """Where it had to begin; 0: anywhere."""
    check: LabelSelector | None = None
    """What the registers had to match, unless there were none."""
    union: LabelSet | None = None
    subtract: LabelSet | None = None
    begin: int = -1
    """Where it was committed, if ok."""
    end: int = -1
    sha1: bytes = b""
    """As the broker answered; empty: not recorded."""
    registers: LabelSet | None = None
    """After it, as the broker answered."""
    attempts: int = 1
    """How often it may have reached a broker: the most times that it may be visible."""
    error: str = ""

    @property
    def label(self) -> str:
        """A short name of it."""
        return f"append {self.payload.tag if self.payload else self.id}"

    @override
    def __str__(self) -> str:
        parts = [f"{self.process}: {self.label} ({len(self.content)} B) to {self.journal}"]
        parts.extend(
            f"{name} {value}"
            for name, value in (
                ("at offset", self.offset or None),
                ("if", self.check),
                ("set", self.union),
                ("unset", self.subtract),
            )
            if value is not None
        )
        ended = f"{self.completed_at:.3f}" if math.isfinite(self.completed_at) else "never"
        parts.append(f"invoked {self.invoked_at:.3f}, ended {ended}: {self.outcome}")
        if self.outcome is Outcome.OK:
            parts.append(f"at [{self.begin}, {self.end})")
        if self.registers is not None:
            parts.append(f"registers {{{self.registers}}}")
        if self.attempts != 1:
            parts.append(f"{self.attempts} attempts")
        if self.error:
            parts.append(self.error)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Piece:
    """Content that a read gave."""

    begin: int
    length: int
    sha1: bytes
    content: bytes | None = None
    """None: only its digest was kept."""

    @classmethod
    def of(cls, begin: int, content: bytes, *, keep: bool = True) -> Self:
        """The piece of `content`; its bytes are dropped unless `keep`."""
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        return cls(begin, len(content), digest, content if keep else None)

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.begin + self.length

    @override
    def __str__(self) -> str:
        return f"[{self.begin}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One step of a read."""

    id: int
    process: str
    journal: str
    stream: int
    """Polls of one stream continue each other."""
    offset: int
    """Where it asked; -1: the write head."""
    invoked_at: float
    completed_at: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN
    pieces: tuple[Piece, ...] = ()
    write_head: int = -1
    """As the broker answered; -1: it did not."""
    error: str = ""

    @override
    def __str__(self) -> str:
        got = " ".join(map(str, self.pieces)) or "nothing"
        ended = f"{self.completed_at:.3f}" if math.isfinite(self.completed_at) else "never"
        return (
            f"{self.process}: read {self.journal} at {self.offset} (stream {self.stream}), "
            f"invoked {self.invoked_at:.3f}, ended {ended}: {self.outcome}, got {got}"
            + (f", {self.error}" if self.error else "")
        )


@dataclass(frozen=True, slots=True)
class FinalContent:
    """All that a journal holds after everybody is done."""

    journal: str
    begin: int
    """The first byte; content before it existed already, or has been pruned."""
    content: bytes
    registers: LabelSet | None = None
    """The registers from before the first append of the history; None: there were none."""

    @property
    def end(self) -> int:
        """The write head."""
        return self.begin + len(self.content)


@dataclass(frozen=True, slots=True)
class Note:
    """Something else that happened."""

    at: float
    text: str


@dataclass(slots=True)
class History:
    """Everything recorded, completions joined to what they complete."""

    seed: int = 0
    appends: list[Append] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    finals: dict[str, FinalContent] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    pruned: dict[str, int] = field(default_factory=dict)
    """Up to where content may have been deleted, of journals where that is recorded."""

    @property
    def journals(self) -> list[str]:
        """Every journal that is named, in order."""
        named = {op.journal for op in self.appends} | {op.journal for op in self.polls}
        return sorted(named | set(self.finals))

    def __len__(self) -> int:
        return len(self.appends) + len(self.polls)


@final
class Recorder:
    """Writes a history while it happens.

    Every call is one line, given to the operating system at once. Belongs to one thread. Several
    processes on one machine may each write a file: their monotonic clocks are the same one.

    Args:
        path: the file, replaced if it exists.
        seed: of generated payloads.
        keep_content: keep bytes that reads gave, not only their digests, so that an anomaly can be
            explained.
    """

    def __init__(
        self, path: Path, clock: Clock, *, seed: int = 0, keep_content: bool = True
    ) -> None:
        self.path = path
        self.seed = seed
        self._clock = clock
        self._keep_content = keep_content
        self._file: TextIO = path.open("w", buffering=1)
        self._next_id = 0
        self._next_stream = 0
        self._write({"type": "history", "version": _VERSION, "seed": seed})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the file. May be called again."""
        self._file.close()

    def stream(self) -> int:
        """A number for the polls of one reader."""
        self._next_stream += 1
        return self._next_stream

    def invoke_append(
        self,
        process: str,
        journal: str,
        content: bytes | Payload,
        *,
        offset: int = 0,
        check: LabelSelector | None = None,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
    ) -> int:
        """An append is about to be made. Returns: its id."""
        line = {
            "type": "append",
            "process": process,
            "journal": journal,
            "content": _content_json(content),
            "offset": offset or None,
            "check": str(check) if check is not None else None,
            "union": _labels_json(union),
            "subtract": _labels_json(subtract),
        }
        return self._invoke(line)

    def invoke_poll(self, process: str, journal: str, *, stream: int, offset: int) -> int:
        """A read is about to wait for its next piece. Returns: its id."""
        line = {"type": "poll", "process": process, "journal": journal, "stream": stream}
        return self._invoke(line | {"offset": offset})

    def ok_append(
        self,
        op: int,
        *,
        begin: int,
        end: int,
        sha1: bytes = b"",
        registers: LabelSet | None = None,
        attempts: int = 1,
    ) -> None:
        """The append was acknowledged."""
        self._complete(
            op,
            Outcome.OK,
            {
                "begin": begin,
                "end": end,
                "sha1": sha1.hex() or None,
                "registers": _labels_json(registers),
                "attempts": attempts if attempts != 1 else None,
            },
        )

    def ok_poll(self, op: int, *pieces: tuple[int, bytes], write_head: int = -1) -> None:
        """The poll got these pieces: offset and content of each."""
        kept = [Piece.of(begin, data, keep=self._keep_content) for begin, data in pieces]
        self._complete(
            op,
            Outcome.OK,
            {
                "pieces": [_piece_json(piece) for piece in kept],
                "write_head": write_head if write_head >= 0 else None,
            },
        )

    def fail(self, op: int, error: str) -> None:
        """A broker refused: nothing was applied, nothing was read."""
        self._complete(op, Outcome.FAIL, {"error": error})

    def unknown(self, op: int, error: str, *, attempts: int = 1) -> None:
        """It is unknown whether it was applied; at most `attempts` times."""
        self._complete(
            op, Outcome.UNKNOWN, {"error": error, "attempts": attempts if attempts != 1 else None}
        )

    def final(
        self, journal: str, content: bytes, *, begin: int = 0, registers: LabelSet | None = None
    ) -> None:
        """What the journal holds after all appends have ended; see `FinalContent`."""
        self._write(
            {
                "type": "final",
                "journal": journal,
                "begin": begin,
                "base64": base64.b64encode(content).decode(),
                "registers": _labels_json(registers),
            }
        )

    def pruned(self, journal: str, end: int) -> None:
        """Content up to `end` is about to be deleted; what lies behind must stay."""
        self._write({"type": "pruned", "journal": journal, "end": end})

    def note(self, text: str) -> None:
        """Something happened that explains what follows, such as a fault."""
        self._write({"type": "note", "at": self._now(), "text": text})

    def _invoke(self, line: dict[str, Any]) -> int:
        op, self._next_id = self._next_id, self._next_id + 1
        self._write({"op": op, "at": self._now()} | line)
        return op

    def _complete(self, op: int, outcome: Outcome, line: dict[str, Any]) -> None:
        self._write({"type": outcome.value, "op": op, "at": self._now()} | line)

    def _now(self) -> float:
        # Microseconds: rounding must not turn two instants around, so it keeps more than is needed.
        return round(self._clock.monotonic(), 6)

    def _write(self, line: dict[str, Any]) -> None:
        kept = {key: value for key, value in line.items() if value is not None}
        self._file.write(json.dumps(kept, separators=(",", ":")) + "\n")


def load_history(*paths: Path) -> History:
    """Read what `Recorder` wrote, of one process or of several; a torn last line is left out.

    Raises: DataError: a file is not a history, or is damaged; names file and line.
    """
    histories = [_load(path) for path in paths]
    if len({history.seed for history in histories}) > 1:
        raise DataError(f"histories of different seeds: {', '.join(map(str, paths))}")
    merged = History(seed=histories[0].seed if histories else 0)
    for number, history in enumerate(histories):
        # Ids count from 0 in each file.
        base = number * 10_000_000
        merged.appends += [replace(op, id=op.id + base) for op in history.appends]
        merged.polls += [
            replace(op, id=op.id + base, stream=op.stream + base) for op in history.polls
        ]
        merged.finals |= history.finals
        for journal, end in history.pruned.items():
            merged.pruned[journal] = max(end, merged.pruned.get(journal, 0))
        merged.notes += history.notes
    return merged


def _load(path: Path) -> History:
    history = History()
    appends: dict[int, Append] = {}
    polls: dict[int, Poll] = {}
    with path.open() as file:
        for number, line in _lines(file):
            try:
                _take(json.loads(line), history, appends, polls)
            except (ValueError, KeyError, TypeError) as err:
                raise DataError(f"{path}:{number}: not a line of a history: {err!r}") from err
    history.appends = list(appends.values())
    history.polls = list(polls.values())
    return history


def _lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Whole lines with their numbers: the last one may be half written."""
    for number, line in enumerate(file, 1):
        if line.endswith("\n"):
            yield number, line


def _take(
    line: dict[str, Any], history: History, appends: dict[int, Append], polls: dict[int, Poll]
) -> None:
    match line["type"]:
        case "history":
            if line["version"] != _VERSION:
                raise ValueError(f"version {line['version']}, expected {_VERSION}")
            history.seed = line["seed"]
        case "append":
            appends[line["op"]] = _append_of(line, history.seed)
        case "poll":
            polls[line["op"]] = Poll(
                id=line["op"],
                process=line["process"],
                journal=line["journal"],
                stream=line["stream"],
                offset=line["offset"],
                invoked_at=line["at"],
            )
        case "final":
            content = base64.b64decode(line["base64"])
            registers = _labels_of(line.get("registers"))
            journal = line["journal"]
            history.finals[journal] = FinalContent(journal, line["begin"], content, registers)
        case "pruned":
            journal, end = line["journal"], line["end"]
            history.pruned[journal] = max(end, history.pruned.get(journal, 0))
        case "note":
            history.notes.append(Note(line["at"], line["text"]))
        case kind:
            op, outcome = line["op"], Outcome(kind)
            if op in appends:
                appends[op] = _completed_append(appends[op], outcome, line)
            else:
                polls[op] = _completed_poll(polls[op], outcome, line)


def _append_of(line: dict[str, Any], seed: int) -> Append:
    content, payload = _content_of(line["content"], seed)
    check = line.get("check")
    return Append(
        id=line["op"],
        process=line["process"],
        journal=line["journal"],
        content=content,
        payload=payload,
        invoked_at=line["at"],
        offset=line.get("offset", 0),
        check=LabelSelector.parse(check) if check is not None else None,
        union=_labels_of(line.get("union")),
        subtract=_labels_of(line.get("subtract")),
    )


def _completed_append(op: Append, outcome: Outcome, line: dict[str, Any]) -> Append:
    return replace(
        op,
        outcome=outcome,
        completed_at=line["at"],
        begin=line.get("begin", -1),
        end=line.get("end", -1),
        sha1=bytes.fromhex(line.get("sha1", "")),
        registers=_labels_of(line.get("registers")),
        attempts=line.get("attempts", 1),
        error=line.get("error", ""),
    )


def _completed_poll(op: Poll, outcome: Outcome, line: dict[str, Any]) -> Poll:
    return replace(
        op,
        outcome=outcome,
        completed_at=line["at"],
        pieces=tuple(_piece_of(piece) for piece in line.get("pieces", ())),
        write_head=line.get("write_head", -1),
        error=line.get("error", ""),
    )


def _content_json(content: bytes | Payload) -> dict[str, Any]:
    if isinstance(content, Payload):
        return {"payload": [content.tag, content.length]}
    return {"base64": base64.b64encode(content).decode()}


def _content_of(value: dict[str, Any], seed: int) -> tuple[bytes, Payload | None]:
    if "payload" in value:
        payload = Payload(*value["payload"])
        return payload_bytes(seed, payload), payload
    return base64.b64decode(value["base64"]), None


def _piece_json(piece: Piece) -> list[Any]:
    if piece.content is None:
        return [piece.begin, piece.length, piece.sha1.hex()]
    return [piece.begin, base64.b64encode(piece.content).decode()]


def _piece_of(value: list[Any]) -> Piece:
    if len(value) == 3:
        begin, length, digest = value
        return Piece(begin, length, bytes.fromhex(digest))
    begin, content = value
    return Piece.of(begin, base64.b64decode(content))


def _labels_json(labels: Iterable[Any] | None) -> list[list[str]] | None:
    return [[label.name, label.value] for label in labels] if labels is not None else None


def _labels_of(pairs: list[list[str]] | None) -> LabelSet | None:
    return LabelSet.of(*[(name, value) for name, value in pairs]) if pairs is not None else None
