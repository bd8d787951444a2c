"""`gazctl`: the command line of journals, shards, savepoints, tables and queries.

A folder has the verbs of each noun: `journals`, `shards`, `lake`. A command's module is imported when the command is
asked for, so that `gazctl journals list` waits for nothing that only others need. `connection` has the options that
all of them take, `arguments` how they name journals, `specs` and `plan` what `apply` and `edit` of journals and shards
have in common.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

import typer

from gazette_platform.cli.commands import lazy_group
from gazette_platform.cli.program import EXIT_FAILED, Version, apply_ini, run
from gazette_platform.errors import GazetteError

__all__ = ["app", "main"]

# By a query. Arrow imports them wherever they are installed, which takes half a second.
_NOT_NEEDED: Final = ("numpy", "pandas")

app = typer.Typer(
    name="gazctl",
    cls=lazy_group(
        __name__,
        {
            "sql": "sql:app",
            "attach-uuids": "journals.append_input:attach_uuids",
            "journals": "journals:app",
            "shards": "shards:app",
            "savepoints": "savepoints:app",
            "lake": "lake:app",
            "kafka": "kafka:app",
        },
    ),
    help="Work with the journals of Gazette-compatible brokers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    *,
    _version: Version = False,
) -> None:
    """Work with the journals of Gazette-compatible brokers."""


def main(argv: list[str] | None = None) -> int:
    """Run `gazctl`, by default with the arguments of the process. Returns: its exit code."""
    from gazette_platform.cli.gazctl.connection import (  # noqa: PLC0415  a module of this package
        CONNECTION_VARIABLES,
        CONSUMER_VARIABLES,
    )

    try:
        apply_ini("gazctl.ini", CONNECTION_VARIABLES | CONSUMER_VARIABLES)
    except GazetteError as err:
        print(f"gazctl: error: {err}", file=sys.stderr)
        return EXIT_FAILED
    if argv is None and sys.argv[1:2] == ["sql"]:
        # As Python marks what is not to be had. Others in the process may need them, if it is not the program itself.
        sys.modules.update(dict.fromkeys(_NOT_NEEDED, cast("Any", None)))
    return run(app, "gazctl", argv)
