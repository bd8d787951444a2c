"""Options of `gazette serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_platform.broker.config import BrokerConfig, FsyncMode
from gazette_platform.broker.processes import process_count
from gazette_platform.cli.option_table import ListenAddress, ProcessOption, settings_of
from gazette_platform.cli.server_options import ServerOptions
from gazette_platform.ops.process import usable_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SERVE_OPTIONS", "broker_config", "processes_of"]

_BROKER = ServerOptions(BrokerConfig, "broker")

SERVE_OPTIONS = (
    *_BROKER.address(
        "Host that is bound, and advertised to clients and peers.",
        _BROKER.own(
            "port",
            ListenAddress,
            "TCP port of the gRPC service, 0 for any free one; or a Unix socket, as unix:///path.",
        ),
    ),
    ProcessOption(
        "broker.processes",
        "BROKER_PROCESSES",
        str,
        "",
        "How many broker processes to run, or auto for one a core. Those after the first have the ports that "
        "follow; more than one needs --debug.port.",
        BrokerConfig,
        "1",
    ),
    *_BROKER.security("other brokers"),
    _BROKER.own(
        "allow-origin",
        list,
        "Origin whose pages may use the HTTP gateway; * for all. Repeatable.",
    ),
    _BROKER.own(
        "allow-host",
        list,
        "Host name by which the HTTP port may be asked for, beside those of --broker.host, "
        "--broker.advertise and the machine; * for any. Checked without tokens and TLS. Repeatable.",
    ),
    _BROKER.own("file-root", Path, "Folder that roots file:// stores; must exist."),
    _BROKER.own("file-only", bool, "Map every store to file:///; needs --broker.file-root."),
    _BROKER.own(
        "stores-allowed",
        list,
        "URL of a store that specs may name, or that theirs may lie below, as file:///tenants/. "
        "Repeatable. Default: any store.",
    ),
    _BROKER.own(
        "spool-dir", Path, "Folder of the spools, on a local disk that outlives the process."
    ),
    _BROKER.own(
        "fsync",
        FsyncMode,
        "When what is appended is brought to the disk itself: at each commit, before it is acknowledged; "
        "at an interval of a second; or never by the broker. It survives the process in any case.",
    ),
    _BROKER.wire("serves the gRPC port, and calls peers"),
    _BROKER.own("limit", int, "Most journals that this broker takes on.", "journal_limit"),
    _BROKER.own(
        "max-append-rate",
        int,
        "Most bytes per second of a journal whose spec has a rate; 0 for no cap.",
    ),
    _BROKER.own("min-append-rate", int, "Bytes per second that an appending client must sustain."),
    _BROKER.own("max-replication", int, "Cap on the replication of journals."),
    _BROKER.recv_size(),
    _BROKER.watch_delay(),
    _BROKER.own(
        "append-wait",
        float,
        "How long an append waits for its journal to become writable, and a read for the first "
        "listing of its stores; 0s fails at once.",
        "append_wait_s",
    ),
    _BROKER.own(
        "auto-suspend",
        bool,
        "Suspend journals that had no appends for 15 minutes, once all of them is in the store.",
    ),
    _BROKER.drain_timeout(),
    _BROKER.own(
        "evict-after",
        float,
        "How long a broker's address has to refuse connections, as two others of different zones "
        "see it, until it counts as crashed and loses its lease; 0s: leave it to its lease.",
        "evict_after_s",
    ),
    *_BROKER.etcd(),
    _BROKER.of("etcd.prefix", str, "Path under which the cluster keeps keys."),
    _BROKER.lease("Time after which etcd forgets a broker that died."),
    *_BROKER.log(),
    _BROKER.of(
        "debug.port",
        int,
        "TCP port of one more, plain listener with readiness and metrics only; 0 for any free one.",
    ),
    _BROKER.of("debug.private", bool, "Leave readiness and metrics to the debug port."),
)


def broker_config(values: Mapping[str, Any]) -> BrokerConfig:
    """The settings of a broker from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    return BrokerConfig(**settings_of(SERVE_OPTIONS, values, BrokerConfig))


def processes_of(values: Mapping[str, Any]) -> int:
    """Return how many processes the values of options ask for.

    Raises: ValidationError: it is no such number.
    """
    return process_count(str(values["broker.processes"]), cores=usable_cores())
