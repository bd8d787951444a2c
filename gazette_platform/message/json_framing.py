"""JSON lines: a message is a JSON value on a line, with its UUID as text in a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final
from uuid import UUID

import msgspec
import orjson
from msgspec import inspect

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.framing import LineSplitter
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.protocol import escape_html

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JsonFraming", "go_json"]

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
