"""Lines of members' logs in the log of their supervisor. Pure."""

from __future__ import annotations

import json
from typing import Final

LINE_BYTES_MAX: Final = 64 << 10
"""Longer lines are cut into several."""


def named_line(line: bytes, name: str, *, is_json: bool) -> str:
    r"""Return a line of a member's output with the name of the member in it.

    Args:
        line: as read, with or without its line break.
        is_json: whether each line of the log is a JSON object. Lines that are none become one.

    >>> named_line(b"2026-11-28 INFO ready\n", "b-1", is_json=False)
    'b-1: 2026-11-28 INFO ready\n'
    >>> named_line(b'{"level": "info", "msg": "ready"}\n', "b-1", is_json=True)
    '{"process": "b-1", "level": "info", "msg": "ready"}\n'
    >>> named_line(b"Traceback:", "b-1", is_json=True)
    '{"process": "b-1", "msg": "Traceback:"}\n'
    """
    text = line.decode(errors="replace").rstrip("\r\n")
    if not is_json:
        return f"{name}: {text}\n"
    begin = f'{{"process": {json.dumps(name)}'
    if text.startswith('{"') and text.endswith("}"):
        return f"{begin}, {text[1:]}\n"
    return f'{begin}, "msg": {json.dumps(text)}}}\n'
