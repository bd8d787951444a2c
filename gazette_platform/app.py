"""Applications: stateful, exactly-once consumers of journals, and the program that runs them.

    from gazette_platform.app import Application, SQLiteStore, run

    class Counts(Application):
        ...

    if __name__ == "__main__":
        run(Counts())

The program has the commands ``serve`` and ``print-config``; options come from flags, else from
gazette.ini, else from the environment. An application may have options of its own:

    class Counts(Application):
        options = (Option("counts.top", int, 10, "Words that are told of."),)

        def configure(self, values):
            self.top = values["counts.top"]

All that most applications need is imported from here; stores, when they are first used, as each may
need a package of an extra.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from gazette_platform.cli import errors
from gazette_platform.cli.consumer_options import (
    application_values,
    consumer_config,
    consumer_options,
)
from gazette_platform.cli.ini import apply_ini, render_ini
from gazette_platform.cli.logs import check_logging, set_up_logging
from gazette_platform.cli.option_table import option_values, with_options
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
from gazette_platform.consumer.process import ConsumerProcess
from gazette_platform.consumer.process.serve import run as run_process
from gazette_platform.errors import ApplicationFailed, GazetteError
from gazette_platform.message import (
    Envelope,
    Flags,
    Mapped,
    modulo_mapping,
    random_mapping,
    rendezvous_mapping,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.cli.option_table import ProcessOption
    from gazette_platform.consumer.process import ConsumerConfig
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

if not TYPE_CHECKING:  # to which any name would be there

    def __getattr__(name: str) -> Any:
        if name not in _OF_STORES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(store, name)


def run(application: Application[Any, Any]) -> NoReturn:
    """Run the program of an application, and exit with its code."""
    sys.exit(main(application))


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
        return errors.EXIT_FAILED
    return errors.run(program, name, argv)


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
