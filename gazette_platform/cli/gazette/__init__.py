"""``gazette``: run a broker, or a whole platform on one machine.

`serve` has the broker and its options, `platform` the commands over a platform. A command's module is imported when
the command is asked for: a broker needs nothing of a platform.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import typer

from gazette_platform.cli.commands import lazy_group
from gazette_platform.cli.program import EXIT_FAILED, Version, apply_ini, run
from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

_INI: Final = "gazette.ini"

app = typer.Typer(
    name="gazette",
    cls=lazy_group(
        __name__,
        {
            "serve": "serve:serve",
            "serve-kafka": "gateway:serve_kafka",
            "print-config": "serve:print_config",
            "backup": "backup:backup",
            "restore": "backup:restore",
            "up": "platform:up",
            "down": "platform:down",
            "status": "platform:status",
            "logs": "platform:logs",
            "env": "platform:env",
            "install": "platform:install",
            "demo": "platform:demo",
        },
    ),
    help="A streaming log whose storage is the data lake itself.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root_command(context: typer.Context, *, _version: Version = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns: the exit code."""
    from gazette_platform.cli.gazette.gateway import (  # noqa: PLC0415  a module of this package
        GATEWAY_OPTIONS,
    )
    from gazette_platform.cli.gazette.serve import SERVE_OPTIONS  # noqa: PLC0415

    try:
        options = (*GATEWAY_OPTIONS, *SERVE_OPTIONS)
        apply_ini(_INI, {option.name: option.variable for option in options})
    except GazetteError as error:
        print(f"gazette: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return run(app, "gazette", argv)
