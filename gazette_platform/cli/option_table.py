"""Options of processes that serve: flag, environment variable, INI key, default, help in one table each."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gazette_platform.errors import ValidationError
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "ListenAddress",
    "ProcessOption",
    "option_text",
    "option_values",
    "settings_of",
    "with_options",
]


class ListenAddress(str):
    """A TCP port, or ``unix:///path``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProcessOption:
    """One option of a process that serves."""

    name: str
    """As ``broker.zone``; the part before the first dot is its group and INI section."""
    variable: str
    """Environment variable."""
    kind: type
    """str, int, bool or Path; float stands for a duration in seconds, given as ``1m30s``, list for
    an option that may be repeated, and `ListenAddress` for a port or a socket."""
    field: str
    """Field of `config`; empty for options of the process itself."""
    help: str
    """One sentence."""
    config: type
    """Dataclass of settings, which knows the default."""
    fallback: Any = ""
    """Default of options that have no field, as a user would write it; None for no value."""

    @property
    def parameter(self) -> str:
        """Name of the Python parameter."""
        return self.name.replace(".", "_").replace("-", "_")

    def default(self) -> Any:
        """Default, in the form that a user would write; None for no value."""
        if not self.field:
            return self.fallback
        known = {f.name: f for f in fields(self.config)}[self.field]
        factory = known.default_factory
        value = known.default if factory is MISSING else factory()
        return None if value == () else option_text(self.kind, value)

    def parse(self, value: Any) -> Any:
        """The value of the field.

        Raises: ValidationError: a duration is malformed.
        """
        if self.kind is Path or issubclass(self.kind, Enum):
            return self.kind(value)
        if self.kind is list:
            return tuple(value)
        if self.kind is not float:
            return value
        try:
            return parse_duration(value) / SECOND_NS
        except ValidationError as error:
            raise ValidationError(str(error), path=self.name) from error


_METAVARS: dict[type, str] = {float: "DURATION", ListenAddress: "PORT", list: "NAME"}


def option_text(kind: type, value: Any) -> Any:
    """A value as a user would write it; None for no value."""
    if value is None:
        return None
    if kind is float:
        return format_duration(round(value * SECOND_NS))
    if isinstance(value, Enum):
        return value.value
    return str(value) if kind in {Path, ListenAddress} else value


def with_options(
    options: Sequence[ProcessOption], command: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """A function for Typer with a parameter per option, which calls `command` with all values.

    The values are keyed by the full name of the option, as ``broker.zone``.
    """

    def call(**parameters: Any) -> None:
        command({option.name: parameters[option.parameter] for option in options})

    call.__doc__ = command.__doc__
    call.__name__ = command.__name__
    parameters = [
        inspect.Parameter(
            option.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default(),
            annotation=_annotation(option),
        )
        for option in options
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _annotation(option: ProcessOption) -> Any:
    kind: Any = str if option.kind in {float, Path, ListenAddress} else option.kind
    if option.kind is list:
        kind = list[str]
    if option.default() is None:
        kind = kind | None
    group = option.name.partition(".")[0].capitalize()
    declaration = typer.Option(
        f"--{option.name}",
        envvar=option.variable,
        help=option.help,
        metavar=_METAVARS.get(option.kind),
        rich_help_panel=group,
        show_default=option.default() not in {None, ""},
    )
    return Annotated[kind, declaration]


def settings_of(
    options: Iterable[ProcessOption], values: Mapping[str, Any], config: type
) -> dict[str, Any]:
    """The fields of a dataclass of settings, from the values of options.

    Raises: ValidationError: a value is malformed.
    """
    chosen: dict[str, Any] = {}
    for option in options:
        value = values[option.name]
        if not option.field or value is None or option.config is not config:
            continue
        if option.kind is ListenAddress:
            chosen |= _listening(option.name, value)
        else:
            chosen[option.field] = option.parse(value)
    return chosen


def _listening(name: str, address: str) -> dict[str, Any]:
    """The fields of a `ListenAddress`. Raises: ValidationError: it is none."""
    path = address.removeprefix("unix://")
    if path != address and path.startswith("/"):
        return {"socket": Path(path)}
    if address.isascii() and address.isdigit():
        return {"port": int(address)}
    raise ValidationError(
        f"expected a port, 0 to 65535, or unix:///path/of/socket, got {address!r}", path=name
    )


def option_values(options: Iterable[ProcessOption], values: Mapping[str, Any]) -> dict[str, str]:
    """The values as text, by full name, for an INI file; options without a value are left out."""
    found = {}
    for option in options:
        value = values[option.name]
        if option.kind is list:
            value = " ".join(value or ()) or None
        if value is not None:
            text = str(value.value if isinstance(value, Enum) else value)
            found[option.name] = text.lower() if option.kind is bool else text
    return found
