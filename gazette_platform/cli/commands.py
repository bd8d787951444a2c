"""Commands made of functions: options by their docstrings, groups that import lazily, values without pydantic.

A command is a function. Its docstring ends with a section ``Options:``, which describes its arguments and options as a
manual does, in the order of its parameters; `documented` gives them to Typer. The flag, its help and the parameter are
so written once, beside each other. Types and defaults are those of the parameters.

Typer has pydantic convert each value since its release 0.26. To import it takes longer than most commands do their
work. What most values are, texts, whole numbers, paths and names out of a list, needs none of it. Whatever else comes,
or does not fit, is left to Typer, and so are its messages. With another Typer nothing is changed.
"""

from __future__ import annotations

import enum
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from typer import core
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo
from typing_extensions import override

C = TypeVar("C", bound=Callable[..., Any])

_SECTION = "\n\nOptions:\n"
# ``-o, --format: …``, ``--timeout DURATION: …`` or ``FILE: …``.
_DESCRIBED = re.compile(
    r"(?P<flags>-[^ :]+(?:, -[^ :]+)*)?(?: ?(?P<metavar>[^-: ][^: ]*))?: (?P<help>.+)"
)
# What a parameter's annotation may add to its description.
_MORE = ("min", "max", "parser", "autocompletion", "envvar", "rich_help_panel")


def documented(command: C) -> C:
    """Give a function the arguments and options that the section ``Options:`` of its docstring describes.

    A parameter with a help of its own, such as the shared ones of `gazctl.arguments`, is not described there.

    Raises: ValueError: the section does not have a line for each of the other parameters.
    """
    text, section, described = (inspect.getdoc(command) or "").partition(_SECTION)
    if not section:
        return command
    entries = iter(re.split(r"\n {4}(?! )", described.removeprefix("    ")))
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter if _is_declared(parameter) else _declared(parameter, next(entries, ""))
        for parameter in signature.parameters.values()
    ]
    if left := next(entries, ""):
        raise ValueError(f"{command.__qualname__}: no parameter for {left!r}")
    for each in parameters:
        info = _info(each.annotation)
        own = {flag.lstrip("-").replace("-", "_") for flag in (info and info.param_decls) or ()}
        if others := own & signature.parameters.keys() - {each.name}:
            raise ValueError(f"{command.__qualname__}: {each.name} is described as {others}")
    command.__doc__ = text
    return with_parameters(command, parameters)


def with_parameters(command: C, parameters: Iterable[inspect.Parameter]) -> C:
    """Show Typer a function with these parameters."""
    given = list(parameters)
    command.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in given}
    return command


def _info(annotation: Any) -> ParameterInfo | None:
    """Return what an annotation declares for Typer; None: nothing."""
    declared = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((each for each in declared if isinstance(each, ParameterInfo)), None)


def _is_declared(parameter: inspect.Parameter) -> bool:
    info = _info(parameter.annotation)
    return parameter.annotation is typer.Context or (info is not None and info.help is not None)


def _declared(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    """Return the parameter with the option that `text` describes. Raises: ValueError: the text describes none."""
    found = _DESCRIBED.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(f"{parameter.name}: no option is described by {text!r}")
    info = _info(parameter.annotation)
    kind = get_args(parameter.annotation)[0] if info is not None else parameter.annotation
    has_default = parameter.default not in {None, "", inspect.Parameter.empty}
    more = {name: getattr(info, name) for name in _MORE if info is not None}
    flags = tuple(found["flags"].split(", ")) if found["flags"] else None
    make = ArgumentInfo if flags is None else OptionInfo
    declared = make(
        default=...,
        param_decls=flags,
        help=found["help"],
        metavar=found["metavar"],
        show_default=has_default,
        **more,
    )
    return parameter.replace(annotation=Annotated[kind, declared])


_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
# Checks of paths that Typer does.
_CHECKS_OF_PATHS = ("exists", "resolve_path", "writable", "allow_dash", "path_type")


def install() -> None:
    """Have Typer ask `quick_value` first, in this process. Idempotent."""
    parameter: Any = getattr(core, "_TyperParameter", None)
    made = getattr(parameter, "get_runtime_param", None)
    if made is None or hasattr(made, "of_typer"):
        return

    def get_runtime_param(self: Any) -> _Quick:
        return _Quick(self.type_descriptor, lambda: made(self))

    get_runtime_param.of_typer = made  # type: ignore[attr-defined]
    parameter.get_runtime_param = get_runtime_param


class _Quick:
    """What Typer asks to convert the values of one parameter."""

    def __init__(self, descriptor: Any, slow: Callable[[], Any]) -> None:
        self._descriptor = descriptor
        self._slow = slow

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command wants it."""
        annotation = _only(self._descriptor.annotation)
        is_known, found = False, value
        if not param.multiple and param.nargs == 1:
            is_known, found = quick_value(value, annotation, self._descriptor.parameter_info)
        elif value is None:
            is_known, found = True, ()
        elif annotation == list[str] and isinstance(value, list | tuple):
            is_known, found = all(type(each) is str for each in value), list(value)
        if is_known:
            return found
        try:
            return self._slow().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as err:
            err.message = err.message.removeprefix("Value error, ")  # of pydantic
            raise


def _only(annotation: Any) -> Any:
    """What an annotation says besides None."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else None


def quick_value(value: Any, annotation: Any, info: Any) -> tuple[bool, Any]:
    """Whether a single value is one of the simple kind, and what it is.

    Args:
        value: as given: text, or a default.
        annotation: the type that the command has for it, besides None.
        info: what else its option or argument says.
    """
    if info.parser is not None or getattr(info, "click_type", None) is not None:
        return False, None
    if value is None or (annotation is str and type(value) is str):
        return True, value
    if annotation is int:
        return _integer(value, info)
    if annotation is Path and type(value) is str and _is_plain_path(value, info):
        return True, Path(value)
    return _member(value, annotation)


def _is_plain_path(value: str, info: Any) -> bool:
    """Whether Typer would take the path as it is."""
    if any(getattr(info, name) for name in _CHECKS_OF_PATHS) or "\0" in value:
        return False
    is_any = info.file_okay and info.dir_okay
    return not os.path.lexists(value) or (is_any and os.access(value, os.R_OK))


def _integer(value: Any, info: Any) -> tuple[bool, Any]:
    if type(value) is str and _INTEGER.match(value):
        value = int(value)
    is_good = (
        type(value) is int
        and (info.min is None or value >= info.min)
        and (info.max is None or value <= info.max)
    )
    return is_good, value if is_good else None


def _member(value: Any, annotation: Any) -> tuple[bool, Any]:
    """Return whether a value is one that a `Literal` or an enumeration has, and which."""
    if get_origin(annotation) is Literal:
        return type(value) is str and value in get_args(annotation), value
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            if value is member or (type(value) is str and value == member.value):
                return True, member
    return False, None


def lazy_group(
    package: str, commands: Mapping[str, str], base: type[core.TyperGroup] = core.TyperGroup
) -> type[core.TyperGroup]:
    """A kind of group whose commands are imported when one is asked for, so that none waits for the others.

    Args:
        package: that has the commands.
        commands: ``module:function`` in it by name, in the order of help; or ``module:app`` of a group.
        base: the kind of group besides.
    """

    class LazyGroup(base):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.commands = _Commands(package, commands)

        @override
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] not in self.commands and (meant := _meant(args[0], self.commands)):
                suggested = ", ".join(f"'{ctx.command_path} {each}'" for each in meant)
                ctx.fail(f"No such command '{args[0]}'. Did you mean {suggested}?")
            return super().resolve_command(ctx, args)

    return LazyGroup


# What other programs call our commands.
_WORDS = {"start": "up", "stop": "down", "ps": "status"}


def _meant(word: str, commands: Mapping[str, Any]) -> list[str]:
    """Commands for one that does not exist: of that name in a group, or ours for what others call so."""
    found = [
        f"{name} {word}"
        for name, group in commands.items()
        if isinstance(group, core.TyperGroup) and word in group.commands
    ]
    ours = _WORDS.get(word, "")
    return [*found, ours] if ours in commands else found


class _Commands(dict[str, Any]):
    """Commands by name; each is where it is to be found, until it is asked for."""

    def __init__(self, package: str, commands: Mapping[str, str]) -> None:
        super().__init__(commands)
        self._package = package

    @override
    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = getattr(import_module(f"{self._package}.{module}"), attribute)
            if not isinstance(found, typer.Typer):
                alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
                alone.command(name)(documented(found))
                found = alone
            self[name] = found = get_command(found)
        return found

    @override
    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    @override
    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    @override
    def values(self) -> Any:
        return [self[name] for name in self]
