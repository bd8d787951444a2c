"""What both programs have: INI files, logging and `--version`.

INI files yield to flags, and take precedence over the environment. Logging is in Gazette's levels and formats.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
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
    import configparser  # noqa: PLC0415  few have such a file

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
