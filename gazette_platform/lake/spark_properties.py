"""Properties of Spark that users give in a file, and how they go with ours.

The file is like Spark's own ``spark-defaults.conf``, but wins over what the platform sets. Secrets may be
in it: it is read when a session starts, and its content is shown nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import SetupError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["combined", "parse_properties", "read_properties"]

# Of these a user's value says what is wanted besides: without ours, Iceberg or the store would be gone.
_ADDED: Final = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraClassPath": ":",
    "spark.executor.extraClassPath": ":",
    "spark.driver.extraJavaOptions": " ",
}
_LINE: Final = re.compile(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")


def parse_properties(text: str, where: str) -> dict[str, str]:
    """The properties of `text`: a line each, ``name value`` or ``name=value``; ``#`` begins a comment line.

    A line that ends in a backslash goes on in the next one.

    Args:
        where: for messages.

    Raises: ValidationError: a line is none of these, names no property of Spark, or the master.
    """
    found: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        pending = ""
        if not line or line[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        place = f"{where}:{number}"
        if match is None or not match[2]:
            # Not the value found instead, which may be a secret.
            raise ValidationError(
                "expected a property and its value, such as spark.executor.memory 2g", path=place
            )
        name, value = match[1], match[2].strip()
        if not name.startswith("spark."):
            raise ValidationError(
                f"{name} is not a property of Spark (those of Hadoop begin with spark.hadoop.)",
                path=place,
            )
        if name == "spark.master":
            raise ValidationError("the master is set by GAZETTE_SPARK_MASTER", path=place)
        found[name] = value
    if pending:
        raise ValidationError("the last line ends in a backslash", path=where)
    return found


def read_properties(path: str) -> dict[str, str]:
    """The properties of a file; none for "".

    Raises: SetupError: it cannot be read. ValidationError: see `parse_properties`.
    """
    if not path:
        return {}
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise SetupError(f"cannot read GAZETTE_SPARK_PROPERTIES={path}: {err}") from err
    return parse_properties(text, path)


def combined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Our properties with a user's: theirs win, and lists of jars, extensions and options are joined."""
    found = {**ours, **given}
    for name, separator in _ADDED.items():
        if ours.get(name) and given.get(name):
            found[name] = f"{ours[name]}{separator}{given[name]}"
    return found
