"""`gazette serve` and `print-config`: a broker, or several on this machine under a supervisor, and their options.

Each of several brokers is a process of its own. It reads its settings from its standard input, so that no key shows in the
list of processes: ``python -m gazette_platform.cli.gazette.serve NAME``.
"""

from __future__ import annotations

import pickle
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gazette_platform.broker.config import BrokerConfig, FsyncMode, configs_of, process_count
from gazette_platform.cli.options import (
    ListenAddress,
    ProcessOption,
    ServerOptions,
    option_values,
    settings_of,
    with_options,
)
from gazette_platform.cli.program import render_ini, run, set_up_logging
from gazette_platform.cli.start import leave
from gazette_platform.errors import ValidationError
from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.ops.extras import required
from gazette_platform.ops.process import settle_memory, tune_malloc, usable_cores
from gazette_platform.serving.config import random_id
from gazette_platform.serving.process import SupervisorLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BROKER_OPTIONS = ServerOptions(
    BrokerConfig, "broker", "other brokers", "serves the gRPC port and calls peers"
)


def _kafka(name: str, kind: type, text: str, field: str = "") -> ProcessOption:
    known = field or name.replace("-", "_") + ("_s" if kind is float else "")
    variable = f"kafka-{name}".replace("-", "_").upper()
    return ProcessOption(f"kafka.{name}", variable, kind, known, text, KafkaConfig)


KAFKA_OPTIONS = (
    _kafka(
        "port",
        int,
        "TCP port for clients of Kafka, 0 for any free one; needs the extra kafka. Default: none.",
    ),
    _kafka("host", str, "Address that the Kafka port binds to."),
    _kafka(
        "advertise", str, "HOST or HOST:PORT that clients of Kafka are given, if it is another."
    ),
    _kafka("prefix", str, "What the names of journals begin with that clients of Kafka create."),
    _kafka(
        "registry",
        str,
        "URL of a registry of schemas, as http://host:8081. Default: the brokers' own, which is in etcd.",
    ),
    _kafka(
        "registry-port",
        int,
        "TCP port for clients of the brokers' own registry of schemas, 0 for any free one. Default: none.",
    ),
    _kafka("auto-create", bool, "Create topics that clients ask for and that do not exist."),
    _kafka("partitions", int, "Partitions of topics whose creator does not say how many."),
    _kafka("replication", int, "Replication of topics whose creator does not say."),
    _kafka(
        "store",
        str,
        "Fragment store of topics that clients create. Default: as another journal below the prefix, or none.",
    ),
    _kafka("fragment-length", int, "Length of fragments of such topics, in bytes."),
    _kafka("request-bytes-max", int, "Largest request of a client of Kafka, in bytes."),
    _kafka(
        "buffer-bytes-max", int, "Bytes of requests of clients of Kafka that are held at a time."
    ),
    _kafka("record-bytes-max", int, "Largest record, and largest batch of records, in bytes."),
    _kafka(
        "produce-quota",
        int,
        "Bytes a second that each caller may produce by a broker's Kafka port; 0 for any number.",
    ),
    _kafka(
        "fetch-quota",
        int,
        "Bytes a second that each caller may fetch from a broker's Kafka port; 0 for any number.",
    ),
    _kafka("idle", float, "Time after which a connection without requests is closed."),
)

SERVE_OPTIONS = (
    *BROKER_OPTIONS.address(
        "Host to bind, and to advertise to clients and peers.",
        BROKER_OPTIONS.own(
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
        "Number of broker processes, or auto for one per core. The others take the ports after the first "
        "broker's; more than one needs --debug.port.",
        BrokerConfig,
        "1",
    ),
    *BROKER_OPTIONS.security(),
    BROKER_OPTIONS.own(
        "allow-origin",
        list,
        "Origin whose pages may use the HTTP gateway; * for all. Repeatable.",
    ),
    BROKER_OPTIONS.own(
        "allow-host",
        list,
        "Host name that HTTP requests may use, besides --broker.host, --broker.advertise and the names of the "
        "machine; * for any. Checked if neither tokens nor TLS are on. Repeatable.",
    ),
    BROKER_OPTIONS.own("no-console", bool, "Serve no console (/console on the HTTP port)."),
    BROKER_OPTIONS.own(
        "console-consumer",
        list,
        "Address of a consumer, as http://host:port, whose shards the console shows. Repeatable.",
    ),
    BROKER_OPTIONS.own("file-root", Path, "Folder that roots file:// stores; must exist."),
    BROKER_OPTIONS.own("file-only", bool, "Map every store to file:///; needs --broker.file-root."),
    BROKER_OPTIONS.own(
        "stores-allowed",
        list,
        "URL of a store that specs may use, with all stores below it, as file:///tenants/. Repeatable. "
        "Default: any store.",
    ),
    BROKER_OPTIONS.own(
        "spool-dir", Path, "Folder of the spools, on a local disk that outlives the process."
    ),
    BROKER_OPTIONS.own(
        "fsync",
        FsyncMode,
        "When to sync appended bytes to the disk: at each commit, before the broker acknowledges it; every "
        "second; or never. They survive the end of the process in any case.",
    ),
    *BROKER_OPTIONS.shared("wire"),
    BROKER_OPTIONS.own("limit", int, "Most journals to assign to this broker.", "journal_limit"),
    BROKER_OPTIONS.own(
        "max-append-rate",
        int,
        "Cap on the append rate that specs of journals set, in bytes per second; 0 for no cap.",
    ),
    BROKER_OPTIONS.own(
        "min-append-rate", int, "Bytes per second that an appending client must sustain."
    ),
    BROKER_OPTIONS.own("max-replication", int, "Cap on the replication of journals."),
    BROKER_OPTIONS.own(
        "max-http-tails",
        int,
        "Live tails that one token may hold open over HTTP; one address, if there are no keys.",
    ),
    *BROKER_OPTIONS.shared("max-grpc-recv-size", "watch-delay"),
    BROKER_OPTIONS.own(
        "append-wait",
        float,
        "How long an append waits for its journal to become writable, and a read for the first "
        "listing of its stores; 0s fails at once.",
    ),
    BROKER_OPTIONS.own(
        "auto-suspend",
        bool,
        "Suspend journals that had no appends for 15 minutes, once the store holds all of their bytes.",
    ),
    *BROKER_OPTIONS.shared("drain-timeout"),
    BROKER_OPTIONS.own(
        "evict-after",
        float,
        "How long a broker's address must refuse connections from two brokers in different zones, until the "
        "broker counts as crashed and loses its lease; 0s waits for the lease to end.",
    ),
    *BROKER_OPTIONS.etcd(),
    BROKER_OPTIONS.of("etcd.prefix", str, "Path under which the cluster keeps keys."),
    BROKER_OPTIONS.lease("Time after which etcd forgets a broker that died."),
    *BROKER_OPTIONS.log(),
    BROKER_OPTIONS.of(
        "debug.port",
        int,
        "TCP port of an additional plain listener, with only readiness and metrics; 0 for any free one.",
    ),
    BROKER_OPTIONS.of("debug.private", bool, "Serve readiness and metrics on the debug port only."),
    *KAFKA_OPTIONS,
)


def broker_config(values: Mapping[str, Any]) -> BrokerConfig:
    """The settings of a broker from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    return BrokerConfig(**settings_of(SERVE_OPTIONS, values, BrokerConfig))


def kafka_config(values: Mapping[str, Any]) -> KafkaConfig | None:
    """The settings of a gateway for clients of Kafka; None: none is asked for.

    Raises: ValidationError: a value is out of range. SetupError: the extra is missing.
    """
    config = KafkaConfig(**settings_of(KAFKA_OPTIONS, values, KafkaConfig))
    if config.port is None:
        return None
    for package in ("kio", "aiokafka", "fastavro"):
        required(package, extra="kafka", by="clients of Kafka (--kafka.port)")
    if config.registry_port is not None:
        required("avro", extra="kafka", by="registries of schemas (--kafka.registry-port)")
    return config


def processes_of(values: Mapping[str, Any]) -> int:
    """Return how many processes the values of options ask for.

    Raises: ValidationError: it is no such number.
    """
    return process_count(str(values["broker.processes"]), cores=usable_cores())


def _serve(values: dict[str, Any]) -> None:
    """Run a broker, or several on this machine, until SIGTERM or SIGINT.

    With **--broker.processes** above 1, a supervisor runs that many brokers. Each one takes the ports and the id of the
    broker before it, plus 1. --debug.port serves readiness and metrics of all.

    Options come from flags, else from gazette.ini (in ., or ~/.config/gazette), else from the environment.

    **Examples**

    gazette serve --etcd.address http://localhost:2379 --broker.file-root /srv/fragments

    BROKER_PORT=8080 gazette serve --broker.zone us-east-1a --log.level info

    gazette serve --broker.processes auto --broker.port 8080 --broker.http-port 9080 --debug.port 8070
    """
    set_up_logging(values["log.level"], values["log.format"])
    config, count = broker_config(values), processes_of(values)
    kafka = kafka_config(values)
    for folder, name in ((config.spool_dir, "spool-dir"), (config.file_root, "file-root")):
        if folder is not None:
            _check_writable(folder, f"broker.{name}")
    if count > 1:
        serve_processes(
            config,
            count,
            kafka=kafka,
            log_level=values["log.level"],
            log_format=values["log.format"],
        )
        return
    _run_broker(config, kafka)


def _run_broker(
    config: BrokerConfig, kafka: KafkaConfig | None, line: SupervisorLine | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    A second signal ends it at once, and --broker.drain-timeout within some time, whatever hangs.

    Args:
        line: to the supervisor of several brokers, if this is one of them.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    from gazette_platform.broker.serve import Broker  # noqa: PLC0415  help and errors come at once
    from gazette_platform.console import add_console  # noqa: PLC0415
    from gazette_platform.serving.process import run_server  # noqa: PLC0415

    def settle(broker: Broker) -> None:
        settle_memory()
        broker.keep_small()
        if line is not None:
            line.serves(broker.metrics.exposition)

    def make() -> Broker:
        return Broker(config, add_console)

    flag = "broker.drain-timeout"
    tune_malloc()
    if kafka is None:
        run_server(make, flag=flag, on_start=settle, overseer=line)
        return
    from gazette_platform.kafka.server import BrokerWithKafka  # noqa: PLC0415  needs the extra

    run_server(
        lambda: BrokerWithKafka(make(), kafka),
        flag=flag,
        on_start=lambda both: settle(both.broker),
        overseer=line,
    )


def _check_writable(folder: Path, option: str) -> None:
    """Raises: ValidationError: no file can be made in `folder`."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as err:
        raise ValidationError(
            f"cannot write to {folder}: {err.strerror} (choose another folder with --{option})",
            path=option,
        ) from err


def _print_config(values: dict[str, Any]) -> None:
    """Print the options of **gazette serve**, merged from all sources, as an INI file.

    **Example**

    gazette print-config --broker.zone us-east-1a > gazette.ini
    """
    broker_config({**values})
    kafka_config(values)
    processes_of(values)
    print(render_ini(option_values(SERVE_OPTIONS, values)), end="")


serve = with_options(SERVE_OPTIONS, _serve)
print_config = with_options(SERVE_OPTIONS, _print_config)


_MEMBER: Final = (sys.executable, "-m", "gazette_platform.cli.gazette.serve")

app = typer.Typer(pretty_exceptions_enable=False)


def serve_processes(
    config: BrokerConfig,
    count: int,
    *,
    log_level: str,
    log_format: str,
    kafka: KafkaConfig | None = None,
) -> None:
    """Run several brokers until SIGTERM or SIGINT.

    Raises: GazetteError: one could not start, or did not leave as it should.
    """
    from gazette_platform.serving.process import run_server  # noqa: PLC0415
    from gazette_platform.serving.supervisor import (  # noqa: PLC0415  one broker needs none
        Member,
        Supervision,
        Supervisor,
    )

    if config.debug_port is None:
        raise ValidationError(
            "several processes need --debug.port, which serves readiness and metrics of all of them",
            path="broker.processes",
        )
    configs = configs_of(config, count, fallback_id=random_id(random.Random()))  # noqa: S311  no secret
    plan = Supervision(
        members=[
            Member(found.id, pickle.dumps((found, _kafka_of(kafka, number), log_level, log_format)))
            for number, found in enumerate(configs)
        ],
        command=_MEMBER,
        is_json=log_format == "json",
        host=config.http_host,
        port=config.debug_port,
    )
    run_server(lambda: Supervisor(plan), flag="broker.drain-timeout")


def _kafka_of(config: KafkaConfig | None, number: int) -> KafkaConfig | None:
    """The settings of the gateway of process `number`, whose ports are larger by that."""
    if config is None:
        return None
    host, colon, port = config.advertise.rpartition(":")
    advertise = f"{host}:{int(port) + number}" if colon else config.advertise
    return replace(config, port=config.port and config.port + number, advertise=advertise)


@app.command()
def _member(_name: Annotated[str, typer.Argument(help="For the list of processes.")]) -> None:
    line = SupervisorLine.on_stdin()
    task = pickle.loads(line.read_task())  # noqa: S301  our parent wrote it
    config, kafka, log_level, log_format = task
    set_up_logging(log_level, log_format)
    _run_broker(config, kafka, line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one member. Returns: the exit code."""
    return run(app, "gazette", argv)


if __name__ == "__main__":
    leave(main())
