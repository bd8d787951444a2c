"""Spans of OpenTelemetry, of processes that have it configured; for all others, one look-up of a name.

We never import its API: `opentelemetry-instrument`, or an application, does so and sets a provider of tracers. Without
one, nothing is made, and no header is sent.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Headers = tuple[tuple[str, str], ...]
"""Of a call: names and values."""

_API: Final = "opentelemetry.trace"
_NAME: Final = "gazette_platform"


def is_on() -> bool:
    """Return whether this process has set a provider of tracers."""
    api = sys.modules.get(_API)
    # Its function would look at the environment each time: a microsecond or more in each append.
    return api is not None and getattr(api, "_TRACER_PROVIDER", None) is not None


@contextlib.contextmanager
def span(
    name: str,
    *,
    kind: Literal["CLIENT", "SERVER", "INTERNAL"] = "INTERNAL",
    headers: Iterable[tuple[str, str]] | None = None,
    **attributes: str | int,
) -> Iterator[None]:
    """Make a span of what the block does, below the current one; it notes an error that leaves it.

    Args:
        name: of the span.
        kind: of the span.
        headers: of the caller, whose span is the parent.
        attributes: of the span; each name gets the prefix ``gazette.``.
    """
    if not is_on():
        yield
        return
    api = _tracing()
    context = None if headers is None else _propagation().extract(dict(headers))
    with api.get_tracer(_NAME).start_as_current_span(
        name,
        context=context,
        kind=getattr(api.SpanKind, kind),
        attributes={f"gazette.{key}": value for key, value in attributes.items()},
    ):
        yield


def begin(name: str, **attributes: str | int) -> Callable[[], None]:
    """Begin a span below the current one, which it does not replace; `is_on`. Returns: what ends it."""
    named = {f"gazette.{key}": value for key, value in attributes.items()}
    end: Callable[[], None] = _tracing().get_tracer(_NAME).start_span(name, attributes=named).end
    return end


@contextlib.contextmanager
def below(headers: Headers) -> Iterator[None]:
    """Let the span that `headers` name be the current one in this block; `is_on`."""
    from opentelemetry import context  # noqa: PLC0415  of an extra

    token = context.attach(_propagation().extract(dict(headers)))
    try:
        yield
    finally:
        context.detach(token)


def headers() -> Headers:
    """Return headers that name the current span, as W3C's ``traceparent``; empty if nothing is traced."""
    if not is_on():
        return ()
    carrier: dict[str, str] = {}
    _propagation().inject(carrier)
    return tuple(carrier.items())


def _tracing() -> Any:
    return sys.modules[_API]


def _propagation() -> Any:
    from opentelemetry import propagate  # noqa: PLC0415  of an extra

    return propagate
