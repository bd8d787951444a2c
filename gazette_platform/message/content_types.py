"""The framings of Gazette's content types, and the registry of framings.

A journal's label ``content-type`` names its framing: JSON lines, CSV (RFC 4180), or fixed frames of
protobuf. Each message carries its UUID: as text in a field, as the first column, or as bytes in a field.
Register your own framing for messages of your types, or for UUIDs in another field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final
from uuid import UUID

import msgspec
import orjson
from google.protobuf.message import DecodeError, EncodeError
from msgspec import inspect
from typing_extensions import override

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.framing import (
    FIXED_HEADER,
    FIXED_MAGIC,
    FRAME_BYTES_MAX,
    LineSplitter,
    frame_fixed,
    unexpected_eof,
)
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.protocol import escape_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.message.framing import Framing
    from gazette_platform.protocol import LabelSet

# ------------------------------------------------------------------ JSON lines

M = TypeVar("M")

_NO_FIELDS: Final = (str, bytes, bytearray, int, float, list, tuple, set, frozenset)


def go_json(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    r"""JSON as programs in Go write it: ``<>&`` escaped, and bytes as base64.

    >>> go_json({"a": "<b>", "c": b"\x00\x01"}).decode()
    '{"a":"\\u003cb\\u003e","c":"AAE="}'

    Raises: ValidationError: there is no JSON of it.
    """
    try:
        raw = msgspec.json.encode(value, enc_hook=enc_hook or _plain)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as err:
        raise ValidationError(f"there is no JSON of {type(value).__name__}: {err}") from err
    return escape_html(raw)


def _plain(value: Any) -> Any:
    """What msgspec can write of a model of pydantic, which is not a dependency of ours."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(mode="json", by_alias=True)


@final
class JsonFraming(Generic[M]):
    """Messages of JSON lines: dictionaries, objects of a type of msgspec, or models of pydantic.

    Args:
        uuid_field: where the UUID is: a key, or keys joined by dots; of typed messages an attribute. None: messages
            have no UUIDs, and each counts as often as it was appended.
        message_type: what lines are decoded into; None: into plain values.
        empty: makes the message of an ACK; default: `message_type` without arguments.
        enc_hook: msgspec's, for types that it does not know.
        dec_hook: likewise.

    Raises: ValidationError: `message_type` has no such field. Acknowledgements, repeated messages and
        uncommitted ones would be read as messages.
    """

    content_type = "application/x-ndjson"

    def __init__(
        self,
        *,
        uuid_field: str | None = "UUID",
        message_type: type[M] | None = None,
        empty: Callable[[], M] | None = None,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._path = [] if uuid_field is None else uuid_field.split(".")
        if not all(self._path):
            raise ValidationError(
                f"must be names joined by dots ({uuid_field!r})", path="uuid_field"
            )
        if message_type is not None and not _may_have(_info_of(message_type), self._path):
            raise ValidationError(
                f"{getattr(message_type, '__name__', message_type)} has no field {uuid_field} for the UUID, which "
                'distinguishes committed messages from others. Add `UUID: str = ""`, or name the field that has it',
                path="uuid_field",
            )
        self._typed = message_type
        self._empty: Callable[[], M] = empty or cast("Callable[[], M]", message_type or dict)
        self._enc_hook = enc_hook
        self._loads: Callable[[bytes], Any] = orjson.loads
        if message_type is not None:
            of_pydantic = getattr(message_type, "model_validate_json", None)
            self._loads = (
                of_pydantic or msgspec.json.Decoder(message_type, dec_hook=dec_hook).decode
            )

    def decoder(self) -> _JsonDecoder[M]:
        """See `Framing`."""
        return _JsonDecoder(self._loads, getattr(self._typed, "__name__", ""))

    def encode(self, message: M) -> bytes:
        """See `Framing`."""
        return go_json(message, enc_hook=self._enc_hook) + b"\n"

    def uuid_of(self, message: M) -> UuidParts:
        """See `Framing`."""
        if not self._path:
            return NO_UUID
        value: Any = message
        for name in self._path:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
            if value is None:
                return NO_UUID
        if self._typed is not None and value in ("", b""):
            return NO_UUID  # the default of its attribute
        if not isinstance(value, str | bytes | UUID):
            raise DataError(f"{'.'.join(self._path)} is not a UUID but {type(value).__name__}")
        return parse_uuid(value)

    def stamp(self, message: M, uuid: UUID) -> M:
        """See `Framing`."""
        if not self._path:
            raise ValidationError(
                "messages have no place for a UUID (give JsonFraming a `uuid_field`)"
            )
        if message is None or isinstance(message, _NO_FIELDS):
            raise ValidationError(
                f"a {type(message).__name__} takes no UUID: publish a dict, as {{'value': …}}, or an object with the "
                f"field {'.'.join(self._path)}"
            )
        return cast("M", _stamped(message, self._path, uuid))

    def acknowledgement(self, message: M) -> M:  # noqa: ARG002  all are alike
        """See `Framing`."""
        try:
            return self._empty()
        except (TypeError, ValueError) as err:
            raise ValidationError(
                f"no message for an ACK can be made: {err} (give JsonFraming what makes an `empty` one)"
            ) from err


def _info_of(kind: Any) -> Any:
    try:
        return inspect.type_info(kind)
    except TypeError:  # msgspec refuses it, and a hook decodes it
        return inspect.AnyType()


def _may_have(kind: Any, path: list[str]) -> bool:
    """Whether a message of a type, as `msgspec.inspect` describes it, may have a value at `path`."""
    if not path or isinstance(kind, inspect.AnyType | inspect.DictType):
        return True
    if isinstance(kind, inspect.UnionType):
        return all(_may_have(one, path) for one in kind.types if one != inspect.NoneType())
    owner, (name, *rest) = getattr(kind, "cls", None), path
    fields = {one.name: one.type for one in getattr(kind, "fields", ())}
    if isinstance(kind, inspect.CustomType):
        models = getattr(owner, "model_fields", None)
        if models is None or getattr(owner, "model_config", {}).get("extra") == "allow":
            return True  # decoded by a hook, or a model that takes any field
        fields = {key: _info_of(one.annotation) for key, one in models.items()}
    return _may_have(fields[name], rest) if name in fields else hasattr(owner, name)


def _stamped(owner: Any, path: list[str], uuid: UUID) -> Any:
    """`owner` with the UUID at `path`; what lies between is made if need be."""
    name, rest = path[0], path[1:]
    if isinstance(owner, dict):
        owner[name] = _stamped(owner.get(name) or {}, rest, uuid) if rest else str(uuid)
        return owner
    try:
        former = getattr(owner, name)
        # An attribute that holds text gets text, and any other the object.
        value: Any = str(uuid) if isinstance(former, str) else uuid
        if rest:
            value = _stamped(former, rest, uuid)
        if isinstance(owner, msgspec.Struct) and owner.__struct_config__.frozen:
            return msgspec.structs.replace(owner, **{name: value})
        setattr(owner, name, value)
    except (AttributeError, ValueError) as err:  # the latter of a model that is frozen
        raise ValidationError(
            f"{type(owner).__name__} takes no UUID as {name}: {err} (name another `uuid_field`)"
        ) from err
    return owner


@final
class _JsonDecoder(LineSplitter, Generic[M]):
    def __init__(self, loads: Callable[[bytes], Any], kind: str) -> None:
        super().__init__()
        self._loads = loads
        self._kind = kind

    def decode(self, frame: bytes) -> M:
        """See `Decoder`."""
        try:
            return cast("M", self._loads(frame))
        except (ValueError, msgspec.MsgspecError, RecursionError) as err:
            # JSON that a typed decoder refuses is JSON all the same.
            is_typed = isinstance(err, msgspec.ValidationError) or hasattr(err, "error_count")
            what = f"no {self._kind}" if is_typed else "not JSON"
            text = " ".join(str(err).split())
            raise DataError(f"the line is {what}: {text} ({frame[:80]!r})") from err


# ------------------------------------------------------------------ CSV

# Python's own reader refuses fields beyond a limit of the whole process, and its writer quotes
# by other rules. Repetitions are possessive, so that no text takes longer than its length.
_WITHIN = r'(?:[^"]++|"")*+'
_FIELD = rf'(?:"{_WITHIN}"|[^",]*+)'
_FIELDS = re.compile(rf"({_FIELD}),")
_RECORD = re.compile(rf"(?:{_FIELD},)++")
# Of a line that ends within a field in quotes: one that begins a record, and one that goes on so.
_OPENS = re.compile(rf'(?:{_FIELD},)*+"{_WITHIN}'.encode())
_STAYS_OPEN = re.compile(rf'{_WITHIN}(?:",(?:{_FIELD},)*+"{_WITHIN})?'.encode())
_BLANK = frozenset((b"\n", b"\r\n"))
_ASKS_FOR_QUOTES = re.compile(r'[",\r\n]')


def csv_record(fields: list[str]) -> bytes:
    r"""The record of `fields` with its newline, quoted as Gazette does.

    >>> csv_record(["u", "a b", " lead", 'q"x', "c,d", "", "\\."])
    b'u,a b," lead","q""x","c,d",,"\\."\n'
    """
    return (",".join(map(_written, fields)) + "\n").encode()


def _written(field: str) -> str:
    # Python takes four control characters for spaces that Go does not.
    begins_with_space = field[:1].isspace() and not "\x1c" <= field[0] <= "\x1f"
    if begins_with_space or field == r"\." or _ASKS_FOR_QUOTES.search(field):
        return '"' + field.replace('"', '""') + '"'
    return field


@final
class CsvFraming:
    """Messages of CSV: lists of text; the first is the UUID."""

    content_type = "text/csv"

    def decoder(self) -> _CsvDecoder:
        """See `Framing`."""
        return _CsvDecoder()

    def encode(self, message: list[str]) -> bytes:
        """See `Framing`."""
        try:
            return csv_record(message)
        except (TypeError, AttributeError, UnicodeEncodeError) as err:
            raise ValidationError(f"a CSV record is a list of text: {err}") from err

    def uuid_of(self, message: list[str]) -> UuidParts:
        """See `Framing`."""
        return parse_uuid(message[0])

    def stamp(self, message: list[str], uuid: UUID) -> list[str]:
        """See `Framing`."""
        if not message:
            raise ValidationError("a CSV record needs a first column, for its UUID")
        message[0] = str(uuid)
        return message

    def acknowledgement(self, message: list[str]) -> list[str]:
        """See `Framing`: as many columns, and nothing in them."""
        return [""] * len(message)


@final
class _CsvDecoder(LineSplitter):
    def __init__(self) -> None:
        super().__init__()
        self._columns = 0
        # Lines of a record that goes on, or blank ones that go before the next.
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._is_open = False

    @property
    @override
    def held_bytes(self) -> int:
        return self._held_bytes + self._begun_bytes

    @override
    def feed(self, content: bytes) -> list[bytes]:
        records: list[bytes] = []
        for line in super().feed(content):
            if self._goes_on(line):
                self._begun.append(line)
                self._begun_bytes += len(line)
            elif self._begun:
                records.append(b"".join((*self._begun, line)))
                self._begun, self._begun_bytes = [], 0
            else:
                records.append(line)
        return records

    @override
    def end(self) -> None:
        if self._is_open or self._held_bytes:
            raise unexpected_eof("a record", self.held_bytes)

    def _goes_on(self, line: bytes) -> bool:
        """Whether the record does not end with `line`."""
        if self._is_open:
            self._is_open = _STAYS_OPEN.fullmatch(line) is not None
            return self._is_open
        self._is_open = b'"' in line and _OPENS.fullmatch(line) is not None
        return self._is_open or line in _BLANK

    def decode(self, frame: bytes) -> list[str]:
        """See `Decoder`."""
        try:
            record = frame.lstrip(b"\r\n").removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as err:
            raise DataError(f"the record is not UTF-8: {err} ({frame[:80]!r})") from err
        if '"' in record:
            if not _RECORD.fullmatch(record + ","):
                raise DataError(
                    f'the record has a " that neither begins nor ends a field ({frame[:80]!r})'
                )
            fields = [_read(field) for field in _FIELDS.findall(record + ",")]
        else:
            fields = record.split(",")
        self._columns = self._columns or len(fields)
        if len(fields) != self._columns:
            raise DataError(
                f"the record has {len(fields)} columns, and those before have {self._columns} "
                f"({frame[:80]!r})"
            )
        return fields


def _read(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


# ------------------------------------------------------------------ fixed frames of protobuf


class FixedSplitter:
    """The part of a `Decoder` that cuts fixed frames, headers included.

    Where there is no magic, all up to the next one is a frame of garbage.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = FIXED_HEADER.size

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._held_bytes

    def feed(self, content: bytes) -> list[bytes]:
        """See `Decoder`."""
        self._held.append(content)
        self._held_bytes += len(content)
        if self._held_bytes < self._wanted_bytes:
            return []
        whole = b"".join(self._held)
        frames: list[bytes] = []
        at, size = 0, len(whole)
        self._wanted_bytes = FIXED_HEADER.size
        while size - at >= FIXED_HEADER.size:
            end = _frame_end(whole, at)
            if end < 0:
                end = _next_magic(whole, at + 1)
            elif end > size:
                self._wanted_bytes = end - at
                break
            frames.append(whole[at:end])
            at = end
        self._held = [whole[at:]]
        self._held_bytes = size - at
        return frames

    def end(self) -> None:
        """See `Decoder`. A newline may stand at the very end."""
        if self._held_bytes and b"".join(self._held) != b"\n":
            raise unexpected_eof("a frame", self._held_bytes)


def body_of(frame: bytes) -> bytes:
    """The body of a fixed frame. Raises: Desynchronized: it is garbage."""
    if len(frame) < FIXED_HEADER.size or _frame_end(frame, 0) != len(frame):
        raise Desynchronized(
            f"detected de-synchronization: {len(frame)} bytes of garbage, that begin with "
            f"{frame[:8].hex()}, and not with the magic {FIXED_MAGIC.hex()} and a length up to "
            f"{FRAME_BYTES_MAX}; reading continues after them"
        )
    return frame[FIXED_HEADER.size :]


def _frame_end(content: bytes, at: int) -> int:
    """Where the frame ends whose header is at `at`; -1 if there is none."""
    magic, length = FIXED_HEADER.unpack_from(content, at)
    if magic != FIXED_MAGIC or length > FRAME_BYTES_MAX:
        return -1
    return at + FIXED_HEADER.size + int(length)


def _next_magic(content: bytes, begin: int) -> int:
    """Where the next frame may begin: a magic, or what may be the beginning of one."""
    found = content.find(FIXED_MAGIC, begin)
    if found >= 0:
        return found
    for length in range(len(FIXED_MAGIC) - 1, 0, -1):
        if content.endswith(FIXED_MAGIC[:length]):
            return max(begin, len(content) - length)
    return len(content)


@final
class ProtoFraming(Generic[M]):
    """Messages of fixed frames.

    Args:
        message_type: a generated class; None: messages are the bytes of frames, and have no UUIDs.
        uuid_field: the field of 16 bytes that has the UUID.
    """

    content_type = "application/x-protobuf-fixed"

    def __init__(self, *, message_type: type[M] | None = None, uuid_field: str = "uuid") -> None:
        kind: Any = message_type
        if kind is not None and uuid_field not in kind.DESCRIPTOR.fields_by_name:
            raise ValidationError(
                f"{kind.DESCRIPTOR.full_name} has no such field ({uuid_field})", path="uuid_field"
            )
        self._type = kind
        self._field = uuid_field

    @property
    def has_uuids(self) -> bool:
        """Whether messages have UUIDs."""
        return self._type is not None

    def decoder(self) -> _ProtoDecoder[M]:
        """See `Framing`."""
        return _ProtoDecoder(bytes if self._type is None else self._type.FromString)

    def encode(self, message: M) -> bytes:
        """See `Framing`."""
        body = message
        if self._type is not None:
            try:
                body = cast("Any", message).SerializeToString()
            except EncodeError as err:
                raise ValidationError(f"the message cannot be written: {err}") from err
        return frame_fixed(cast("bytes", body))

    def uuid_of(self, message: M) -> UuidParts:
        """See `Framing`."""
        raw = None if self._type is None else getattr(message, self._field)
        return parse_uuid(raw) if raw else NO_UUID

    def stamp(self, message: M, uuid: UUID) -> M:
        """See `Framing`."""
        if self._type is None:
            raise ValidationError(
                "bytes have no place for a UUID (give ProtoFraming a `message_type`)"
            )
        setattr(message, self._field, uuid.bytes)
        return message

    def acknowledgement(self, message: M) -> M:  # noqa: ARG002  all are alike
        """See `Framing`."""
        return cast("M", b"" if self._type is None else self._type())


@final
class _ProtoDecoder(FixedSplitter, Generic[M]):
    def __init__(self, parse: Callable[[bytes], M]) -> None:
        super().__init__()
        self._parse = parse

    def decode(self, frame: bytes) -> M:
        """See `Decoder`."""
        body = body_of(frame)
        try:
            return self._parse(body)
        except DecodeError as err:
            raise DataError(f"the frame of {len(frame)} bytes is no such message: {err}") from err


# ------------------------------------------------------------------ registry

_LABEL = "content-type"
_framings: dict[str, Framing[Any]] = {
    framing.content_type: framing
    for framing in (JsonFraming[Any](), CsvFraming(), ProtoFraming[bytes]())
}


def register_framing(framing: Framing[Any]) -> Framing[Any] | None:
    """Have `framing` for its content-type, in this process. Returns: the one that it was before."""
    former = _framings.get(framing.content_type)
    _framings[framing.content_type] = framing
    return former


def framing_of(content_type: str) -> Framing[Any]:
    """The framing of a content-type.

    Raises: ValidationError: it has none; what is in such journals may be no messages at all.
    """
    found = _framings.get(content_type)
    if found is None:
        raise ValidationError(
            f"unrecognized content-type ({content_type}); register a framing for it, or use one of "
            f"{', '.join(sorted(_framings))}"
        )
    return found


def framing_of_labels(labels: LabelSet) -> Framing[Any]:
    """The framing that the labels of a journal name.

    Raises: ValidationError: they name none, or one that is not registered.
    """
    values = labels.values_of(_LABEL)
    if len(values) != 1:
        raise ValidationError(
            f"must have one label {_LABEL}, which names the framing of messages (has {len(values)})"
        )
    return framing_of(values[0])
