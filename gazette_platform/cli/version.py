"""`--version` of both programs."""

from typing import Annotated

import typer

__all__ = ["Version"]


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  the parser's way to call back
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415  slow to import

        print(version("gazette-platform"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]
