"""What all generators draw from: extreme numbers, odd texts, names, messages, and edits of bytes.

Everything follows from the `random.Random` that is passed in.
"""

from __future__ import annotations

import string
import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from random import Random

    from google.protobuf.message import Message

__all__ = ["Grammar"]

_EDGES = [
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    1023,
    1024,
    4096,
    65535,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
]
_EDGES += [(1 << 32) - 1, 1 << 32, (1 << 62), (1 << 63) - 2, (1 << 63) - 1, -(1 << 63), 1 << 63]
_EDGES += [(1 << 64) - 1, 253402300799, 253402300800, -62135596801]

_PIECES = [
    "", " ", "\0", "\n", "\r\n", "\t", "a", "A", "é", "½", "²", "漢", "\u202e", "\ud7ff", "\ufffd", "\U0001f600",
    "/", "//", "/../", "../", "./", "..", ".", "%", "%00", "%2e%2e/", "%2F", "%zz", "#", ";", ":", ",", "=", "==",
    "+", "-", "_", "*", "?", "&", "\\", '"', "'", "{{", "}}", "${x}", "name", "prefix", "null", "true", "0", "-0",
    "1e999", "NaN", "0x10", "9" * 5000, "a" * 300, "é" * 600, "file:///", "s3://bucket/", "http://127.0.0.1:1/",
]  # fmt: skip

_LABEL_NAMES = [
    "name",
    "prefix",
    "content-type",
    "app.gazette.dev/tag",
    "app.gazette.dev/managed-by",
]
_LABEL_NAMES += [
    "app.gazette.dev/message-type",
    "aa",
    "bb",
    "estuary.dev/x",
    "name:prefix",
    "a",
    "x" * 65,
]

_DURATIONS = [0, 1, 10**9, 60 * 10**9, -(10**9), 3600 * 10**9, 24 * 3600 * 10**9 + 1, (1 << 63) - 1]

_KNOWN_STORES = ["file:///", "file:///fuzz/", "file:///mine/", "file:///?find=mine&replace=mine2"]
_ODD_STORES = [
    "file:///x%00y/", "file:///x\0y/", "file:///../../", "file:///%2e%2e/", "file:///secret/", "file://host/x/",
    "file:///?find=mine/&replace=secret/", "file:///?find=&replace=x", "file:///?endpoint=http://127.0.0.1:1",
    "s3://bucket/prefix/", "s3:///", "gs://b/?profile=%00", "azure-ad://t/a/c/", "ftp://x/", "file:relative/",
    "file:///" + "d/" * 1000, "file:///" + "n" * 300 + "/", "file:///é/\u202e/", "://", "", "file:///a?b=c#d",
    "file:///nested/?find=a", "http://[::1/", "file:///%zz/", "file:///x/?find=%00&replace=%00",
]  # fmt: skip

_DEPTH_MAX = 5


class Grammar:
    """Draws values from one seed.

    Args:
        rng: source of all chance.
        journals: names that exist and that inputs may use.
    """

    def __init__(self, rng: Random, journals: list[str]) -> None:
        self.rng = rng
        self.journals = journals

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return self.rng.random() < probability

    def number(self) -> int:
        """A number that is small, or at an edge."""
        if self.chance(0.3):
            return self.rng.randint(-3, 300)
        return self.rng.choice(_EDGES) + self.rng.choice((0, 0, 0, 1, -1))

    def text(self, most: int = 4) -> str:
        """Troublesome pieces of text, put together."""
        return "".join(self.rng.choice(_PIECES) for _ in range(self.rng.randint(1, most)))

    def journal(self) -> str:
        """A name, mostly of a journal that exists."""
        if self.chance(0.75):
            return self.rng.choice(self.journals)
        return self.rng.choice(
            ["fuzz/none", "../x", "", "a", "/abs", "fuzz/a;meta", "fuzz/a;", "x" * 600, self.text()]
        )

    def store(self) -> str:
        """The URL of a store: usable, odd or nonsense."""
        return self.rng.choice(self.rng.choice((_KNOWN_STORES, _ODD_STORES, [self.text()])))

    def content(self) -> bytes:
        """Bytes of an append: short, binary, or of a line or so."""
        kind = self.rng.randint(0, 4)
        if kind == 0:
            return b""
        if kind == 1:
            return self.rng.randbytes(self.rng.choice((1, 7, 300, 70_000)))
        if kind == 2:
            return b"x" * self.rng.choice((1, 1000, 1 << 20))
        return f'{{"k": {self.rng.random()}}}\n'.encode() * self.rng.randint(1, 20)

    # ------------------------------------------------------------------ protobuf

    def fill(self, message: Message, *, density: float = 0.6, depth: int = 0) -> Message:
        """Set fields of a message at random, well-formed and extreme. Returns: the message."""
        for field in message.DESCRIPTOR.fields:
            if not self.chance(density):
                continue
            if field.message_type is not None:
                if depth < _DEPTH_MAX:
                    self._fill_message(message, field, density, depth)
            elif field.is_repeated:
                values = [self._scalar(message, field) for _ in range(self.rng.randint(0, 4))]
                getattr(message, field.name).extend(values)
            else:
                setattr(message, field.name, self._scalar(message, field))
        return message

    def _fill_message(
        self, message: Message, field: FieldDescriptor, density: float, depth: int
    ) -> None:
        value: Any = getattr(message, field.name)
        name = field.message_type.full_name
        if field.message_type.GetOptions().map_entry:
            for _ in range(self.rng.randint(0, 4)):
                value[self.journal().encode(errors="replace").decode()] = _fit(self.number(), 64)
        elif name == "google.protobuf.Duration":
            value.seconds, value.nanos = divmod(self.rng.choice(_DURATIONS), 10**9)
            if self.chance(0.1):
                value.seconds = _fit(self.number(), 64)
        elif name == "protocol.LabelSet":
            self.labels_into(value)
        elif field.is_repeated:
            for _ in range(self.rng.choice((0, 1, 1, 2, 30))):
                self.fill(value.add(), density=density, depth=depth + 2)
        else:
            value.SetInParent()
            self.fill(value, density=density, depth=depth + 1)

    def labels_into(self, label_set: Any) -> None:
        """Mostly sorted labels."""
        pairs = [
            (
                self.rng.choice(_LABEL_NAMES),
                self.rng.choice(("", "a", "b", "text/csv", self.journal())),
            )
            for _ in range(self.rng.choice((0, 1, 1, 2, 3, 40)))
        ]
        if self.chance(0.8):
            pairs = sorted(set(pairs))
        for name, value in pairs:
            label_set.labels.add(name=_text(name), value=_text(value), prefix=self.chance(0.1))

    def _scalar(self, message: Message, field: FieldDescriptor) -> Any:
        kind = field.type
        if field.enum_type is not None:
            return self.rng.choice((0, 1, 2, 3, 4, 5, 77, -1))
        if kind == FieldDescriptor.TYPE_STRING:
            return _text(self._string(message.DESCRIPTOR.name, field.name))
        if kind == FieldDescriptor.TYPE_BYTES:
            return self.content()
        if kind == FieldDescriptor.TYPE_BOOL:
            return self.chance(0.4)
        bits = 32 if kind in _WORDS_32 else 64
        return _fit(self.number(), bits, signed=kind in _SIGNED)

    def _string(self, holder: str, name: str) -> str:
        if (
            "journal" in name.lower()
            or name == "delete"
            or (holder, name) == ("JournalSpec", "name")
        ):
            return self.journal()
        if "store" in name:
            return self.store()
        if name == "path_postfix_template":
            return self.template() if self.chance(0.5) else ""
        if name == "zone":
            return self.rng.choice(("a", "b", "zz", self.text()))
        if name == "suffix":
            return self.rng.choice(("broker-1", "broker-2", "broker-9", self.text()))
        return self.text()

    # ------------------------------------------------------------------ templates

    def template(self, depth: int = 0) -> str:
        """A path postfix template; more often than not it parses."""
        return "".join(self._action(depth) for _ in range(self.rng.randint(1, 4)))

    def _action(self, depth: int) -> str:
        kind = self.rng.randint(0, 9)
        if kind < 3 or depth > 3:
            return "{{" + self._operand(depth) + "}}"
        if kind < 5:
            inner, other = self.template(depth + 1), self.template(depth + 1)
            word = self.rng.choice(("if", "with", "range"))
            return "{{" + f"{word} {self._operand(depth)}}}}}{inner}{{{{else}}}}{other}{{{{end}}}}"
        if kind == 5:
            name = self.rng.choice(("$a", "$b"))
            return "{{" + f"{name} := {self._operand(depth)}}}}}{{{{{name}}}}}"
        if kind == 6:
            return self.rng.choice(
                ("date=", "x/", "{{/* c */}}", "{{- 1 -}}", "{{define", "{{end}}", "é")
            )
        return "{{" + self._operand(depth) + " | " + self.rng.choice(_FUNCTIONS) + "}}"

    def _operand(self, depth: int) -> str:
        if depth < 4 and self.chance(0.4):
            name = self.rng.choice(_FUNCTIONS)
            count = self.rng.randint(1, 3)
            return f"{name} " + " ".join(f"({self._operand(depth + 1)})" for _ in range(count))
        return self.rng.choice(_OPERANDS)

    # ------------------------------------------------------------------ mutation

    def mutate(self, raw: bytes) -> bytes:
        """The same bytes with a few edits."""
        data = bytearray(raw)
        for _ in range(self.rng.choice((1, 1, 1, 2, 4, 16))):
            self._edit(data)
        return bytes(data[: 5 << 20])

    def _edit(self, data: bytearray) -> None:
        at = self.rng.randint(0, len(data))
        end = min(len(data), at + self.rng.choice((1, 1, 2, 4, 32)))
        kind = self.rng.randint(0, 7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << self.rng.randint(0, 7)
        elif kind == 1 and at < len(data):
            data[at] = self.rng.choice((0, 1, 0x7F, 0x80, 0xFF, self.rng.randint(0, 255)))
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * self.rng.choice((1, 2, 100))
        elif kind == 4:
            data[at:at] = self.text(1).encode(errors="replace")
        elif kind == 5:
            data[at:at] = struct.pack("<Q", self.number() & ((1 << 64) - 1))
        elif kind == 6:
            del data[at:]
        else:
            data[at:at] = self.rng.randbytes(self.rng.choice((1, 3, 12)))

    def words(self, count: int) -> str:
        """Printable text without meaning."""
        return "".join(self.rng.choice(_PRINTABLE) for _ in range(count))


_PRINTABLE = string.digits + string.ascii_letters + string.punctuation
_SIGNED = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64}
_WORDS_32 = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32}

_FUNCTIONS = [
    "len", "index", "slice", "print", "println", "printf", "urlquery", "html", "js", "and", "or", "not", "eq", "ne",
    "lt", "le", "gt", "ge", "call", "nope", 'printf "%d"', 'printf "%s"', 'printf "%q"', 'printf "%c"',
    'printf "%*d"', 'printf "%[3]d"', 'printf "%9999d"', 'printf "%08.3f"', 'printf "%x"', 'printf "%v"', 'printf "%"',
]  # fmt: skip
_OPERANDS = [
    ".", "$", ".Spool", ".JournalSpec", ".Spool.FirstAppendTime", '.Spool.FirstAppendTime.Format "2006-01-02"',
    ".Spool.Registers", '.Spool.Registers.ValueOf "aa"', '.Spool.Registers.ValuesOf "aa"', ".Spool.Begin",
    ".Spool.End", ".Spool.Sum.ToDigest", ".Spool.ContentName", ".JournalSpec.Name", '.JournalSpec.ValueOf "name"',
    ".Spool.FirstAppendTime.Unix", ".Spool.FirstAppendTime.UnixNano", ".JournalSpec.Suspend.Offset",
    ".JournalSpec.Fragment.Stores", ".JournalSpec.Fragment.FlushInterval", "1", "-1", "55296", "1114112", "1e400",
    "9223372036854775807", "0x7fffffffffffffff", '"text"', "`raw`", "'c'", "nil", "true", "$a", ".Nope", '"\\ud800"',
    ".Spool.CompressionCodec.String", ".Spool.ModTime", '"%s%s"', "1i", ".Spool.FirstAppendTime.Add 1",
]  # fmt: skip


def _text(text: str) -> str:
    """The text, without what protobuf does not take in a string."""
    return text.encode(errors="replace").decode(errors="replace")


def _fit(value: int, bits: int, *, signed: bool = True) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value
