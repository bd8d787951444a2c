"""The folder of the platform that a command of `gazette` works on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gazette_platform.errors import SetupError
from gazette_platform.ops import platforms

if TYPE_CHECKING:
    from gazette_platform.platform.layout import PlatformDir


def folder_of(text: str | Path) -> Path:
    """Return the folder that an option names. Raises: typer.BadParameter: none."""
    if not str(text):
        # An unset variable of a shell: it must not make a platform of the current folder.
        raise typer.BadParameter("is empty: name a folder, or . for the current one")
    return Path(text)


NewRoot = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        parser=folder_of,
        show_default=False,
        help="Folder of the platform, created if missing. Default: ./.gazette if it exists, else "
        "~/.local/share/gazette.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        parser=folder_of,
        show_default=False,
        help="Folder of the platform. Default: the one that runs, or ran last.",
    ),
]


def new_root(given: Path | None) -> PlatformDir:
    """Return the folder that a platform is started in."""
    from gazette_platform.platform.layout import PlatformDir  # noqa: PLC0415  an extra

    layout = PlatformDir.at(given or platforms.default_root(os.environ))
    if given is None:
        platforms.say_once(f"the platform is in {platforms.short(layout.root)}")
    return layout


def existing(given: Path | None) -> PlatformDir:
    """Return the folder of a platform that was started before; without a flag, say which one it is.

    Raises: SetupError: there is none.
    """
    from gazette_platform.platform.layout import PlatformDir  # noqa: PLC0415  an extra

    if given is None:
        chosen = platforms.find(os.environ)
        if chosen.root is None:
            raise SetupError(
                "no platform was started yet (start one with `gazette up --light`, or name its folder "
                "with --root)"
            )
        platforms.say_once(chosen.note())
        given = chosen.root
    layout = PlatformDir.at(given)
    if not layout.root.is_dir():
        raise SetupError(
            f"there is no folder {layout.root} (start a platform there with "
            f"`gazette up --root {layout.root}`)"
        )
    return layout


def remember(layout: PlatformDir) -> None:
    """Let later commands find a platform by themselves."""
    try:
        platforms.remember(layout.root, os.environ)
    except OSError as error:
        print(
            f"later commands need --root {layout.root}: cannot remember it: {error}",
            file=sys.stderr,
        )
