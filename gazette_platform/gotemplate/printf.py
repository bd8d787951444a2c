"""``printf`` of templates, with the verbs that make sense in a path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate.values import Value, show, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["printf"]

_VERB: Final = re.compile(
    r"%(?P<flags>[-+ 0#]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>.)?", re.DOTALL
)

# Wider than any path; a format from a spec must not make a broker build a gigabyte.
_WIDTH_MAX = 512

_ESCAPES: Final = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
    "\\": r"\\", '"': r"\"",
}  # fmt: skip

# Characters of a verb that an error shows.
_SHOWN_MAX = 40


def printf(arguments: Sequence[Value]) -> str:
    """Format the arguments after the first by the first.

    Raises: ValidationError: the format is not a string, an argument does not fit its verb or has
        none, or a verb is unknown.
    """
    if not arguments or not isinstance(arguments[0], str):
        raise ValidationError("printf needs a format string")
    rest = list(arguments[1:])
    used = 0

    def expand(match: re.Match[str]) -> str:
        nonlocal used
        verb = match["verb"]
        if verb == "%":
            return "%"
        if verb is None or verb not in _VERBS:
            raise ValidationError(f"printf: unknown verb {match[0][-_SHOWN_MAX:]!r}")
        if used >= len(rest):
            raise ValidationError(f"printf: no argument for {match[0][-_SHOWN_MAX:]}")
        value = rest[used]
        used += 1
        return _format(match, value)

    text = _VERB.sub(expand, arguments[0])
    if used != len(rest):
        raise ValidationError(f"printf: {len(rest) - used} arguments too many")
    return text


def _format(match: re.Match[str], value: Value) -> str:
    flags, verb = match["flags"], match["verb"]
    width = _bounded(match["width"])
    precision = None if match["precision"] is None else _bounded(match["precision"])
    text = _VERBS[verb](value, precision)
    if text is None:
        raise ValidationError(
            f"printf: {match[0][-_SHOWN_MAX:]} cannot format a {type_name(value)}"
        )
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and verb != "s"
    if is_number and text[:1] != "-" and verb not in "qc":
        text = ("+" if "+" in flags else " " if " " in flags else "") + text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and is_number:
        sign = text[0] if text[:1] in ("-", "+", " ") else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _bounded(digits: str) -> int:
    """A width or precision. Python refuses to read thousands of digits."""
    if len(digits.lstrip("0")) > len(str(_WIDTH_MAX)) or int(digits or 0) > _WIDTH_MAX:
        raise ValidationError(f"printf: a verb is wider than {_WIDTH_MAX}")
    return int(digits or 0)


def _integer(value: Value) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _in_base(base: str) -> Callable[[Value, int | None], str | None]:
    def render(value: Value, precision: int | None) -> str | None:
        if base in "xX" and isinstance(value, (str, bytes)):
            raw = value.encode() if isinstance(value, str) else value
            digits = raw[:precision].hex()
            return digits.upper() if base == "X" else digits
        number = _integer(value)
        if number is None:
            return None
        digits = format(abs(number), base).rjust(precision or 0, "0")
        return ("-" if number < 0 else "") + digits

    return render


def _real(kind: str) -> Callable[[Value, int | None], str | None]:
    def render(value: Value, precision: int | None) -> str | None:
        if not isinstance(value, float):
            return None
        return format(value, f".{6 if precision is None else precision}{kind}")

    return render


def _shown(value: Value, precision: int | None) -> str | None:
    text = show(value)
    return text[:precision] if isinstance(value, str) else text


def _string(value: Value, precision: int | None) -> str | None:
    # Enums and times print as words, other numbers are not strings.
    if isinstance(value, (bool, float)) or type(value) is int or value is None:
        return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else show(value)
    return text[:precision]


def _quoted(value: Value, precision: int | None) -> str | None:
    if not isinstance(value, str):
        return None
    return '"' + "".join(map(_escaped, value[:precision])) + '"'


def _escaped(character: str) -> str:
    """A character as Go quotes it; a surrogate stands for a byte that is not UTF-8."""
    if (escape := _ESCAPES.get(character)) is not None:
        return escape
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x80 or 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number & 0xFF:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _character(value: Value, _: int | None) -> str | None:
    number = _integer(value)
    if number is None:
        return None
    # As Go: what is not a character, such as half of a surrogate pair, becomes U+FFFD.
    is_character = 0 <= number < 0xD800 or 0xDFFF < number <= 0x10FFFF
    return chr(number) if is_character else "\ufffd"


def _boolean(value: Value, _: int | None) -> str | None:
    return show(value) if isinstance(value, bool) else None


_VERBS: Final[dict[str, Callable[[Value, int | None], str | None]]] = {
    "v": _shown,
    "d": _in_base("d"),
    "x": _in_base("x"),
    "X": _in_base("X"),
    "o": _in_base("o"),
    "b": _in_base("b"),
    "s": _string,
    "q": _quoted,
    "c": _character,
    "t": _boolean,
    "f": _real("f"),
    "F": _real("F"),
    "e": _real("e"),
    "g": _real("g"),
}
