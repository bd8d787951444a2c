"""Tokens of a template: stretches of text, and what stands within actions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["Kind", "Token", "template_error", "tokenize"]

_LEFT, _RIGHT = "{{", "}}"
_BLANKS = " \t\r\n"


class Kind(Enum):
    """What a token is."""

    TEXT = auto()
    ACTION_BEGIN = auto()
    ACTION_END = auto()
    FIELD = auto()
    VARIABLE = auto()
    IDENTIFIER = auto()
    NUMBER = auto()
    STRING = auto()
    CHARACTER = auto()
    DOT = auto()
    SYMBOL = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `text` is without the dot of a field and the quotes of a string, escapes undone."""

    kind: Kind
    text: str
    line: int
    adjacent: bool = False
    """Whether nothing stands between this token and the one before."""


def template_error(line: int, message: str) -> ValidationError:
    """An error of a template at a line, counted from 1."""
    return ValidationError(f"template: line {line}: {message}")


_NUMBER = (
    r"[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)"
)
_TOKENS: Final = re.compile(
    rf"(?P<NUMBER>{_NUMBER}(?!\w))"
    r"|\.(?P<FIELD>[^\W\d]\w*)"
    r"|(?P<DOT>\.)"
    r"|(?P<VARIABLE>\$\w*)"
    r"|(?P<IDENTIFIER>[^\W\d]\w*)"
    r'|(?P<STRING>"(?:[^"\\\n]|\\.)*"|`[^`]*`)'
    r"|(?P<CHARACTER>'(?:[^'\\\n]|\\[^\n]+?)')"
    r"|(?P<SYMBOL>:=|[|(),=])"
)

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)")
_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
}


def tokenize(source: str) -> Iterator[Token]:
    """Cut a template into tokens, trim markers applied and comments dropped.

    Raises: ValidationError: an action, comment or string is not closed, or has a stray character.
    """
    position, line, trim = 0, 1, False
    while position < len(source):
        begin = source.find(_LEFT, position)
        text = source[position:] if begin == -1 else source[position:begin]
        line_after = line + text.count("\n")
        if trim:
            text = text.lstrip(_BLANKS)
        if begin != -1 and _trims_left(source, begin):
            text = text.rstrip(_BLANKS)
        if text:
            yield Token(Kind.TEXT, text, line)
        if begin == -1:
            return
        line = line_after
        position = begin + len(_LEFT) + (1 if _trims_left(source, begin) else 0)
        comment = _comment_end(source, position, line)
        if comment is not None:
            line += source.count("\n", position, comment[0])
            position, trim = comment
            continue
        position, line, trim = yield from _tokenize_action(source, position, line)


def _trims_left(source: str, begin: int) -> bool:
    after = begin + len(_LEFT)
    return source.startswith("-", after) and source[after + 1 : after + 2] in tuple(_BLANKS)


def _comment_end(source: str, position: int, line: int) -> tuple[int, bool] | None:
    """Where the comment at `position` ends and whether it trims, or None if there is none."""
    begin = position
    while source[begin : begin + 1] in tuple(_BLANKS) and source[begin - 1] in "-" + _BLANKS:
        begin += 1
    if not source.startswith("/*", begin):
        return None
    end = source.find("*/", begin)
    if end == -1:
        raise template_error(line, "unclosed comment")
    end += len("*/")
    if source.startswith(_RIGHT, end):
        return end + len(_RIGHT), False
    closing = re.compile(r"[ \t\r\n]+-\}\}").match(source, end)
    if closing is None:
        raise template_error(line, "comment ends before closing delimiter")
    return closing.end(), True


def _tokenize_action(
    source: str, position: int, line: int
) -> Generator[Token, None, tuple[int, int, bool]]:
    """Yield the tokens of one action; return (position after it, line, whether it trims)."""
    yield Token(Kind.ACTION_BEGIN, "", line)
    adjacent = False
    while True:
        if position >= len(source):
            raise template_error(line, "unclosed action")
        if source.startswith(_RIGHT, position):
            yield Token(Kind.ACTION_END, "", line)
            return position + len(_RIGHT), line, False
        if source[position] in _BLANKS:
            if source.startswith("-" + _RIGHT, position + 1):
                yield Token(Kind.ACTION_END, "", line)
                return position + 1 + len("-" + _RIGHT), line, True
            line += source[position] == "\n"
            position, adjacent = position + 1, False
            continue
        match = _TOKENS.match(source, position)
        if match is None or match.lastgroup is None:
            raise template_error(line, _unexpected(source, position))
        kind = Kind[match.lastgroup]
        text = match[match.lastgroup]
        if kind in (Kind.STRING, Kind.CHARACTER):
            text = _unquote(text, line)
        yield Token(kind, text, line, adjacent)
        line += match[0].count("\n")
        position, adjacent = match.end(), True


def _unexpected(source: str, position: int) -> str:
    character = source[position]
    if character in "\"`'":
        return "unterminated quoted string or character constant"
    return f"unexpected {character!r} in action"


def _unquote(text: str, line: int) -> str:
    if text[0] == "`":
        return text[1:-1]

    def undo(match: re.Match[str]) -> str:
        code = match[1]
        if code in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[code]
        if len(code) == 1:
            raise template_error(line, f"unknown escape \\{code}")
        base = 8 if code.isdigit() and len(code) == len("777") else 16
        try:
            character = chr(int(code if base == 8 else code[1:], base))
            character.encode()  # which half of a surrogate pair has no form in
        except (ValueError, OverflowError):
            raise template_error(line, f"escape \\{code} is not a character") from None
        return character

    return _ESCAPE.sub(undo, text[1:-1])
