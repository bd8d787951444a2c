"""What ``.option(…)`` of a read says, as values. Pure.

Names have no case, as all of Spark's. What is not known is an error that names what may be meant, and all
errors are reported at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import split_created
from gazette_platform.spark.option_parsing import (
    CLIENT_OPTIONS,
    SELECTING,
    OptionParser,
    boolean,
    byte_count,
    key_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client.config import ClientConfig

__all__ = ["OPTIONS", "Mode", "OnJump", "Place", "SourceOptions", "parse_options"]

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
    """Which journals these belong to, where they say so (`protocol.identity`)."""


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
