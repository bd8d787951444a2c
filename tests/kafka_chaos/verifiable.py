"""What Kafka's own verifiable producer and consumer say, as lines of our programs. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.kafka_chaos.check import SESSION, Line

if TYPE_CHECKING:
    from collections.abc import Iterator

# What it says of a record that it did not send any more, as it had been asked to end.
_NOT_SENT = (
    "Cannot perform operation after producer has been closed",
    "Producer closed while send in progress",
)


def number_of(value: bytes | str) -> int:
    """The number of a record: `{"n": 5}` of our programs, `2.5` of the fifth value of the run with prefix 2."""
    text = value.decode() if isinstance(value, bytes) else value
    if text.startswith("{"):
        return int(json.loads(text)["n"])
    prefix, _, number = text.partition(".")
    return int(prefix) * SESSION + int(number)


def lines_of(said: Line) -> Iterator[Line]:
    """Translate a line; none come of what we do not judge."""
    at = said.get("timestamp", 0) / 1000
    match said["name"]:
        case "begun":
            yield {"what": "started", "first": said["prefix"] * SESSION}
        case "producer_send_success":
            number = number_of(said["value"])
            place = {"partition": said["partition"], "offset": said["offset"]}
            yield {"what": "acked", "at": at, "n": number, **place}
        case "producer_send_error" if said["message"] not in _NOT_SENT:
            text = f"{said['exception']}: {said['message']}"
            yield {"what": "refused", "at": at, "n": number_of(said["value"]), "text": text}
        case "tool_data":
            yield {"what": "left", "at": at, "sent": said["sent"]}
        case "partitions_assigned":
            parts = [part["partition"] for part in said["partitions"]]
            yield {"what": "assigned", "at": at, "partitions": parts}
        case "record_data":
            place = {"partition": said["partition"], "offset": said["offset"]}
            yield {"what": "record", "at": at, "value": {"n": number_of(said["value"])}, **place}
        case "offsets_committed" if said["success"]:
            for place in said["offsets"]:
                part, offset = place["partition"], place["offset"]
                yield {"what": "committed", "at": at, "partition": part, "offset": offset}
        case "offsets_committed":
            yield {"what": "trouble", "at": at, "text": said.get("error")}
