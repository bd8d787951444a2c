"""Writes YAML byte for byte as Gazette's tools do: text of several words is folded at 80 columns.

PyYAML, whose emitter has the same ancestor as theirs, chooses most forms alike. What differs is here:
which strings are quoted because they could be read as another type, text of several lines, and how
quoted text is escaped and folded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import yaml
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["dump_yaml"]

_COLUMNS: Final = 80
_STRING: Final = "tag:yaml.org,2002:str"
# What PyYAML takes ``!``, ``&`` and ``*`` alone for.
_INDICATOR: Final = "tag:yaml.org,2002:yaml"

# What Gazette's YAML library takes for a number, boolean or time, beyond what ours does.
_AMBIGUOUS: Final = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
)

# What it does not write as it is, quoted or not: controls, surrogates, byte order marks, and all
# beyond 16 bits. Here also two odd line ends, which PyYAML does not read back.
_UNPRINTABLE: Final = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]")
_ESCAPES: Final = {
    "\0": "0", "\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r",
    "\x1b": "e", '"': '"', "\\": "\\", "\x85": "N", "\u2028": "L", "\u2029": "P",
}  # fmt: skip


def dump_yaml(document: Mapping[str, object]) -> str:
    """The text of a document of mappings, lists, strings, whole numbers and booleans, in their order."""
    text = yaml.dump(
        document,
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=_COLUMNS,
    )
    assert isinstance(text, str)
    # PyYAML ends the document after a last value with empty lines; theirs does not.
    return text.removesuffix("...\n") if text.endswith("\n...\n") else text


@final
class _Dumper(yaml.SafeDumper):
    """Writes double quotes where a string could be read as another type, or has odd characters."""

    # Of PyYAML's emitter, where on the line it is, and how it begins another.
    column: int
    best_width: int

    @override
    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """Write quoted text. Lines end at the first blank after the last column, which they stand for."""
        self.write_indicator('"', True)
        is_behind_blank = False
        for index, character in enumerate(text):
            is_blank = character == " "
            may_fold = is_blank and not is_behind_blank and 0 < index < len(text) - 1
            if split and may_fold and self.column > self.best_width:
                self.write_indent()
                # A reader drops blanks at the begin of a line.
                self._write("\\" if text[index + 1] == " " else "")
            else:
                self._write(_escaped(character))
            is_behind_blank = is_blank
        self.write_indicator('"', False)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.column += len(text)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return f"\\{_ESCAPES[character]}"
    if not _UNPRINTABLE.match(character):
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _represent_string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STRING, text, style=_style_of(dumper, text))


def _style_of(dumper: _Dumper, text: str) -> str | None:
    """How a string is to be written; None leaves it to the emitter."""
    if _UNPRINTABLE.search(text):
        return '"'
    if "\n" in text:
        return "|"
    tag = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag == _INDICATOR:
        return "'"
    return '"' if tag != _STRING or _AMBIGUOUS.fullmatch(text) else None


_Dumper.add_representer(str, _represent_string)
