"""`gazctl`: the command line of journals and shards."""

import gc
import sys
from typing import TYPE_CHECKING, Any, cast

import typer

from gazette_platform.cli.connection import CONNECTION_VARIABLES, CONSUMER_VARIABLES
from gazette_platform.cli.errors import EXIT_FAILED, run
from gazette_platform.cli.gazctl_root import EPILOG, new_app
from gazette_platform.cli.ini import apply_ini
from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from gazette_platform.cli.gazctl_app import app

__all__ = ["app", "main"]

# By a query. Arrow imports them wherever they are installed, which takes half a second.
_NOT_NEEDED = ("numpy", "pandas")


def _app_for(args: list[str]) -> typer.Typer:
    """What has the command that was asked for. A query has a second to answer, so it gets no more."""
    if args[:1] != ["sql"]:
        from gazette_platform.cli.gazctl_app import app  # noqa: PLC0415  has all commands

        return app
    from gazette_platform.cli import gazctl_sql  # noqa: PLC0415

    alone = new_app()
    alone.command("sql", epilog=EPILOG)(gazctl_sql.sql)
    return alone


def main(argv: list[str] | None = None) -> int:
    """Run `gazctl`; returns its exit code, or ends the process when it is the program itself."""
    try:
        apply_ini("gazctl.ini", CONNECTION_VARIABLES | CONSUMER_VARIABLES)
    except GazetteError as err:
        print(f"gazctl: error: {err}", file=sys.stderr)
        code = EXIT_FAILED
    else:
        args = sys.argv[1:] if argv is None else argv
        if argv is None and args[:1] == ["sql"]:
            # As Python marks what is not to be had. Others in the process may need them, if it is not the program itself.
            sys.modules.update(dict.fromkeys(_NOT_NEEDED, cast("Any", None)))
        code = run(_app_for(args), "gazctl", argv)
    if argv is None:
        gc.freeze()  # else all that was imported is looked through at the end, which takes a while
        sys.exit(code)
    return code


if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from gazette_platform.cli.gazctl_app import app  # noqa: PLC0415  see `_app_for`

        return app


if __name__ == "__main__":
    main()
