"""Checks of a Kafka server by clients in Python. Arguments: the server, and a topic, which must not exist.

Writes a line of JSON for each check; `tests/benches/kafka_programs.py` says what they are.
"""

import asyncio
import json
import sys
import time
import traceback

RECORDS = 1000
WAIT_S = 60.0


def main(checks):
    """Run checks: functions or coroutine functions of a server and a topic, by name. What they return limits a "yes"."""
    server, topic = sys.argv[1:]
    for name, check in checks.items():
        error, note, began = "", None, time.monotonic()
        try:
            note = check(server, topic)
            if asyncio.iscoroutine(note):
                note = asyncio.run(note)
        except Exception as found:  # noqa: BLE001  it is the outcome
            traceback.print_exc()
            error = repr(found)
        print(name, "took", time.monotonic() - began, file=sys.stderr)
        print(json.dumps({"check": name, "error": error, "note": note or ""}), flush=True)


def expect(what, found, wanted):
    """Fail unless they are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def record(number):
    """Key, value and headers of a record."""
    value = f'{{"n":{number},"text":"grün"}}'.encode()
    headers = [("h", str(number).encode()), ("empty", b"")]
    return f"key-{number}".encode(), value, headers


def number_of(key, value, headers):
    """The number of a record, whose other parts have to be those that were produced."""
    number = int(key.removeprefix(b"key-"))
    expect("a record", (key, value, list(headers)), record(number))
    return number


def expect_all(numbers, count=RECORDS):
    """Fail unless there are those from 0 to `count`, each once."""
    expect("numbers", sorted(numbers), [*range(count)])
