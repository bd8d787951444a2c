"""Options of `gazette serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_platform.broker.config import BrokerConfig, FsyncMode
from gazette_platform.cli.option_table import ListenAddress, ProcessOption, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SERVE_OPTIONS", "broker_config"]


def _of(*words: Any) -> ProcessOption:
    name, variable, kind, field, text, *fallback = words
    return ProcessOption(name, variable, kind, field, text, BrokerConfig, *fallback)


def _broker(name: str, kind: type, text: str, field: str = "") -> ProcessOption:
    variable = "BROKER_" + name.replace("-", "_").upper()
    return _of(f"broker.{name}", variable, kind, field or name.replace("-", "_"), text)


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
    _of(
        "etcd.address",
        "ETCD_ADDRESS",
        str,
        "etcd_address",
        "Etcd endpoints, comma-separated: http, https or unix.",
    ),
    _of(
        "etcd.cert-file",
        "ETCD_CERT_FILE",
        Path,
        "etcd_cert_file",
        "PEM certificate to show to https etcd endpoints.",
    ),
    _of(
        "etcd.cert-key-file",
        "ETCD_CERT_KEY_FILE",
        Path,
        "etcd_cert_key_file",
        "PEM key of it.",
    ),
    _of(
        "etcd.trusted-ca-file",
        "ETCD_TRUSTED_CA_FILE",
        Path,
        "etcd_trusted_ca_file",
        "PEM roots to trust of them, not the system's.",
    ),
    _of(
        "etcd.prefix", "ETCD_PREFIX", str, "etcd_prefix", "Path under which the cluster keeps keys."
    ),
    _of(
        "etcd.lease",
        "ETCD_LEASE_TTL",
        float,
        "etcd_lease_s",
        "Time after which etcd forgets a broker that died.",
    ),
    _of("log.level", "LOG_LEVEL", str, "", "trace, debug, info, warn, error or fatal.", "warn"),
    _of("log.format", "LOG_FORMAT", str, "", "text, json or color.", "text"),
    _of(
        "debug.port",
        "DEBUG_PORT",
        int,
        "debug_port",
        "TCP port of one more, plain listener with readiness and metrics only; 0 for any free one.",
    ),
    _of(
        "debug.private",
        "DEBUG_PRIVATE",
        bool,
        "debug_private",
        "Leave readiness and metrics to the debug port.",
    ),
)


def broker_config(values: Mapping[str, Any]) -> BrokerConfig:
    """The settings of a broker from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    return BrokerConfig(**settings_of(SERVE_OPTIONS, values, BrokerConfig))
