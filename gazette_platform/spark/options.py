"""What ``.option(…)`` says, as values. Pure.

Names have no case, as all of Spark's. What is not known is an error that names what may be meant, and all
errors are told at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gazette_platform.client.config import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPTIONS", "Mode", "OnJump", "Place", "SourceOptions", "parse_options"]

Mode = Literal["permissive", "dropMalformed", "failFast"]
"""What becomes of a record that is not of the schema."""

OnJump = Literal["raise", "continue"]
"""What is done about content that is gone."""

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
_SELECTING: Final = ("selector", "journal", "path")
OPTIONS: Final = (
    *_SELECTING,
    *_CLIENT,
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

_NAMES: Final = {name.lower(): name for name in OPTIONS}
_MODES: Final = {mode.lower(): mode for mode in ("permissive", "dropMalformed", "failFast")}
_PARTITION_BYTES: Final = 128 << 20
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES: Final = re.compile(r"\s*(\d{1,15})\s*([bkmgt]?)b?\s*\Z", re.IGNORECASE | re.ASCII)
# Of a path: else it is the name of a journal, as `orders/part=0` is, or the folder of many.
_SELECTS: Final = re.compile(r"[^/]*?[=:!(, ]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where reading begins or ends in journals."""

    word: Literal["earliest", "latest", ""] = ""
    savepoint: str = ""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Byte offsets, if there is neither word nor savepoint."""


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
    return _Parser(given, environment).parse()


class _Parser:
    def __init__(self, given: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._errors: list[str] = []
        self._environment = environment
        self._given: dict[str, str] = {}
        for key, value in given.items():
            name = _NAMES.get(key.lower())
            if name is None:
                self._errors.append(_unknown(key))
            else:
                self._given[name] = value

    def parse(self) -> SourceOptions:
        """Raises: ValidationError: all errors."""
        selector = self._selector()
        config = self._try("", self._config)
        starting = self._place("starting", "earliest", ("earliest", "latest"))
        ending = self._place("ending", "latest", ("latest",))
        values = {
            "committed": self._value("committed", False, _boolean),
            "uuid": self._value("uuid", ("_meta", "uuid"), _path),
            "partition_bytes_max": self._value("maxBytesPerPartition", _PARTITION_BYTES, _bytes),
            "trigger_bytes_max": self._value("maxBytesPerTrigger", 0, _bytes),
            "mode": self._value("mode", "permissive", _mode),
            "on_jump": self._value("onJump", "raise", _on_jump),
        }
        if self._errors or config is None:
            raise ValidationError("; ".join(self._errors))
        return SourceOptions(
            selector=selector, config=config, starting=starting, ending=ending, **values
        )

    def _selector(self) -> str:
        said = [name for name in _SELECTING if self._given.get(name)]
        if len(said) != 1:
            many = f" ({' and '.join(said)} are given)" if said else ""
            self._errors.append(
                f"say which journals to read by one of {', '.join(_SELECTING)}{many}: "
                'load("name:prefix=orders/"), say'
            )
            return ""
        text = self._given[said[0]]
        if said[0] == "journal":
            return f"name={text}"
        if said[0] == "path" and not _SELECTS.match(text):
            return f"name:prefix={text}" if text.endswith("/") else f"name={text}"
        try:
            LabelSelector.parse(text)
        except ValidationError as err:
            self._errors.append(f"{said[0]}: {err}")
        return text

    def _config(self) -> ClientConfig:
        settings: dict[str, Any] = {
            field: self._given[name] for name, field in _CLIENT.items() if self._given.get(name)
        }
        if "file_root" in settings:
            settings["file_root"] = Path(settings["file_root"])
        try:
            return ClientConfig.from_environment(self._environment, **settings)
        except ValidationError as err:
            names = {field: name for name, field in _CLIENT.items()}
            path, _, rest = err.path.partition(".")
            shown = ".".join(filter(None, (names.get(path, path), rest)))
            raise ValidationError(err.message, path=shown) from err

    def _place(self, side: str, default: str, words: tuple[str, ...]) -> Place:
        offsets, savepoint = self._given.get(f"{side}Offsets"), self._given.get(f"{side}Savepoint")
        if savepoint:
            if offsets:
                self._errors.append(f"{side}Offsets and {side}Savepoint exclude each other")
            return Place(savepoint=savepoint)
        name = f"{side}Offsets"
        place: Place = self._value(
            name, Place(word=cast("Any", default)), lambda text: _place(text, words)
        )
        return place

    def _value(self, name: str, default: Any, parse: Callable[[str], Any]) -> Any:
        text = self._given.get(name)
        if text is None:
            return default
        return self._try(name, lambda: parse(text))

    def _try(self, name: str, parse: Callable[[], Any]) -> Any:
        try:
            return parse()
        except ValidationError as err:
            self._errors.append(f"{name}: {err}" if name else str(err))
            return None


def _unknown(key: str) -> str:
    near = get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    meant = f"did you mean {_NAMES[near[0]]}?" if near else f"there are {', '.join(OPTIONS)}"
    return f"unknown option {key}: {meant}"


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ValidationError(f"must be true or false ({text})")
    return found


def _path(text: str) -> tuple[str, ...]:
    path = tuple(text.split("."))
    if not all(path):
        raise ValidationError(f"must be keys joined by dots ({text!r})")
    return path


def _bytes(text: str) -> int:
    match = _BYTES.match(text)
    count = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if count <= 0:
        raise ValidationError(f"must be a positive number of bytes, as 134217728 or 128m ({text})")
    return count


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
    for journal, offset in offsets.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ValidationError(f"{journal}: must be a byte offset from 0 on ({offset!r})")
    return Place(offsets=offsets)
