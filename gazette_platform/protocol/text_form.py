"""Compact prototext of routes, as headers of the HTTP gateway carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_platform.protocol.routing import Route

__all__ = ["route_text"]


def route_text(route: Route) -> str:
    """The text of a route on one line, with its trailing blank.

    >>> from gazette_platform.protocol.processes import ProcessId
    >>> from gazette_platform.protocol.routing import Route
    >>> route_text(Route((ProcessId("a", "broker"),), 0, ("http://b/",)))
    'members:<zone:"a" suffix:"broker" > endpoints:"http://b/" '
    """
    members = [
        f"members:<zone:{_quote(zone)} suffix:{_quote(suffix)} > " for zone, suffix in route.members
    ]
    primary = f"primary:{route.primary} " if route.primary else ""
    endpoints = [f"endpoints:{_quote(endpoint)} " for endpoint in route.endpoints]
    return "".join([*members, primary, *endpoints])


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _quote(text: str) -> str:
    quoted = []
    for byte in text.encode():
        character = chr(byte)
        if character in _ESCAPES:
            quoted.append(_ESCAPES[character])
        elif " " <= character <= "~":
            quoted.append(character)
        else:
            quoted.append(f"\\{byte:03o}")
    return '"' + "".join(quoted) + '"'
