"""Commands made of functions: options by docstrings, and values converted as Typer does, without what Typer needs for it."""

import enum
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from gazette_platform.cli import commands


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


app = typer.Typer()


@app.command()
def show(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    *,
    count: Annotated[int, typer.Option(min=1, max=9)] = 3,
    limit: int | None = None,
    colour: Colour = Colour.RED,
    size: Literal["small", "large"] = "small",
    to: Path | None = None,
    source: Annotated[Path | None, typer.Option(exists=True)] = None,
    folder: Annotated[Path | None, typer.Option(file_okay=False)] = None,
    ratio: float = 0.5,
    label: Annotated[list[str] | None, typer.Option()] = None,
    is_on: Annotated[bool, typer.Option("--on/--off")] = False,
) -> None:
    print([names, count, limit, colour, size, to, source, folder, ratio, label, is_on])


CASES = [
    [],
    ["a", "b", "--count", "9"],
    ["--limit", "-5", "--colour", "blue", "--to", "x/y", "--on"],
    ["--size", "large"],
    ["--ratio", "2", "--label", "a", "--label", "b"],
    ["--limit", " 7"],
    ["--limit", "1_0"],
    ["--limit", "9" * 30],
    ["--source", __file__],
    ["--folder", "nowhere"],
    ["--to", __file__],
    # What is refused, with its words.
    ["--count", "10"],
    ["--count", "many"],
    ["--limit", "1.5"],
    ["--colour", "green"],
    ["--size", "huge"],
    ["--source", "nowhere"],
    ["--folder", __file__],
    ["--ratio", "x"],
]


def words(output):
    return " ".join(output.replace("│", " ").split())


@pytest.mark.parametrize("args", CASES, ids=" ".join)
def test_they_are_what_typer_makes_of_them(args, monkeypatch):
    parameter = typer.core._TyperParameter
    made = parameter.get_runtime_param
    monkeypatch.setattr(parameter, "get_runtime_param", getattr(made, "of_typer", made))
    expected = CliRunner().invoke(app, args)
    commands.install()
    assert parameter.get_runtime_param.of_typer is getattr(made, "of_typer", made)
    found = CliRunner().invoke(app, args)
    assert found.exit_code == expected.exit_code
    # Pydantic's name for the fault says nothing to a user.
    assert words(found.output) == words(expected.output).replace("Value error, ", "")


def test_a_typer_of_another_kind_is_left_as_it_is(monkeypatch):
    monkeypatch.delattr(typer.core, "_TyperParameter")
    commands.install()


def act(name: str, *, force: bool = False, timeout: str = "1m", note: str = "") -> None:
    """Act on it.

    **Example**

    act now

    Options:
        NAME: What to act on.
        -f, --force: Act at once,
            even if others wait.
        --timeout DURATION: How long to wait, as in 1m30s: at most a day.
        --note TEXT|FILE: Why.
    """


def test_options_of_docstring_become_those_of_the_command():
    app = typer.Typer()
    app.command()(commands.documented(act))
    made = typer.main.get_command(app)
    assert made.help == "Act on it.\n\n**Example**\n\nact now"
    found = {param.name: param for param in made.params}
    assert found["name"].param_type_name == "argument"
    assert found["name"].metavar == "NAME"
    assert found["force"].opts == ["-f", "--force"]
    assert found["force"].secondary_opts == []
    assert found["force"].help == "Act at once, even if others wait."
    assert found["timeout"].metavar == "DURATION"
    assert found["timeout"].help == "How long to wait, as in 1m30s: at most a day."
    assert found["timeout"].show_default
    assert found["note"].metavar == "TEXT|FILE"
    assert not found["note"].show_default


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("--name NAME: What to act on.", "force: no option is described by ''"),
        ("NAME: What.\n    --force: At once.\n    --more: Why.", "no parameter for '--more: Why.'"),
        ("--force: At once.\n    NAME: What.", "name is described as {'force'}"),
        ("NAME: What.\n    --force at once", "force: no option is described by '--force at once'"),
    ],
)
def test_option_without_parameter_or_parameter_without_option_is_refused(section, why):
    def command(name: str, *, force: bool = False) -> None: ...

    command.__doc__ = f"Act.\n\nOptions:\n    {section}"
    with pytest.raises(ValueError, match=re.escape(why)):
        commands.documented(command)
