"""The wire of all brokers and consumers that tests start: that of the server, unless a variable names another."""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

from gazette_platform.serving.config import Wire

__all__ = ["wire_flags", "wire_settings"]

_VARIABLE: Final = "GAZETTE_TEST_WIRE"
_turn = itertools.count()


def wire_flags(group: str) -> tuple[str, ...]:
    """Return the flags of a server, which begin with `group`."""
    return tuple(f"--{group}.wire={wire.value}" for wire in wire_settings().values())


def wire_settings() -> dict[str, Any]:
    """Return the settings of a server.

    Of several wires, separated by commas, each start takes the next.

    Raises: ValueError: the variable does not name a wire.
    """
    chosen = os.environ.get(_VARIABLE)
    if not chosen:
        return {}
    wires = [Wire(name) for name in chosen.split(",")]
    return {"wire": wires[next(_turn) % len(wires)]}
