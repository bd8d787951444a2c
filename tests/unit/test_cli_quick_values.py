"""Values of options are converted as Typer does, without what Typer needs for it."""

import enum
from pathlib import Path
from typing import Annotated

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
    to: Path | None = None,
    source: Annotated[Path | None, typer.Option(exists=True)] = None,
    folder: Annotated[Path | None, typer.Option(file_okay=False)] = None,
    ratio: float = 0.5,
    label: Annotated[list[str] | None, typer.Option()] = None,
    is_on: Annotated[bool, typer.Option("--on/--off")] = False,
) -> None:
    print([names, count, limit, colour, to, source, folder, ratio, label, is_on])


CASES = [
    [],
    ["a", "b", "--count", "9"],
    ["--limit", "-5", "--colour", "blue", "--to", "x/y", "--on"],
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
