"""Applications: stateful, exactly-once consumers of journals, and the program that runs them.

    from gazette_platform.app import Application, SQLiteStore, run

    class Counts(Application):
        ...

    if __name__ == "__main__":
        run(Counts())

The program has the commands ``serve`` and ``print-config``; options come from flags, else from
gazette.ini, else from the environment. An application may have options of its own:

    class Counts(Application):
        options = (Option("counts.top", int, 10, "How many words to report."),)

        def configure(self, values):
            self.top = values["counts.top"]

All that most applications need is imported from here; stores, when they are first used, as each may
need a package of an extra.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from gazette_platform.cli.gazctl.connection import config_of
from gazette_platform.cli.options import (
    ProcessOption,
    ServerOptions,
    option_text,
    option_values,
    settings_of,
    with_options,
)
from gazette_platform.cli.program import (
    EXIT_FAILED,
    apply_ini,
    check_logging,
    render_ini,
    run as run_program,
    set_up_logging,
)
from gazette_platform.cli.start import leave
from gazette_platform.client import ClientConfig
from gazette_platform.consumer import store
from gazette_platform.consumer.application import (
    Application,
    DeferToNextTransaction,
    Option,
    ServingProcess,
    Shard,
    Transaction,
    raised_by,
    takes_batches,
)
from gazette_platform.consumer.process import ConsumerConfig, ConsumerProcess, run as run_process
from gazette_platform.errors import ApplicationFailed, GazetteError, ValidationError
from gazette_platform.message import (
    Envelope,
    Flags,
    Mapped,
    modulo_mapping,
    random_mapping,
    rendezvous_mapping,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.consumer.store import (
        JSONFileStore,
        Memories,
        MemoryStore,
        RocksDBStore,
        ShardStore,
        SQLiteStore,
        SQLStore,
        create_tables,
        sql_engine,
    )

__all__ = [
    "Application",
    "ApplicationFailed",
    "ConsumerProcess",
    "DeferToNextTransaction",
    "Envelope",
    "Flags",
    "JSONFileStore",
    "Mapped",
    "Memories",
    "MemoryStore",
    "Option",
    "RocksDBStore",
    "SQLStore",
    "SQLiteStore",
    "ServingProcess",
    "Shard",
    "ShardStore",
    "Transaction",
    "create_tables",
    "main",
    "modulo_mapping",
    "random_mapping",
    "rendezvous_mapping",
    "run",
    "sql_engine",
]

_INI = "gazette.ini"

_OF_STORES: Final = frozenset(__all__).intersection(store.__all__)

if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        if name not in _OF_STORES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(store, name)


def run(application: Application[Any, Any]) -> NoReturn:
    """Run the program of an application, and exit with its code."""
    leave(main(application))


def main(application: Application[Any, Any], argv: Sequence[str] | None = None) -> int:
    """Run the program of an application.

    Args:
        application: to serve.
        argv: arguments without the program's name; None takes the process's.

    Returns: the exit code.
    """
    name = type(application).__name__
    program = program_of(application)
    options = consumer_options(name, application.options)
    try:
        apply_ini(_INI, {option.name: option.variable for option in options})
    except GazetteError as error:
        typer.echo(f"{name}: error: {error}", err=True)
        return EXIT_FAILED
    return run_program(program, name, argv)


def program_of(application: Application[Any, Any]) -> typer.Typer:
    """The program of an application, with its commands."""
    name = type(application).__name__
    options = consumer_options(name, application.options)

    def serve(values: dict[str, Any]) -> None:
        """Run shards that are assigned to this process, until SIGTERM or SIGINT."""
        config = _checked(application, options, values)
        set_up_logging(values["log.level"], values["log.format"])
        run_process(application, config)

    def print_config(values: dict[str, Any]) -> None:
        """Print the options of **serve**, merged from all sources, as an INI file."""
        _checked(application, options, values)
        typer.echo(render_ini(option_values(options, values)), nl=False)

    program = typer.Typer(
        name=name,
        help=(type(application).__doc__ or f"{name}, a consumer of journals.").strip(),
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.command("serve")(with_options(options, serve))
    program.command("print-config")(with_options(options, print_config))
    return program


def _checked(
    application: Application[Any, Any],
    options: Sequence[ProcessOption],
    values: dict[str, Any],
) -> ConsumerConfig:
    """The settings. Raises: ValidationError: an option, or the application, cannot work."""
    check_logging(values["log.level"], values["log.format"])
    takes_batches(application)
    try:
        application.configure(application_values(application.options, options, values))
    except GazetteError:
        raise
    except Exception as err:
        raise raised_by(application, "configure", err) from err
    return consumer_config(values)


_CONSUMER = ServerOptions(
    ConsumerConfig,
    "process",
    "other processes of the group",
    "serves the gRPC port",
    them="them",
)


def _broker(name: str, kind: type, text: str, field: str = "") -> ProcessOption:
    variable = "BROKER_" + name.replace("-", "_").replace(".", "_").upper()
    return ProcessOption(
        f"broker.{name}", variable, kind, field or name.replace("-", "_"), text, ClientConfig
    )


_OPTIONS = (
    *_CONSUMER.address(
        "Host that is bound, and advertised.",
        _CONSUMER.own("port", int, "TCP port of the gRPC service; 0 for any free one."),
    ),
    *_CONSUMER.security(),
    _CONSUMER.own(
        "allow-origin", list, "Origin whose pages may use the HTTP port; * for all. Repeatable."
    ),
    _CONSUMER.own(
        "allow-host",
        list,
        "Host name that requests to the HTTP port may carry, beside those of --consumer.host, "
        "--consumer.advertise and the machine; * for any. Repeatable.",
    ),
    *_CONSUMER.shared("wire"),
    _CONSUMER.own("limit", int, "Most shards that this process takes on."),
    _CONSUMER.own("max-hot-standbys", int, "Cap on the hot standbys of shards."),
    *_CONSUMER.shared("watch-delay", "max-grpc-recv-size", "drain-timeout"),
    _CONSUMER.own(
        "restart-failed",
        float,
        "After which a shard that failed here is started again, doubled each time. Default: not before "
        "you unassign it, unless its failure may pass: it was fenced, or its database was away.",
    ),
    _CONSUMER.own("directory", Path, "Folder of the files of shards, while they run here."),
    _CONSUMER.own(
        "hints-interval",
        float,
        "How often a shard keeps hints: whoever recovers it plays what was recorded since.",
    ),
    _broker("address", str, "URL of a broker, or of several, with commas between."),
    _broker("cert-file", str, "PEM certificate to show to brokers."),
    _broker("cert-key-file", str, "PEM key of it."),
    _broker("trusted-ca-file", str, "PEM roots to trust of brokers, not the system's."),
    _broker("auth-keys", str, "Base64 keys of brokers: the first signs a token for each call."),
    _broker("auth-token", str, "Fixed bearer token for brokers."),
    _broker(
        "file-root", Path, "Folder that roots file:// stores, to read fragments from directly."
    ),
    _broker("cache.size", int, "Journals whose brokers are remembered.", "route_cache_size"),
    _broker(
        "cache.ttl", float, "After which the consumer requests them again.", "route_cache_ttl_s"
    ),
    *_CONSUMER.etcd(),
    _CONSUMER.lease("Time after which etcd forgets a process that died, and others take over."),
    *_CONSUMER.log(),
)


_BROKER_TEXTS = (
    "address",
    "cert_file",
    "cert_key_file",
    "trusted_ca_file",
    "auth_keys",
    "auth_token",
)


def consumer_options(name: str, own: Iterable[Option] = ()) -> tuple[ProcessOption, ...]:
    """The options of an application.

    Args:
        name: of the application, for the default of its prefix in etcd.
        own: those that it alone has.
    """
    prefix = ProcessOption(
        "etcd.prefix",
        "ETCD_PREFIX",
        str,
        "",
        "Path under which the group keeps keys: one of its own for each deployment.",
        ConsumerConfig,
        f"/gazette/consumers/{name}",
    )
    return (*map(_own, own), *_OPTIONS, prefix)


def _own(option: Option) -> ProcessOption:
    return ProcessOption(
        option.name,
        option.variable,
        option.kind,
        "",
        option.help,
        ConsumerConfig,
        option_text(option.kind, option.default),
    )


def application_values(
    own: Iterable[Option], options: Iterable[ProcessOption], values: Mapping[str, Any]
) -> dict[str, Any]:
    """What `Application.configure` gets of the values of all options.

    Raises: ValidationError: a duration is malformed.
    """
    names = {option.name for option in own}
    found = {option.name: option for option in options if option.name in names}
    return {
        name: None if values[name] is None else option.parse(values[name])
        for name, option in found.items()
    }


def consumer_config(values: Mapping[str, Any]) -> ConsumerConfig:
    """The settings of a consumer process from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    own = settings_of(_OPTIONS, values, ConsumerConfig)
    file_root = values["broker.file-root"]
    if file_root and not Path(file_root).is_dir():
        raise ValidationError(f"{file_root} is not a directory", path="broker.file-root")
    of_broker = {name: values[f"broker.{name.replace('_', '-')}"] or "" for name in _BROKER_TEXTS}
    of_broker["cache_size"] = values["broker.cache.size"]
    of_broker["cache_ttl"] = values["broker.cache.ttl"]
    # An empty zone is reported by the rule of the consumer's own.
    broker = config_of("broker", values["consumer.zone"] or "-", of_broker)
    # A shard waits for brokers that are away, and goes on when they are back.
    client = replace(broker, retry_timeout_s=None, file_root=Path(file_root) if file_root else None)
    return ConsumerConfig(**own, broker=client, etcd_prefix=values["etcd.prefix"])
