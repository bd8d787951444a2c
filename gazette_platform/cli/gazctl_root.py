"""The root of `gazctl`: what all of its commands hang on."""

from typing import Any, final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from gazette_platform.cli.version import Version

__all__ = ["EPILOG", "RootGroup", "new_app"]

# What other programs call our commands.
_WORDS = {"start": "up", "stop": "down", "ps": "status"}

EPILOG = (
    "Options of the connection may also stand behind the command, come from environment "
    "variables, or from gazctl.ini in the current folder or ~/.config/gazette."
)


@final
class RootGroup(TyperGroup):
    """The commands of a program. For one that it does not have it suggests the groups that do."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names. Raises: the parser's error of wrong usage."""
        word = args[0]
        if word not in self.commands:
            meant = [
                f"{name} {word}"
                for name, group in self.commands.items()
                if isinstance(group, TyperGroup) and word in group.commands
            ]
            meant += [each for each in (_WORDS.get(word),) if each in self.commands]
            if meant:
                suggested = ", ".join(f"'{ctx.info_name} {each}'" for each in meant)
                ctx.fail(f"No such command '{word}'. Did you mean {suggested}?")
        return super().resolve_command(ctx, args)


def new_app() -> typer.Typer:
    """A `gazctl` without commands."""
    app = typer.Typer(
        name="gazctl",
        cls=RootGroup,
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
