"""What Spark asks for, as values: ``.option(…)`` of reads and of writes, and the columns of a schema. Pure.

Names of options have no case, as all of Spark's. What is not known is an error that names what may be meant, and all
errors are reported at once. A column says where a message lies, or is a key of records.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import pyarrow as pa  # type: ignore[import-untyped]

from gazette_platform.client.config import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector, split_created

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType


DEFAULT_SCHEMA: Final = "value binary, _journal string, _begin bigint, _end bigint, _uuid string"
"""Of a read without a schema, as Spark writes it: a row a message."""

_META: Final = {
    "_journal": (pa.string(),),
    "_begin": (pa.int64(),),
    "_end": (pa.int64(),),
    "_uuid": (pa.string(),),
    "_corrupt": (pa.string(), pa.binary()),
}


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a read, and what each is made of. Can be pickled."""

    schema: pa.Schema
    """All, in Spark's order."""
    data: pa.Schema
    """Those that are keys of records, or fields of CSV by their places."""
    has_value: bool
    """Whether `value`, the bytes of a message, is asked for."""

    def asks_for(self, name: str) -> bool:
        """Whether a column of `_journal`, `_begin`, `_end`, `_uuid`, `_corrupt` is asked for."""
        return name in self.schema.names and name not in self.data.names


def columns_of(schema: StructType) -> Columns:
    """The columns of a schema of Spark's.

    Raises: ValidationError: all columns that cannot be read.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  slow to import

    found = to_arrow_schema(schema)
    data: list[pa.Field] = []
    errors: list[str] = []
    has_value = False
    for column in found:
        kinds = _META.get(column.name)
        if kinds is not None:
            if column.type not in kinds:
                shown = " or ".join(map(_shown, kinds))
                errors.append(f"column {column.name} is {shown}, and not {_shown(column.type)}")
        elif column.name == "value" and column.type == pa.binary():
            has_value = True
        else:
            why = _why_not(column.type)
            if why:
                errors.append(f"column {column.name}: {why}")
            data.append(column)
    if errors:
        raise ValidationError("; ".join(errors))
    return Columns(found, pa.schema(data), has_value)


def _shown(kind: pa.DataType) -> str:
    return {"int64": "bigint", "int32": "int"}.get(str(kind), str(kind))


def _why_not(kind: pa.DataType) -> str:
    """Why values of a type are not read of records; empty: they are."""
    types = pa.types
    if types.is_struct(kind):
        return next(filter(None, (_why_not(field.type) for field in kind)), "")
    if types.is_list(kind):
        return _why_not(kind.value_type)
    if types.is_binary(kind):
        return "binary is of the column `value` alone, the bytes of a message"
    is_plain = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )
    return "" if is_plain else f"{kind} is not read (ask for `value`, and use from_json)"


_CLIENT: Final = {
    "broker": "address",
    "zone": "zone",
    "fileRoot": "file_root",
    "certFile": "cert_file",
    "certKeyFile": "cert_key_file",
    "trustedCaFile": "trusted_ca_file",
    "authToken": "auth_token",
    "authKeys": "auth_keys",
}
CLIENT_OPTIONS: Final = tuple(_CLIENT)
"""Names of options that say how to reach brokers."""

SELECTING: Final = ("selector", "journal", "path")
"""Names of the options that select journals; one is needed."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES: Final = re.compile(r"\s*(\d{1,15})\s*([bkmgt]?)b?\s*\Z", re.IGNORECASE | re.ASCII)
# Of a path: else it is the name of a journal, as `orders/part=0` is, or the folder of many.
_SELECTS: Final = re.compile(r"[^/]*?[=:!(, ]")


class OptionParser:
    """Collects values of options, and all that is wrong with them.

    Attributes:
        errors: what is wrong until now.
        given: by the name as it is written.

    Args:
        given: as Spark gives them, names in any case.
        environment: as `os.environ`: what it says of brokers counts where no option does.
        names: all options that there are.
    """

    def __init__(
        self, given: Mapping[str, str], environment: Mapping[str, str], names: Sequence[str]
    ) -> None:
        self.errors: list[str] = []
        self.given: dict[str, str] = {}
        self._environment = environment
        known = {name.lower(): name for name in names}
        for key, value in given.items():
            name = known.get(key.lower())
            if name is None:
                self.errors.append(_unknown(key, known))
            else:
                self.given[name] = value

    def check(self) -> None:
        """Raises: ValidationError: all that is wrong."""
        if self.errors:
            raise ValidationError("; ".join(self.errors))

    def selector(self, verb: str, example: str) -> str:
        """Which journals, as a selector; `verb` and `example` are for errors."""
        said = [name for name in SELECTING if self.given.get(name)]
        if len(said) != 1:
            many = f" ({' and '.join(said)} are given)" if said else ""
            self.errors.append(
                f"say which journals to {verb} by one of {', '.join(SELECTING)}{many}: {example}, say"
            )
            return ""
        text = self.given[said[0]]
        if said[0] == "journal":
            return f"name={text}"
        if said[0] == "path" and not _SELECTS.match(text):
            return f"name:prefix={text}" if text.endswith("/") else f"name={text}"
        try:
            LabelSelector.parse(text)
        except ValidationError as err:
            self.errors.append(f"{said[0]}: {err}")
        return text

    def config(self) -> ClientConfig:
        """How to reach brokers; the default's, if that is wrong."""
        settings: dict[str, Any] = {
            field: self.given[name] for name, field in _CLIENT.items() if self.given.get(name)
        }
        if "file_root" in settings:
            settings["file_root"] = Path(settings["file_root"])
        try:
            return ClientConfig.from_environment(self._environment, **settings)
        except ValidationError as err:
            names = {field: name for name, field in _CLIENT.items()}
            path, _, rest = err.path.partition(".")
            shown = ".".join(filter(None, (names.get(path, path), rest)))
            self.errors.append(str(ValidationError(err.message, path=shown)))
            return ClientConfig()

    def value(self, name: str, default: Any, parse: Callable[[str], Any]) -> Any:
        """The value of an option; None, if it is wrong."""
        text = self.given.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except ValidationError as err:
            self.errors.append(f"{name}: {err}")
            return None


def _unknown(key: str, known: Mapping[str, str]) -> str:
    near = get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    meant = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(known.values())}"
    return f"unknown option {key}: {meant}"


def boolean(text: str) -> bool:
    """Raises: ValidationError: it is neither true nor false."""
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ValidationError(f"must be true or false ({text})")
    return found


def key_path(text: str) -> tuple[str, ...]:
    """Keys that were joined by dots. Raises: ValidationError: one of them is empty."""
    path = tuple(text.split("."))
    if not all(path):
        raise ValidationError(f"must be keys joined by dots ({text!r})")
    return path


def byte_count(text: str) -> int:
    """A number of bytes, as in Spark's settings. Raises: ValidationError: it is none, or 0."""
    match = _BYTES.match(text)
    count = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if count <= 0:
        raise ValidationError(f"must be a positive number of bytes, as 134217728 or 128m ({text})")
    return count


Mode = Literal["permissive", "dropMalformed", "failFast"]
"""What becomes of a record that is not of the schema."""

OnJump = Literal["raise", "continue"]
"""What is done about content that is gone."""

OPTIONS: Final = (
    *SELECTING,
    *CLIENT_OPTIONS,
    "startingOffsets",
    "startingSavepoint",
    "endingOffsets",
    "endingSavepoint",
    "committed",
    "uuid",
    "maxBytesPerPartition",
    "maxBytesPerTrigger",
    "mode",
    "onJump",
)
"""All names, as they are written."""

_MODES: Final = {mode.lower(): mode for mode in ("permissive", "dropMalformed", "failFast")}
_PARTITION_BYTES: Final = 128 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where reading begins or ends in journals."""

    word: Literal["earliest", "latest", ""] = ""
    savepoint: str = ""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Byte offsets, if there is neither word nor savepoint."""
    created: Mapping[str, int] = field(default_factory=dict)
    """Which journals these belong to, where they say so (`protocol.offsets`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of one read."""

    selector: str
    """Of journals, as `AsyncClient.list` takes it."""
    config: ClientConfig
    """Of clients, on the driver and in tasks; does not show what is secret."""
    starting: Place = Place(word="earliest")
    ending: Place = Place(word="latest")
    """Of batches only."""
    committed: bool = False
    """Whether only messages that are committed are read, each once."""
    uuid: tuple[str, ...] = ("_meta", "uuid")
    """Keys that lead to the UUID of a JSON record."""
    partition_bytes_max: int = _PARTITION_BYTES
    """Content of a task. A fragment is not cut: at least one."""
    trigger_bytes_max: int = 0
    """Content of a batch of a stream; 0: all there is."""
    mode: Mode = "permissive"
    on_jump: OnJump = "raise"


def parse_options(given: Mapping[str, str], environment: Mapping[str, str]) -> SourceOptions:
    """The options of a read.

    Args:
        given: as Spark gives them.
        environment: as `os.environ`: what it says of brokers counts where no option does.

    Raises: ValidationError: all that is wrong with them.
    """
    parser = OptionParser(given, environment, OPTIONS)
    value = parser.value
    found = SourceOptions(
        selector=parser.selector("read", 'load("name:prefix=orders/")'),
        config=parser.config(),
        starting=_side(parser, "starting", "earliest", ("earliest", "latest")),
        ending=_side(parser, "ending", "latest", ("latest",)),
        committed=value("committed", False, boolean),
        uuid=value("uuid", ("_meta", "uuid"), key_path),
        partition_bytes_max=value("maxBytesPerPartition", _PARTITION_BYTES, byte_count),
        trigger_bytes_max=value("maxBytesPerTrigger", 0, byte_count),
        mode=value("mode", "permissive", _mode),
        on_jump=value("onJump", "raise", _on_jump),
    )
    parser.check()
    return found


def _side(parser: OptionParser, side: str, default: str, words: tuple[str, ...]) -> Place:
    name = f"{side}Offsets"
    savepoint = parser.given.get(f"{side}Savepoint")
    if savepoint:
        if parser.given.get(name):
            parser.errors.append(f"{name} and {side}Savepoint exclude each other")
        return Place(savepoint=savepoint)
    usual = Place(word=cast("Any", default))
    place: Place = parser.value(name, usual, lambda text: _place(text, words))
    return place


def _mode(text: str) -> Mode:
    found = _MODES.get(text.strip().lower())
    if found is None:
        raise ValidationError(f"must be one of {', '.join(_MODES.values())} ({text})")
    return cast("Mode", found)


def _on_jump(text: str) -> OnJump:
    if text.strip().lower() not in ("raise", "continue"):
        raise ValidationError(f"must be raise or continue ({text})")
    return cast("OnJump", text.strip().lower())


def _place(text: str, words: tuple[str, ...]) -> Place:
    word = text.strip().lower()
    if word in words:
        return Place(word=cast("Any", word))
    shown = f"must be {' or '.join(words)}, or a JSON object of offsets by journal ({text[:80]})"
    try:
        offsets = json.loads(text)
    except ValueError:
        raise ValidationError(shown) from None
    if not isinstance(offsets, dict):
        raise ValidationError(shown)
    offsets, created = split_created(offsets)
    for journal, offset in (*offsets.items(), *created.items()):
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ValidationError(f"{journal}: must be a byte offset from 0 on ({offset!r})")
    return Place(offsets=offsets, created=created)


MappingName = Literal["random", "modulo", "rendezvous", ""]
"""How rows choose among journals."""

_MAPPINGS: Final = ("random", "modulo", "rendezvous")
# Spark's own, which it hands on.
_SPARKS: Final = ("checkpointLocation", "queryName")
SINK_OPTIONS: Final = (
    *SELECTING,
    *CLIENT_OPTIONS,
    "mapping",
    "key",
    "uuid",
    "stagingJournal",
    "writer",
    "epoch",
)
"""All names, as they are written."""

_WRITER: Final = re.compile(r"[\w\-+/.]{1,48}\Z", re.ASCII)
_EPOCH_MAX: Final = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of one write."""

    selector: str
    """Of journals that may be written to."""
    config: ClientConfig
    """Of clients, on the driver and in tasks; does not show what is secret."""
    mapping: MappingName = ""
    """Empty: there is one journal, or a column names it."""
    key: str = ""
    """The column that `modulo` and `rendezvous` look at."""
    uuid: tuple[str, ...] = ()
    """Keys that lead to the UUID that each record gets; empty: none gets one."""
    staging: str = ""
    """The journal in which tasks lay down what the driver then appends; empty: the driver is given it."""
    writer: str = ""
    """The writer, of a batch that must be appended once; empty: none in particular."""
    epoch: int = -1
    """The writer's number of that batch, which rises; -1: none."""


def parse_sink_options(given: Mapping[str, str], environment: Mapping[str, str]) -> SinkOptions:
    """The options of a write. Arguments and errors are those of `parse_options`."""
    parser = OptionParser(given, environment, (*SINK_OPTIONS, *_SPARKS))
    value = parser.value
    mapping: MappingName | None = value("mapping", "", _mapping)
    key = value("key", "", str)
    needs_key = mapping in ("modulo", "rendezvous")
    if mapping is not None and needs_key != bool(key):
        parser.errors.append(
            f"mapping {mapping} needs the name of a column as key"
            if needs_key
            else "key is looked at by mapping=modulo and mapping=rendezvous only"
        )
    if ("writer" in parser.given) != ("epoch" in parser.given):
        parser.errors.append("writer and epoch go together: whose write it is, and its number")
    found = SinkOptions(
        selector=parser.selector("write to", 'option("journal", "orders/eu")'),
        config=parser.config(),
        mapping=mapping or "",
        key=key,
        uuid=value("uuid", (), key_path),
        staging=value("stagingJournal", "", str),
        writer=value("writer", "", _writer),
        epoch=value("epoch", -1, _epoch),
    )
    parser.check()
    return found


def _mapping(text: str) -> MappingName:
    word = text.strip().lower()
    if word not in _MAPPINGS:
        raise ValidationError(f"must be one of {', '.join(_MAPPINGS)} ({text})")
    return cast("MappingName", word)


def _writer(text: str) -> str:
    if not _WRITER.match(text):
        raise ValidationError(
            f"must have up to 48 letters, digits and -+/._ ({text[:80]!r}): journals note it in a register"
        )
    return text


def _epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _EPOCH_MAX):
        raise ValidationError(f"must be a whole number from 0 on ({text[:80]!r})")
    return int(text)
