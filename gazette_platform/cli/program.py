"""What both programs have: INI files, logging, `--version`, and values of options without pydantic.

INI files yield to flags, and take precedence over the environment. Logging is in Gazette's levels and formats.

Typer has pydantic convert each value since its release 0.26. To import it takes longer than most commands do their
work. What most values are, texts, whole numbers, paths and names out of a list, needs none of it. Whatever else comes,
or does not fit, is left to Typer, and so are its messages. With another Typer nothing is changed.
"""

from __future__ import annotations

import configparser
import enum
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer import core
from typer.main import get_command
from typing_extensions import override

from gazette_platform.errors import ValidationError


def find_ini(name: str, environ: Mapping[str, str]) -> Path | None:
    """The first INI file called `name` in the places that Gazette's programs look at."""
    folders = [Path()]
    homes = (environ.get(variable) for variable in ("HOME", "UserProfile"))
    folders += [Path(home) / ".config" / "gazette" for home in homes if home]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def apply_ini(
    name: str, variables: Mapping[str, str], environ: MutableMapping[str, str] = os.environ
) -> Path | None:
    """Let the values of an INI file stand in for the environment variables of their options.

    That gives the precedence of Gazette's programs, flag over INI over environment, for any
    option that has a variable. Sections are option groups; keys are compared without case, dashes
    and underscores, so that both ``cert-file`` and ``CertFile`` do. Unknown ones are ignored.

    Args:
        name: of the file, as ``gazctl.ini``.
        variables: of each option, by its full name, as ``broker.address``; names without a group
            belong to the section ``Application Options``.

    Returns: the file that was read, if there is one.
    Raises: ValidationError: it is not an INI file.
    """
    path = find_ini(name, environ)
    if path is None:
        return None
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as err:
        raise ValidationError(f"cannot read {path}: {err.strerror}") from err
    except (configparser.Error, UnicodeDecodeError) as err:
        raise ValidationError(f"{path} is not an INI file: {' '.join(str(err).split())}") from err
    by_key = {_key(option): variable for option, variable in variables.items()}
    for section in parser.sections():
        group = "" if section == "Application Options" else section
        for key, value in parser.items(section):
            variable = by_key.get(_key(f"{group}.{key}")) or by_key.get(_key(key))
            if variable is not None:
                environ[variable] = value
    return path


def render_ini(values: Mapping[str, str]) -> str:
    """INI text of option values by full names, such as ``broker.address``."""
    groups: dict[str, list[str]] = {}
    for option, value in values.items():
        group, _, key = option.partition(".") if "." in option else ("", "", option)
        title = group.capitalize() if group else "Application Options"
        groups.setdefault(title, []).append(f"{key} = {value}")
    return "\n".join(f"[{title}]\n" + "\n".join(lines) + "\n" for title, lines in groups.items())


def _key(option: str) -> str:
    return option.lower().replace("-", "").replace("_", "").replace(" ", "").strip(".")


LOG_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
LOG_FORMATS = {
    "text": "%(asctime)s %(levelname)s %(name)s: %(message)s",
    "color": "\033[2m%(asctime)s\033[0m \033[1m%(levelname)s\033[0m %(name)s: %(message)s",
    "json": "",
}


class _JsonFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def check_logging(level: str, log_format: str) -> None:
    """Raises: ValidationError: either is unknown."""
    if level not in LOG_LEVELS:
        raise ValidationError(
            f"expected one of {', '.join(LOG_LEVELS)}, got {level!r}", path="--log.level"
        )
    if log_format not in LOG_FORMATS:
        raise ValidationError(
            f"expected one of {', '.join(LOG_FORMATS)}, got {log_format!r}", path="--log.format"
        )


def set_up_logging(level: str, log_format: str) -> None:
    """Log to standard error, from `level` on, in `log_format`; replaces what was set up before.

    Raises: ValidationError: either is unknown.
    """
    check_logging(level, log_format)
    handler = logging.StreamHandler(sys.stderr)
    text = LOG_FORMATS[log_format]
    handler.setFormatter(logging.Formatter(text) if text else _JsonFormatter())
    logging.basicConfig(level=LOG_LEVELS[level], handlers=[handler], force=True)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  the parser's way to call back
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415  slow to import

        print(version("gazette-platform"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


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
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _member(value, annotation)
    return False, None


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


def _member(value: Any, annotation: type[enum.Enum]) -> tuple[bool, Any]:
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
                alone.command(name)(found)
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
