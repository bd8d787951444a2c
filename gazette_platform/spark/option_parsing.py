"""What options of reads and writes have in common: how they are named, reported when wrong, and what they say of brokers. Pure."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.client.config import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CLIENT_OPTIONS", "SELECTING", "OptionParser", "boolean", "byte_count", "key_path"]

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
