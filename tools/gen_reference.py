"""Writes docs/reference/cli.md from the commands themselves, so that it cannot be out of date.

python tools/gen_reference.py          writes it
python tools/gen_reference.py --check  fails when the page differs from what it would write
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.main
from typing_extensions import override

from gazette_platform.app import Application, MemoryStore, Shard, program_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
_OF_ALL_PROGRAMS = frozenset({"--help", "--install-completion", "--show-completion"})
INTRO = """\
# Commands

Generated from the commands by `make gen`. `--help` of each shows the same, and
`--install-completion` teaches your shell to complete them, names of journals included.

Exit codes: 0 done; 1 failed, with one line on stderr that says what, which and the next step; 2 wrong usage; 130
interrupted. `GAZETTE_TRACEBACK=1` adds the traceback of a failure.
"""


class MyApplication(Application[MemoryStore[Any], Any]):
    """The program of an application, as `gazette_platform.app.run` has it; its help is that of its class."""

    @override
    def new_store(self, shard: Shard, recorder: object) -> MemoryStore[Any]:
        """A store that is never opened."""
        return MemoryStore(None)


def escape(text: str) -> str:
    """Text of one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def default_of(param: Any) -> str:
    """What to show as default: nothing for flags, secrets and what depends on the machine."""
    value = param.default
    if isinstance(param.show_default, str):
        return param.show_default
    if param.required or callable(value) or value is False or value in (None, "", ()):
        return ""
    if str(value) == tempfile.gettempdir():
        return "the system's temporary folder"
    return f"`{value}`"


def rows_of(command: Any, context: Any) -> Iterator[str]:
    """A line of the table for each argument and option."""
    for param in command.get_params(context):
        if _OF_ALL_PROGRAMS.intersection(param.opts) or getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            name = param.metavar or param.name.upper()
            if param.nargs == -1:
                name = f"{name}..." if param.required else f"[{name}]..."
            names = f"`{name}`"
        else:
            names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
        variable = param.envvar or ""
        variable = f"`{variable}`" if isinstance(variable, str) and variable else ""
        help_text = escape(getattr(param, "help", None) or "")
        if param.required:
            help_text = f"{help_text} Required.".strip()
        yield f"| {names} | {variable} | {escape(default_of(param))} | {help_text} |"


def help_of(command: Any) -> Iterator[str]:
    """Paragraphs of a command's help, then its examples as one block of code."""
    examples: list[str] = []
    in_examples = False
    for part in (command.help or "").split("\n\n"):
        if part.startswith("\b\n"):
            examples += [line.strip() for line in part.split("\n")[2:]]
        elif part.strip("*: \n") in {"Example", "Examples"}:
            in_examples = True
        elif in_examples:
            examples.append(part.strip())
        else:
            yield " ".join(part.split()) + "\n"
    if examples:
        yield "```\n" + "\n".join(examples) + "\n```\n"


def section(command: Any, path: str, level: int, seen: dict[str, str]) -> Iterator[str]:
    """The section of a command and those of its subcommands. `seen`: path by table of options."""
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"{'#' * level} {path}\n"
    yield from help_of(command)
    rows = "\n".join(rows_of(command, context))
    if rows in seen:
        yield f"Options are those of `{seen[rows]}`.\n"
    elif rows:
        seen[rows] = path
        yield f"| option | variable | default | meaning |\n|---|---|---|---|\n{rows}\n"
    if command.epilog:
        yield escape(command.epilog) + "\n"
    for name in getattr(command, "commands", {}):
        if not command.commands[name].hidden:
            yield from section(command.commands[name], f"{path} {name}", min(level + 1, 4), seen)


def page() -> str:
    """The whole page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [INTRO]
    for name in sorted(project["scripts"], reverse=True):
        app = importlib.import_module(f"gazette_platform.cli.{name}").app
        lines += section(typer.main.get_command(app), name, 2, {})
    program = typer.main.get_command(program_of(MyApplication()))
    lines += section(program, "python my_application.py", 2, {})
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Exit code: 0 done or equal, 1 the page is stale."""
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == wanted:
            return 0
        print(f"gen-check: {PAGE.relative_to(ROOT)} is stale; run `make gen`", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    print(f"gen: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
