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

from gazette_platform.errors import ValidationError
from gazette_platform.ops.durations import SECOND_NS
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


@final
@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one kind of server. Its table has them in the order in which help shows them."""

    config: type[ServerConfig]
    """Its settings, which know the group of its flags."""
    what: str
    """Such a server is called, in help texts."""

    def own(self, name: str, kind: type, text: str, field: str = "") -> ProcessOption:
        """An option of the server's own group.

        Args:
            name: without the group, as ``zone``.
            field: of the settings, if it is not called as the option is.
        """
        group, known = self.config.flags, name.replace("-", "_")
        return ProcessOption(
            f"{group}.{name}",
            f"{group}_{known}".upper(),
            kind,
            field or known,
            text,
            self.config,
        )

    def of(
        self, name: str, kind: type, text: str, field: str = "", *, variable: str = ""
    ) -> ProcessOption:
        """An option of another group.

        Args:
            name: with the group, as ``etcd.address``.
            field: of the settings, if it is not called as the option is.
            variable: of the environment, if it is not called as the option is.
        """
        known = name.replace(".", "_").replace("-", "_")
        return ProcessOption(
            name, variable or known.upper(), kind, field or known, text, self.config
        )

    def address(self, host: str, port: ProcessOption) -> tuple[ProcessOption, ...]:
        """Who it is, and where.

        Args:
            host: text of the option of the host that is bound.
            port: of the gRPC service.
        """
        group, what = self.config.flags, self.what
        return (
            self.own("zone", str, f"Availability zone of this {what}."),
            self.own(
                "id",
                str,
                f"Id of this {what} in its zone, at least 4 bytes. Default: two random words.",
            ),
            self.own("host", str, host),
            self.own(
                "advertise",
                str,
                f"URL to advertise, if others reach this {what} by another address than it binds, as "
                f"http://{group}-0.{group}s:8080.",
            ),
            port,
            self.own("http-host", str, "Address that the HTTP port binds to."),
            self.own(
                "http-port", int, "TCP port of HTTP, readiness and metrics; 0 for any free one."
            ),
        )

    def security(self, peers: str, *, them: str = "") -> tuple[ProcessOption, ...]:
        """Certificates of its ports and of connections to peers, and keys of tokens.

        Args:
            peers: they are called.
            them: they are called the second time, if that is to be shorter.
        """
        return (
            self.own(
                "server-cert-file", Path, "PEM certificate of both ports, which then use TLS."
            ),
            self.own("server-cert-key-file", Path, "PEM key of that certificate."),
            self.own(
                "server-ca-file",
                Path,
                "PEM roots to trust for clients, which must then show a certificate.",
            ),
            self.own("peer-cert-file", Path, f"PEM certificate to show to {peers}."),
            self.own("peer-cert-key-file", Path, "PEM key of that certificate."),
            self.own(
                "peer-ca-file",
                Path,
                f"PEM roots to trust for {them or peers}, instead of the system's.",
            ),
            self.own(
                "auth-keys",
                str,
                "Base64 keys: the first signs, any verifies. Add AA== to admit calls without a token. "
                "Default: every call is allowed.",
            ),
        )

    def wire(self, does: str) -> ProcessOption:
        """Who speaks gRPC.

        Args:
            does: what is done by it.
        """
        return self.own(
            "wire",
            Wire,
            f"What {does}: h2 is this program's own HTTP/2, which needs a fraction of the CPU for small calls; "
            "grpc is the gRPC library.",
        )

    def recv_size(self) -> ProcessOption:
        """How large messages may be."""
        return self.own("max-grpc-recv-size", int, "Largest message received, in bytes.")

    def watch_delay(self) -> ProcessOption:
        """How long etcd's events are gathered."""
        return self.own(
            "watch-delay", float, "Time over which etcd events are batched.", "watch_delay_s"
        )

    def drain_timeout(self) -> ProcessOption:
        """When it leaves in any case."""
        return self.own(
            "drain-timeout",
            float,
            "After SIGTERM, how long to wait until others take over. Default: without limit, if there are others.",
            "drain_timeout_s",
        )

    def etcd(self) -> tuple[ProcessOption, ...]:
        """Where etcd is."""
        return (
            self.of("etcd.address", str, "Etcd endpoints, comma-separated: http, https or unix."),
            self.of("etcd.cert-file", Path, "PEM certificate to show to https etcd endpoints."),
            self.of("etcd.cert-key-file", Path, "PEM key of that certificate."),
            self.of(
                "etcd.trusted-ca-file",
                Path,
                "PEM roots to trust for them, instead of the system's.",
            ),
        )

    def lease(self, text: str) -> ProcessOption:
        """How long etcd keeps it."""
        return self.of("etcd.lease", float, text, "etcd_lease_s", variable="ETCD_LEASE_TTL")

    def log(self) -> tuple[ProcessOption, ...]:
        """What its process logs."""
        return (
            self._of_process("log.level", "trace, debug, info, warn, error or fatal.", "warn"),
            self._of_process("log.format", "text, json or color.", "text"),
        )

    def _of_process(self, name: str, text: str, fallback: str) -> ProcessOption:
        variable = name.replace(".", "_").upper()
        return ProcessOption(name, variable, str, "", text, self.config, fallback)
