"""Options of `gazette serve`, in one table: flag, environment variable, INI key, default, help."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gazette_platform.broker.config import BrokerConfig, FsyncMode
from gazette_platform.errors import ValidationError
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SERVE_OPTIONS", "ServeOption", "broker_config", "option_values", "with_serve_options"]


class ListenAddress(str):
    """A TCP port, or ``unix:///path``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ServeOption:
    """One option of a broker process."""

    name: str
    """As ``broker.zone``; the part before the first dot is its group and INI section."""
    variable: str
    """Environment variable."""
    kind: type
    """str, int, bool or Path; float stands for a duration in seconds, given as ``1m30s``, list for
    an option that may be repeated, and `ListenAddress` for a port or a socket."""
    field: str
    """Field of `BrokerConfig`; empty for options of the process itself."""
    help: str
    """One sentence."""
    fallback: str = ""
    """Default of options that have no field."""

    @property
    def parameter(self) -> str:
        """Name of the Python parameter."""
        return self.name.replace(".", "_").replace("-", "_")

    def default(self) -> Any:
        """Default, in the form that a user would write; None for no value."""
        if not self.field:
            return self.fallback
        known = {f.name: f for f in fields(BrokerConfig)}[self.field]
        factory = known.default_factory
        value = known.default if factory is MISSING else factory()
        return None if value is None or value == () else _text(self.kind, value)

    def parse(self, value: Any) -> Any:
        """The value of the field.

        Raises: ValidationError: a duration is malformed.
        """
        if self.kind is Path:
            return Path(value)
        if self.kind is list:
            return tuple(value)
        if self.kind is not float:
            return value
        try:
            return parse_duration(value) / SECOND_NS
        except ValidationError as error:
            raise ValidationError(str(error), path=self.name) from error


_METAVARS: dict[type, str] = {float: "DURATION", ListenAddress: "PORT", list: "ORIGIN"}


def _text(kind: type, value: Any) -> Any:
    if kind is float:
        return format_duration(round(value * SECOND_NS))
    if isinstance(value, Enum):
        return value.value
    return str(value) if kind in {Path, ListenAddress} else value


def _broker(name: str, kind: type, text: str, field: str = "") -> ServeOption:
    variable = "BROKER_" + name.replace("-", "_").upper()
    return ServeOption(f"broker.{name}", variable, kind, field or name.replace("-", "_"), text)


SERVE_OPTIONS = (
    _broker("zone", str, "Availability zone of this broker."),
    _broker(
        "id", str, "Id of this broker in its zone, at least 4 bytes. Default: two random words."
    ),
    _broker("host", str, "Host that is bound, and advertised to clients and peers."),
    _broker(
        "advertise",
        str,
        "URL to advertise in its place, where others reach this broker by another address than the "
        "one that it binds, as http://broker-0.brokers:8080.",
    ),
    _broker(
        "port",
        ListenAddress,
        "TCP port of the gRPC service, 0 for any free one; or a Unix socket, as unix:///path.",
    ),
    _broker("http-host", str, "Address that the HTTP port binds to."),
    _broker("http-port", int, "TCP port of HTTP, readiness and metrics; 0 for any free one."),
    _broker("server-cert-file", Path, "PEM certificate of both ports, which then speak TLS."),
    _broker("server-cert-key-file", Path, "PEM key of it."),
    _broker("server-ca-file", Path, "PEM roots of clients, which must then show a certificate."),
    _broker("peer-cert-file", Path, "PEM certificate to show to other brokers."),
    _broker("peer-cert-key-file", Path, "PEM key of it."),
    _broker("peer-ca-file", Path, "PEM roots to trust of other brokers, not the system's."),
    _broker(
        "auth-keys",
        str,
        "Base64 keys: the first signs, any verifies; AA== beside them admits calls without token. "
        "Default: every call is allowed.",
    ),
    _broker(
        "allow-origin",
        list,
        "Origin whose pages may use the HTTP gateway; * for all. Repeatable.",
    ),
    _broker(
        "allow-host",
        list,
        "Host name by which the HTTP port may be asked for, beside those of --broker.host, "
        "--broker.advertise and the machine; * for any. Checked without tokens and TLS. Repeatable.",
    ),
    _broker("file-root", Path, "Folder that roots file:// stores; must exist."),
    _broker("file-only", bool, "Map every store to file:///; needs --broker.file-root."),
    _broker(
        "stores-allowed",
        list,
        "URL of a store that specs may name, or that theirs may lie below, as file:///tenants/. "
        "Repeatable. Default: any store.",
    ),
    _broker("spool-dir", Path, "Folder of the spools, on a local disk that outlives the process."),
    _broker(
        "fsync",
        FsyncMode,
        "When what is appended is brought to the disk itself: at each commit, before it is acknowledged; "
        "at an interval of a second; or never by the broker. It survives the process in any case.",
    ),
    _broker("limit", int, "Most journals that this broker takes on.", "journal_limit"),
    _broker(
        "max-append-rate",
        int,
        "Most bytes per second of a journal whose spec has a rate; 0 for no cap.",
    ),
    _broker("min-append-rate", int, "Bytes per second that an appending client must sustain."),
    _broker("max-replication", int, "Cap on the replication of journals."),
    _broker("max-grpc-recv-size", int, "Largest message received, in bytes."),
    _broker("watch-delay", float, "Time over which etcd events are gathered.", "watch_delay_s"),
    _broker(
        "append-wait",
        float,
        "How long an append waits for its journal to become writable, and a read for the first "
        "listing of its stores; 0s fails at once.",
        "append_wait_s",
    ),
    _broker(
        "auto-suspend",
        bool,
        "Suspend journals that had no appends for 15 minutes, once all of them is in the store.",
    ),
    _broker(
        "drain-timeout",
        float,
        "After SIGTERM, when to leave although nobody took over. Default: wait for ever, if there are others.",
        "drain_timeout_s",
    ),
    _broker(
        "evict-after",
        float,
        "How long a broker's address has to refuse connections, as two others of different zones "
        "see it, until it counts as crashed and loses its lease; 0s: leave it to its lease.",
        "evict_after_s",
    ),
    ServeOption(
        "etcd.address",
        "ETCD_ADDRESS",
        str,
        "etcd_address",
        "Etcd endpoints, comma-separated: http, https or unix.",
    ),
    ServeOption(
        "etcd.cert-file",
        "ETCD_CERT_FILE",
        Path,
        "etcd_cert_file",
        "PEM certificate to show to https etcd endpoints.",
    ),
    ServeOption(
        "etcd.cert-key-file",
        "ETCD_CERT_KEY_FILE",
        Path,
        "etcd_cert_key_file",
        "PEM key of it.",
    ),
    ServeOption(
        "etcd.trusted-ca-file",
        "ETCD_TRUSTED_CA_FILE",
        Path,
        "etcd_trusted_ca_file",
        "PEM roots to trust of them, not the system's.",
    ),
    ServeOption(
        "etcd.prefix", "ETCD_PREFIX", str, "etcd_prefix", "Path under which the cluster keeps keys."
    ),
    ServeOption(
        "etcd.lease",
        "ETCD_LEASE_TTL",
        float,
        "etcd_lease_s",
        "Time after which etcd forgets a broker that died.",
    ),
    ServeOption(
        "log.level", "LOG_LEVEL", str, "", "trace, debug, info, warn, error or fatal.", "warn"
    ),
    ServeOption("log.format", "LOG_FORMAT", str, "", "text, json or color.", "text"),
    ServeOption(
        "debug.port",
        "DEBUG_PORT",
        int,
        "debug_port",
        "TCP port of one more, plain listener with readiness and metrics only; 0 for any free one.",
    ),
    ServeOption(
        "debug.private",
        "DEBUG_PRIVATE",
        bool,
        "debug_private",
        "Leave readiness and metrics to the debug port.",
    ),
)


def with_serve_options(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    """A function for Typer with a parameter per option, which calls `command` with all values.

    The values are keyed by the full name of the option, as ``broker.zone``.
    """

    def call(**parameters: Any) -> None:
        command({option.name: parameters[option.parameter] for option in SERVE_OPTIONS})

    call.__doc__ = command.__doc__
    call.__name__ = command.__name__
    parameters = [
        inspect.Parameter(
            option.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default(),
            annotation=_annotation(option),
        )
        for option in SERVE_OPTIONS
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _annotation(option: ServeOption) -> Any:
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


def broker_config(values: Mapping[str, Any]) -> BrokerConfig:
    """The settings of a broker from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    chosen: dict[str, Any] = {}
    for option in SERVE_OPTIONS:
        value = values[option.name]
        if not option.field or value is None:
            continue
        if option.kind is ListenAddress:
            chosen |= _listening(option.name, value)
        else:
            chosen[option.field] = option.parse(value)
    return BrokerConfig(**chosen)


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


def option_values(values: Mapping[str, Any]) -> dict[str, str]:
    """The values as text, by full name, for an INI file; options without a value are left out."""
    found = {}
    for option in SERVE_OPTIONS:
        value = values[option.name]
        if option.kind is list:
            value = " ".join(value or ()) or None
        if value is not None:
            text = str(value.value if isinstance(value, Enum) else value)
            found[option.name] = text.lower() if option.kind is bool else text
    return found
