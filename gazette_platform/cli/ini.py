"""INI files of options: they yield to flags, and take precedence over the environment."""

import configparser
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from gazette_platform.errors import ValidationError

__all__ = ["apply_ini", "find_ini", "render_ini"]


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
