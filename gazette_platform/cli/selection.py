"""Which journals a command works on: names as arguments, or a selector of labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self, final

import typer

from gazette_platform.cli.completion import complete_names
from gazette_platform.errors import JournalNotFound, ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet

__all__ = ["Names", "Selection", "Selector", "SelectorOrNames", "no_match", "parse_selector"]

_OPTION = typer.Option(
    "-l",
    "--selector",
    metavar="SELECTOR",
    help="Labels of the journals, as in 'name:prefix=a/, env in (dev, test), !private'.",
)

Selector = Annotated[str, _OPTION]

SelectorOrNames = Annotated[str | None, _OPTION]
"""Of commands that take names as well. An empty selector is one, and matches all."""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        autocompletion=complete_names,
        help="Journals by name, instead of a selector. A name that ends in / means all journals below it.",
    ),
]


@final
@dataclass(frozen=True, slots=True)
class Selection:
    """The journals that a command line asked for."""

    selector: LabelSelector
    text: str
    """As the user wrote it, for errors."""
    names: tuple[str, ...] = ()
    """Journals that have to be there, each."""

    @classmethod
    def of(
        cls, names: Sequence[str] | None, selector: str | None, *, is_needed: bool = True
    ) -> Self:
        """What names and ``--selector`` say.

        Args:
            is_needed: whether saying neither is an error; else it means all journals.

        Raises: typer.BadParameter: both were given, or neither though it is needed.
            ValidationError: the selector cannot be parsed.
        """
        if names and selector is not None:
            raise typer.BadParameter("give names or --selector, and not both")
        if not names:
            if selector is None and is_needed:
                raise typer.BadParameter(
                    "name a journal, or give --selector (`gazctl journals list` shows all journals)"
                )
            return cls(parse_selector(selector or ""), selector or "")
        labels = LabelSet()
        for name in sorted(set(names)):
            if not name:
                raise typer.BadParameter("the name of a journal is empty")
            labels = labels.with_added("name", name, prefix=name.endswith("/"))
        selected = LabelSelector(include=labels)
        selected.validate()
        exact = tuple(name for name in names if not name.endswith("/"))
        return cls(selected, ", ".join(names), exact)

    def check(self, found: Iterable[str]) -> None:
        """Check what was found for it.

        Raises: JournalNotFound: a journal that was named is not there. ValidationError: nothing is.
        """
        known = set(found)
        missing = [name for name in self.names if name not in known]
        if missing:
            raise JournalNotFound(journal=", ".join(missing))
        if not known:
            raise no_match(self.text)


def parse_selector(text: str) -> LabelSelector:
    """The selector that ``--selector`` gave.

    Raises: ValidationError: it cannot be parsed; shows one that can.
    """
    try:
        return LabelSelector.parse(text)
    except ValidationError as err:
        raise ValidationError(
            f"{err} (write it as 'name:prefix=a/, env in (dev, test), !private')",
            path="--selector",
        ) from err


def no_match(selector: str) -> ValidationError:
    """The error of a command of which no journal matches the selector."""
    # Who writes a name alone asks for a label of that name.
    is_name = "/" in selector and not set(selector) & set("=, !()")
    hint = f"a journal is selected by its name as -l name={selector}; " if is_name else ""
    return ValidationError(
        f"no journals match the selector ({selector}); {hint}"
        "`gazctl journals list` shows the journals there are"
    )
