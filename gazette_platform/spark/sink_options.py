"""What ``.option(…)`` of a write says, as values. Pure. As of reads, all errors are reported at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from gazette_platform.errors import ValidationError
from gazette_platform.spark.option_parsing import (
    CLIENT_OPTIONS,
    SELECTING,
    OptionParser,
    key_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client.config import ClientConfig

__all__ = ["SINK_OPTIONS", "MappingName", "SinkOptions", "parse_sink_options"]

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
