"""Options of processes that serve: flag, environment variable, INI key, default and help in one table each.

`ServerOptions` has those that every server has, whether it serves journals or shards.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from gazette_platform.cli.commands import with_parameters
from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import format_duration, parse_duration
from gazette_platform.serving.config import ServerConfig, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


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
    return with_parameters(call, map(parameter_of, options))


def parameter_of(option: ProcessOption) -> inspect.Parameter:
    """The parameter of a command that has this option."""
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default(),
        annotation=_annotation(option),
    )


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


_OF_SERVERS: dict[str, tuple[type, str]] = {
    "zone": (str, "Availability zone of this {what}."),
    "id": (str, "Id of this {what} in its zone, at least 4 bytes. Default: two random words."),
    "advertise": (
        str,
        (
            "URL to advertise, if others reach this {what} by another address than it binds, as "
            "http://{group}-0.{group}s:8080."
        ),
    ),
    "http-host": (str, "Address that the HTTP port binds to."),
    "http-port": (int, "TCP port of HTTP, readiness and metrics; 0 for any free one."),
    "server-cert-file": (Path, "PEM certificate of both ports, which then use TLS."),
    "server-cert-key-file": (Path, "PEM key of that certificate."),
    "server-ca-file": (Path, "PEM roots to trust for clients, which must then show a certificate."),
    "peer-cert-file": (Path, "PEM certificate to show to {peers}."),
    "peer-cert-key-file": (Path, "PEM key of that certificate."),
    "peer-ca-file": (Path, "PEM roots to trust for {them}, instead of the system's."),
    "auth-keys": (
        str,
        (
            "Base64 keys: the first signs, any verifies. Add AA== to admit calls without a token. "
            "Default: every call is allowed."
        ),
    ),
    "wire": (
        Wire,
        (
            "What {does}: h2 is this program's own HTTP/2, which needs a fraction of the CPU for small calls; "
            "grpc is the gRPC library."
        ),
    ),
    "max-grpc-recv-size": (int, "Largest message received, in bytes."),
    "watch-delay": (float, "Time over which etcd events are batched."),
    "drain-timeout": (
        float,
        "After SIGTERM, how long to wait until others take over. Default: without limit, if there are others.",
    ),
}
"""Kind and help of the options that servers of each kind have, by name without their group."""

_SECURITY = (
    "server-cert-file", "server-cert-key-file", "server-ca-file", "peer-cert-file", "peer-cert-key-file",
    "peer-ca-file", "auth-keys",
)  # fmt: skip
_ETCD: dict[str, tuple[type, str]] = {
    "address": (str, "Etcd endpoints, comma-separated: http, https or unix."),
    "cert-file": (Path, "PEM certificate to show to https etcd endpoints."),
    "cert-key-file": (Path, "PEM key of that certificate."),
    "trusted-ca-file": (Path, "PEM roots to trust for them, instead of the system's."),
}


@final
@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one kind of server. Its table has them in the order in which help shows them."""

    config: type[ServerConfig]
    """Its settings, which know the group of its flags."""
    what: str
    """Such a server is called, in help texts."""
    peers: str
    """Its peers are called."""
    does: str
    """What `--…wire` does."""
    them: str = ""
    """The peers are called the second time, if that is to be shorter."""

    def own(self, name: str, kind: type, text: str, field: str = "") -> ProcessOption:
        """An option of the server's own group.

        Args:
            name: without the group, as ``zone``.
            field: of the settings, if it is not called as the option is. That of a duration ends in ``_s``.
        """
        return self.of(f"{self.config.flags}.{name}", kind, text, field or _field(name, kind))

    def of(
        self, name: str, kind: type, text: str, field: str = "", *, variable: str = ""
    ) -> ProcessOption:
        """An option of another group.

        Args:
            name: with the group, as ``etcd.address``.
            field: of the settings, if it is not called as the option is.
            variable: of the environment, if it is not called as the option is.
        """
        known = _field(name.replace(".", "-"), str)
        return ProcessOption(
            name, variable or known.upper(), kind, field or known, text, self.config
        )

    def shared(self, *names: str) -> tuple[ProcessOption, ...]:
        """Options that each kind of server has, by their names without the group."""
        words = {
            "group": self.config.flags,
            "what": self.what,
            "peers": self.peers,
            "them": self.them or self.peers,
            "does": self.does,
        }
        found = ((name, *_OF_SERVERS[name]) for name in names)
        return tuple(self.own(name, kind, text.format(**words)) for name, kind, text in found)

    def address(self, host: str, port: ProcessOption) -> tuple[ProcessOption, ...]:
        """Who it is, and where.

        Args:
            host: text of the option of the host that is bound.
            port: of the gRPC service.
        """
        return (
            *self.shared("zone", "id"),
            self.own("host", str, host),
            *self.shared("advertise"),
            port,
            *self.shared("http-host", "http-port"),
        )

    def security(self) -> tuple[ProcessOption, ...]:
        """Certificates of its ports and of connections to peers, and keys of tokens."""
        return self.shared(*_SECURITY)

    def etcd(self) -> tuple[ProcessOption, ...]:
        """Where etcd is."""
        return tuple(self.of(f"etcd.{name}", *declared) for name, declared in _ETCD.items())

    def lease(self, text: str) -> ProcessOption:
        """How long etcd keeps it."""
        return self.of("etcd.lease", float, text, "etcd_lease_s", variable="ETCD_LEASE_TTL")

    def log(self) -> tuple[ProcessOption, ...]:
        """What its process logs."""
        level, log_format = "trace, debug, info, warn, error or fatal.", "text, json or color."
        return (
            ProcessOption("log.level", "LOG_LEVEL", str, "", level, self.config, "warn"),
            ProcessOption("log.format", "LOG_FORMAT", str, "", log_format, self.config, "text"),
        )


def _field(name: str, kind: type) -> str:
    """The field of settings that an option sets: durations are in seconds.

    >>> _field("watch-delay", float)
    'watch_delay_s'
    """
    return name.replace("-", "_") + ("_s" if kind is float else "")
