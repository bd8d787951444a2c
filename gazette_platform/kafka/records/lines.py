r"""Records as lines of a journal, and lines as records. Pure.

A line of the form `json` is the record's value with one more member at its begin, which is cut off again for consumers:

    {"_meta":{"uuid":"…","ts":1700000000000,"key":"k","headers":[["a","b"]]},"a":1}

`key64` takes the place of `key` if the key is not UTF-8, and a header ``["a","YQ==",64]`` has bytes. Every ``}`` inside is written
as ``\u007d``, so the first one ends ``_meta``. A line of the form `envelope` has key, headers and value beside ``_meta``.
A line of the form `avro` is one of `json` that has ``"schema":7`` behind ``ts``: the value's JSON, and the id of its schema.
A line that did not come by Kafka is a record whose value is the line.

The offset of a record is that of its last byte, which is its newline.
"""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import orjson

from gazette_platform.errors import DataError
from gazette_platform.kafka.failures import BadRecord, Refused
from gazette_platform.kafka.records.avro_json import AvroCodec, schema_id_of
from gazette_platform.kafka.topics import Form
from gazette_platform.message.uuid import Flags, parse_uuid, unix_ns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Headers = list[tuple[str, bytes | None]]

_BEGIN: Final = b'{"_meta":{"uuid":"'
_TS: Final = b'","ts":'
_UUID_AT: Final = len(_BEGIN)
_TS_AT: Final = _UUID_AT + 36
_META_AT: Final = _TS_AT + len(_TS)
# The low byte of the flags, in the fourth group of the UUID.
_FLAGS_AT: Final = _UUID_AT + 21
_META_NAMES: Final = frozenset(("ts", "schema", "key", "key64", "headers", "tombstone"))
_ENVELOPE_NAMES: Final = frozenset(("_meta", "key", "key64", "headers", "value", "value64"))
_TS_DIGITS_MAX: Final = 18
_TS_END: Final = 1 << 63
_BASE64: Final = 64
_COMMA: Final = ord(",")
_FOREIGN: Final = re.compile(rb'\s*\{\s*"_meta"\s*:\s*\{\s*"uuid"\s*:\s*"([0-9a-fA-F-]{36})"')
_SCHEMA: Final = re.compile(rb'\d{1,18},"schema":(\d{1,10})')
_SCHEMAS: Final = re.compile(
    rb'^\{"_meta":\{"uuid":"[^"]{36}","ts":\d{1,18},"schema":(\d{1,10})', re.MULTILINE
)
_KEYED: Final = re.compile(rb'(\d{1,18})(?:,"key":"([^"\\}]*)")?\},?')
_MARK: Final = re.compile(rb'"uuid"\s*:\s*"[0-9a-fA-F-]{21}0[12]-')
_TXN_FLAGS: Final = (b"01", b"02")
# Of the JSON of a batch of the form `avro`.
_AVRO_BYTES_MAX: Final = 64 << 20
# A value that is larger is not copied to cut off its first byte.
_VIEW_BYTES: Final = 16 << 10
# Of lines that are long on average.
_LONG_BYTES: Final = 512


class Lines(NamedTuple):
    """A batch as content of a journal: pieces of it, how many bytes they are, and how many its first line has."""

    pieces: list[bytes | memoryview]
    size: int
    first_bytes: int


class Block(NamedTuple):
    """Whole lines, which are a part of some content."""

    content: bytes
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Their bytes."""
        return self.end - self.begin

    @property
    def first_bytes(self) -> int:
        """Length of the first line; 0: there is none."""
        return self.content.find(b"\n", self.begin, self.end) + 1 - self.begin if self.size else 0


class Stamp(NamedTuple):
    """The first of the UUIDs of a batch, one for each record."""

    producer: bytes
    clock: int
    """A multiple of 16."""
    flags: int

    def end(self, count: int) -> int:
        """The clock for the next batch, after one of `count` records."""
        return self.clock + (-(-count // 16) << 4)


def stamp_texts(stamp: Stamp, count: int) -> list[bytes]:
    """What the lines of a batch begin with, up to the end of their UUIDs; up to 15 more than `count`."""
    flags, producer = 0x8000 | int(stamp.flags), stamp.producer.hex().encode()
    tails = [b"%04x-%s" % (flags | low << 10, producer) for low in range(min(16, count))]
    tick = stamp.clock >> 4
    heads = [
        b"%s%08x-%04x-1%03x-"
        % (_BEGIN, number & 0xFFFFFFFF, number >> 32 & 0xFFFF, number >> 48 & 0xFFF)
        for number in range(tick, tick + -(-count // 16))
    ]
    return [head + tail for head in heads for tail in tails]


class Probe(msgspec.Struct, gc=False, rename={"meta": "_meta"}):
    """A JSON object. Only the member matters that we would add."""

    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_probe: Final = msgspec.json.Decoder(Probe).decode
_UNSET: Final = msgspec.UNSET
_CURE: Final = "give the topic the form envelope to hold any bytes"


def encode_batch(
    form: Form,
    records: Sequence[Any],
    stamp: Stamp,
    now_ms: int,
    codecs: Mapping[int, AvroCodec | str] | None = None,
) -> Lines:
    """The lines of a batch.

    Args:
        records: with ``value``, ``key``, ``headers`` and ``timestamp``.
        now_ms: of records without a timestamp.
        codecs: of the form `avro`, by id; or why there is none.

    Raises: Refused: records do not fit the form.
    """
    count = len(records)
    if form is Form.AVRO:
        content = b"".join(_encode_avro(records, stamp_texts(stamp, count), now_ms, codecs or {}))
        return Lines([content], len(content), content.index(b"\n") + 1)
    try:
        pieces = _ENCODERS[form](records, stamp_texts(stamp, count), now_ms)
    except (_Unfit, msgspec.MsgspecError, RecursionError):
        raise Refused(_find_bad(form, records)) from None
    content = b"".join(pieces)
    if not _has_lines(content, count) or not is_utf8(content):
        raise Refused(_find_bad(form, records))
    return Lines([content], len(content), content.index(b"\n") + 1)


def _has_lines(content: bytes, count: int) -> bool:
    """Whether there are `count` newlines, at the end of content one of them."""
    if len(content) < count * _LONG_BYTES:
        return content.count(b"\n") == count
    at = -1  # to find them is faster than to count, unless they are close
    for _ in range(count):
        at = content.find(b"\n", at + 1)
    return at == len(content) - 1


class _Unfit(Exception):
    """A record does not fit; `_find_bad` says why."""


def is_utf8(content: bytes) -> bool:
    """Whether it is UTF-8."""
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _find_bad(form: Form, records: Sequence[Any]) -> list[BadRecord]:
    """The bad records of a batch that has some."""
    whys = ((number, _why_not(form, record.value)) for number, record in enumerate(records))
    return [BadRecord(number, why) for number, why in whys if why]


def _why_not(form: Form, value: bytes | None) -> str:
    """Why a value does not fit; empty if it does."""
    if value is None:
        return "" if form is Form.JSON else "the topic holds no null values (kafka.meta=none)"
    if b"\n" in value:
        return f"the value has a newline (write JSON on one line, or {_CURE})"
    try:
        meta = _probe(value).meta
    except (msgspec.MsgspecError, RecursionError) as err:
        return f"the value is not a JSON object: {err} ({_CURE})"
    if not is_utf8(value):
        return f"the value is not UTF-8 ({_CURE})"
    return "" if form is Form.PLAIN else _why_not_with_meta(value, meta)


def _why_not_with_meta(value: bytes, meta: object) -> str:
    """Why ``_meta`` cannot be added to an object."""
    if meta is not _UNSET:
        return f"the value has a member _meta, which the topic adds itself (rename it, or {_CURE})"
    if value[:1] != b"{":
        return f"the value does not begin with {{ (leave out what is before it, or {_CURE})"
    return ""


def _encode_json(
    records: Sequence[Any], stamps: Sequence[bytes], now_ms: int
) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    last_ts, ts_text, ts_only, add = None, b"", b"", pieces.extend
    for record, begin in zip(records, stamps, strict=False):
        value, ts, key, headers = record.value, record.timestamp, record.key, record.headers
        if ts != last_ts:
            last_ts, ts_text = ts, b'","ts":%d' % (ts if ts >= 0 else now_ms)
            ts_only = ts_text + b"},"
        if value is None:
            add((begin, ts_text, _meta(key, headers), b',"tombstone":true}}\n'))
            continue
        if _probe(value).meta is not _UNSET:
            raise _Unfit
        if value[:2] == b'{"' and key is None and not headers:
            add((begin, ts_only, value[1:] if len(value) < _VIEW_BYTES else _rest(value), b"\n"))
            continue
        if value[:1] != b"{":
            raise _Unfit
        comma = b"}," if _has_members(value) else b"}"
        add((begin, ts_text, _meta(key, headers), comma, _rest(value), b"\n"))
    return pieces


def _has_members(value: bytes) -> bool:
    return value[1:2] == b'"' or value[1:].lstrip()[:1] != b"}"


def _rest(value: bytes) -> bytes | memoryview:
    return value[1:] if len(value) < _VIEW_BYTES else memoryview(value)[1:]


def _meta(key: bytes | None, headers: Headers) -> bytes:
    """The members behind ``ts``."""
    found = b""
    if key is not None:
        try:
            found = b',"key":' + orjson.dumps(key.decode())
        except UnicodeDecodeError:
            found = b',"key64":"' + b64encode(key) + b'"'
    if headers:
        found += b',"headers":' + orjson.dumps([_header(*each) for each in headers])
    return found.replace(b"}", b"\\u007d")


def _header(name: str, value: bytes | None) -> list[Any]:
    if value is None:
        return [name, None]
    try:
        return [name, value.decode()]
    except UnicodeDecodeError:
        return [name, b64encode(value).decode(), _BASE64]


def _encode_avro(
    records: Sequence[Any],
    stamps: Sequence[bytes],
    now_ms: int,
    codecs: Mapping[int, AvroCodec | str],
) -> list[bytes]:
    """Raises: Refused: records do not fit."""
    pieces: list[bytes] = []
    bad: list[BadRecord] = []
    size = 0
    for number, (record, begin) in enumerate(zip(records, stamps, strict=False)):
        ts, meta = record.timestamp, _meta(record.key, record.headers)
        ts_text = b'","ts":%d' % (ts if ts >= 0 else now_ms)
        if record.value is None:
            pieces += (begin, ts_text, meta, b',"tombstone":true}}\n')
            continue
        try:
            schema_id, text = _avro_text(record.value, codecs)
        except DataError as err:
            bad.append(BadRecord(number, str(err)))
            continue
        size += len(text)
        if size > _AVRO_BYTES_MAX:
            raise Refused(
                [BadRecord(number, f"the batch has more than {_AVRO_BYTES_MAX} bytes as JSON")]
            )
        pieces += (begin, ts_text, b',"schema":%d' % schema_id, meta, b"},", text[1:], b"\n")
    if bad:
        raise Refused(bad)
    return pieces


def _avro_text(value: bytes, codecs: Mapping[int, AvroCodec | str]) -> tuple[int, bytes]:
    """The id of a value's schema, and its JSON. Raises: DataError: there is none."""
    schema_id = schema_id_of(value)
    if schema_id is None:
        raise DataError(
            f"the value does not begin with 0 and the id of a schema (use an Avro serializer, or {_CURE})"
        )
    codec = codecs.get(schema_id, f"the registry has no schema {schema_id}")
    if isinstance(codec, str):
        raise DataError(codec)
    return schema_id, codec.to_json(value)


def schema_ids_of(block: Block) -> set[int]:
    """The ids of schemas that lines of the form `avro` name; 0: some name none."""
    found = _SCHEMAS.findall(*block)
    ids = {int(each) for each in found}
    return ids | {0} if len(found) < block.content.count(b"\n", block.begin, block.end) else ids


def _encode_plain(
    records: Sequence[Any], _stamps: Sequence[bytes], _now_ms: int
) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    for record in records:
        value = record.value
        if value is None:
            raise _Unfit
        _probe(value)
        pieces += (value, b"\n")
    return pieces


def _encode_envelope(
    records: Sequence[Any], stamps: Sequence[bytes], now_ms: int
) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    for record, begin in zip(records, stamps, strict=False):
        ts, key, value = record.timestamp, record.key, record.value
        fields: dict[str, Any] = {}
        if key is not None:
            _put(fields, "key", key)
        if record.headers:
            fields["headers"] = [_header(*each) for each in record.headers]
        if value is None:
            fields["value"] = None
        else:
            _put(fields, "value", value)
        end = b'","ts":%d},' % (ts if ts >= 0 else now_ms)
        pieces += (begin, end, orjson.dumps(fields)[1:], b"\n")
    return pieces


def _put(fields: dict[str, Any], name: str, value: bytes) -> None:
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}64"] = b64encode(value).decode()


_ENCODERS: Final[Mapping[Form, Any]] = {
    Form.JSON: _encode_json,
    Form.PLAIN: _encode_plain,
    Form.ENVELOPE: _encode_envelope,
}


# ------------------------------------------------------------------ lines as records


class Verdicts(Protocol):
    """Says what became of records of transactions."""

    def of(self, producer: bytes, clock: int, offset: int) -> bool | None:
        """Whether the record that ends at `offset` was committed; None: it is not known yet."""
        ...


class Decoded(NamedTuple):
    """What lines gave."""

    records: int
    """How many the builder has."""
    size: int
    """Bytes of lines that were looked at; less than all if a record is undecided."""


def decode_lines(
    form: Form,
    block: Block,
    add: Callable[[int, int, bytes | None, bytes | None, Headers], object],
    *,
    add_rest: Callable[[int, int, bytes | None, memoryview], object] | None = None,
    verdicts: Verdicts | None = None,
    base: int = 0,
    else_ms: int = 0,
    codecs: Mapping[int, AvroCodec | str] | None = None,
) -> Decoded:
    """Give the records of lines to a builder.

    Args:
        add: takes offset (from the begin of `block`), timestamp, key, value and headers.
        add_rest: takes large values without headers: offset, timestamp, key, and what follows the ``{`` that the value begins with.
        verdicts: for consumers that read committed records only; None: all records count.
        base: offset of the block.
        else_ms: timestamp of records that have none.
        codecs: of the form `avro`, by id; that of 0 is for lines that name no schema.
    """
    content, at, stop = block
    count, base = 0, base - at
    # What lines without keys of one time have in common, from the flags to where the value goes on.
    common, value_at, common_ts = b"\n", 0, 0
    is_json, none, view = form is Form.JSON, list[Any](), memoryview(content)
    find, begins = content.find, content.startswith
    while at < stop:
        end, begin, key, ts = find(b"\n", at), at + value_at, None, common_ts
        if content[at + _FLAGS_AT : begin] != common or not begins(_BEGIN, at) or begin > end:
            is_plain = (
                begins(_BEGIN, at)
                and content[at + _TS_AT : at + _META_AT] == _TS
                and content[at + _FLAGS_AT : at + _FLAGS_AT + 2] == b"00"
            )
            found = _KEYED.match(content, at + _META_AT, end) if is_json and is_plain else None
            if found is None:
                line = content[at:end]
                is_bare = not is_plain and codecs is None and b'"_meta"' not in line
                is_shown = is_plain or is_bare or _is_line_shown(line, verdicts, base + end)
                if is_shown is None:
                    break
                if is_shown:
                    bare = else_ms, None, line, none
                    decoded = bare if is_bare else _decode_line(form, line, else_ms, codecs)
                    add(end - block.begin, *decoded)
                    count += 1
                at = end + 1
                continue
            ts, key, begin = int(found[1]), found[2], found.end()
            if key is None and content[begin - 1] == _COMMA:
                value_at, common_ts = begin - at, ts
                common = content[at + _FLAGS_AT : begin]
        if end - begin < _VIEW_BYTES or add_rest is None:
            add(end - block.begin, ts, key, b"{" + content[begin:end], none)
        else:
            add_rest(end - block.begin, ts, key, view[begin:end])
        count, at = count + 1, end + 1
    return Decoded(count, at - block.begin)


_Record = tuple[int, bytes | None, bytes | None, "Headers"]


def _decode_line(
    form: Form, line: bytes, else_ms: int, codecs: Mapping[int, AvroCodec | str] | None
) -> _Record:
    """Timestamp, key, value and headers of any line."""
    if form is Form.AVRO:
        return _of_avro(line, else_ms, codecs or {})
    if line[:_UUID_AT] == _BEGIN and line[_TS_AT:_META_AT] == _TS:
        found = None
        if form is Form.JSON:
            end = line.find(b"}", _META_AT)
            found = _with_meta(line[_META_AT:end], line, end) if end > 0 else None
        elif form is Form.ENVELOPE:
            found = _of_envelope(line)
        if found is not None:
            return found
    return _foreign(line, else_ms)


def _foreign(line: bytes, else_ms: int) -> _Record:
    """The record of a line that did not come by Kafka."""
    return (_foreign_ms(line, else_ms) if b'"_meta"' in line else else_ms), None, line, []


def _is_line_shown(line: bytes, verdicts: Verdicts | None, offset: int) -> bool | None:
    """Whether consumers get the record of a line; None: that is not decided yet."""
    if b'"_meta"' not in line:
        return True
    uuid = foreign_uuid(line)
    return True if uuid is None else _is_shown(uuid, verdicts, offset)


def _is_shown(uuid: bytes, verdicts: Verdicts | None, offset: int) -> bool | None:
    """Whether consumers get a record; None: that is not decided yet."""
    try:
        producer, clock, flags = parse_uuid(uuid.decode())
    except (DataError, UnicodeDecodeError):
        return True
    if flags == Flags.ACK_TXN:
        return False
    if flags != Flags.CONTINUE_TXN or verdicts is None:
        return True
    return verdicts.of(producer, clock, offset)


def has_marks(block: Block) -> bool:
    """Whether lines may belong to transactions, or end one."""
    content, at, stop = block
    if block.first_bytes <= _LONG_BYTES:
        return _MARK.search(*block) is not None
    while at < stop:  # most bytes of long lines need not be looked at
        end = content.find(b"\n", at)
        if not content.startswith(_BEGIN, at):
            if _MARK.search(content, at, end):
                return True
        elif content[at + _FLAGS_AT : at + _FLAGS_AT + 2] in _TXN_FLAGS:
            return True
        at = end + 1
    return False


def foreign_uuid(line: bytes) -> bytes | None:
    """The text of the UUID in ``_meta`` of a line that did not come by Kafka."""
    found = _FOREIGN.match(line)  # of the object itself, and not of one in it
    if found is not None:
        return found[1]
    try:
        uuid = orjson.loads(line)["_meta"]["uuid"]
    except (ValueError, KeyError, TypeError):
        return None
    return uuid.encode() if isinstance(uuid, str) else None


def _foreign_ms(line: bytes, else_ms: int) -> int:
    uuid = foreign_uuid(line)
    if uuid is None:
        return else_ms
    try:
        clock = parse_uuid(uuid.decode()).clock
    except DataError:
        return else_ms
    return max(0, unix_ns_of(clock) // 1_000_000) if clock else else_ms


def _with_meta(tail: bytes, line: bytes, end: int) -> _Record | None:
    """The record of a line with more in ``_meta``; None: it is not of our form."""
    try:
        meta = orjson.loads(b'{"ts":' + tail + b"}")
        if not meta.keys() <= _META_NAMES:
            return None
        ts, value = _ts_of(meta), line[end + 1 :]
        shown = None if "tombstone" in meta else b"{" + value.removeprefix(b",")
        return ts, _bytes_of(meta, "key"), shown, _headers_of(meta)
    except (ValueError, TypeError, KeyError):
        return None


def _of_avro(line: bytes, else_ms: int, codecs: Mapping[int, AvroCodec | str]) -> _Record:
    """The record of a line as Avro; its JSON, if it does not fit the schema."""
    found, schema_id = None, 0
    if line[:_UUID_AT] == _BEGIN and line[_TS_AT:_META_AT] == _TS:
        end = line.find(b"}", _META_AT)
        tail = line[_META_AT:end]
        named = _SCHEMA.match(tail)
        schema_id = int(named[1]) if named else 0
        found = _with_meta(tail, line, end) if end > 0 else None
    ts, key, value, headers = found or _foreign(line, else_ms)
    codec = codecs.get(schema_id)
    if value is not None and isinstance(codec, AvroCodec):
        with contextlib.suppress(DataError):
            value = codec.to_avro(value)
    return ts, key, value, headers


def _of_envelope(line: bytes) -> _Record | None:
    try:
        found = orjson.loads(line)
        if not found.keys() <= _ENVELOPE_NAMES or not ("value" in found or "value64" in found):
            return None
        ts = _ts_of(found["_meta"])
        return ts, _bytes_of(found, "key"), _bytes_of(found, "value"), _headers_of(found)
    except (ValueError, TypeError, KeyError):
        return None


def _ts_of(meta: Mapping[str, Any]) -> int:
    """Raises: ValueError: no record can have this time."""
    ts = meta["ts"]
    if type(ts) is not int or not 0 <= ts < _TS_END:
        raise ValueError(ts)
    return ts


def _bytes_of(found: Mapping[str, Any], name: str) -> bytes | None:
    text = found.get(name)
    if text is not None:
        return bytes(text.encode()) if isinstance(text, str) else orjson.dumps(text)
    encoded = found.get(f"{name}64")
    return None if encoded is None else b64decode(encoded, validate=True)


def _headers_of(found: Mapping[str, Any]) -> Headers:
    return [_header_of(*each) for each in found.get("headers", ())]


def _header_of(name: object, value: object, base: int = 0) -> tuple[str, bytes | None]:
    if not isinstance(name, str) or not isinstance(value, str | None):
        raise TypeError  # another writer has made it
    if value is None:
        return name, None
    return name, b64decode(value, validate=True) if base else value.encode()
