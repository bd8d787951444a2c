"""The root of `gazctl`: what all of its commands hang on."""

import typer

from gazette_platform.cli.version import Version

__all__ = ["EPILOG", "new_app"]

EPILOG = (
    "You may also give options of the connection after the command, in environment variables, or "
    "in gazctl.ini, in the current folder or ~/.config/gazette."
)


def new_app() -> typer.Typer:
    """A `gazctl` without commands."""
    app = typer.Typer(
        name="gazctl",
        help="Work with the journals of Gazette-compatible brokers.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def _root(
    *,
    _version: Version = False,
) -> None:
    """Work with the journals of Gazette-compatible brokers."""
