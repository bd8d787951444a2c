"""Which framing a content-type has. Those of Gazette are registered; your own take their places.

A journal's label ``content-type`` names its framing. Register a framing of your own to have messages
of your types, or UUIDs in another field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_platform.errors import ValidationError
from gazette_platform.message.csv_framing import CsvFraming
from gazette_platform.message.json_framing import JsonFraming
from gazette_platform.message.proto_framing import ProtoFraming

if TYPE_CHECKING:
    from gazette_platform.message.framing import Framing
    from gazette_platform.protocol import LabelSet

__all__ = ["framing_of", "framing_of_labels", "register_framing"]

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
