"""From the text of a template to its tree.

Only what the package's docstring lists is parsed. Everything else of Go's language is refused by name, so that whoever
applies a spec learns it then, and not when a fragment is to be stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TEMPLATE_LENGTH_MAX: Final = 8192
"""Characters: 16 times those of the longest path. They are parsed within 50 ms."""

FUNCTIONS: Final = frozenset({"and", "eq", "ge", "gt", "le", "lt", "ne", "not", "or", "printf"})

_OTHER_KEYWORDS: Final = {"block", "break", "continue", "define", "range", "template", "with"}
_OTHER_FUNCTIONS: Final = {
    "call",
    "html",
    "index",
    "js",
    "len",
    "print",
    "println",
    "slice",
    "urlquery",
}
_SUPPORTED: Final = "supported are fields, methods, variables, if, " + ", ".join(sorted(FUNCTIONS))
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "nil": None}

# Deeper nesting than anybody writes, and less than what exhausts the interpreter's stack.
_DEPTH_MAX = 50

# In scope at a time; each use looks for its own among them.
_VARIABLES_MAX = 100

# Of an int64, which Go's constants are here.
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1

# Characters of a malformed token that an error shows.
_SHOWN_MAX = 40


# ------------------------------------------------------------------------------------------ the tree
@dataclass(frozen=True, slots=True)
class Dot:
    """The data of the template."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal; of ``nil``, the value is None."""

    value: str | int | bool | None


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name``; ``$`` alone is the template's data."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields or methods of a value, each of the one before."""

    base: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """An operand and its arguments."""

    operands: tuple[Operand, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands; the value of each is the last argument of the next."""

    commands: tuple[Command, ...]
    variable: str = ""
    """Declared by it; empty: none."""


Operand: TypeAlias = Dot | Constant | Variable | Function | Chain | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """Text as is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is printed unless it goes to a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class If:
    """A condition and its two bodies."""

    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]


Node: TypeAlias = Text | Action | If


# --------------------------------------------------------------------------------------- its tokens
_LEFT, _RIGHT = "{{", "}}"
_BLANKS = " \t\r\n"


class _Kind(Enum):
    TEXT = auto()
    ACTION_BEGIN = auto()
    ACTION_END = auto()
    FIELD = auto()
    VARIABLE = auto()
    IDENTIFIER = auto()
    NUMBER = auto()
    STRING = auto()
    DOT = auto()
    SYMBOL = auto()


@dataclass(frozen=True, slots=True)
class _Token:
    """A token. `text` is without the dot of a field and the quotes of a string, escapes undone."""

    kind: _Kind
    text: str
    line: int
    adjacent: bool = False
    """Whether nothing stands between this token and the one before."""


_TOKENS: Final = re.compile(
    r"(?P<NUMBER>[+-]?[0-9]+(?![\w.]))"
    r"|\.(?P<FIELD>[^\W\d]\w*)"
    r"|(?P<DOT>\.(?!\d))"
    r"|(?P<VARIABLE>\$\w*)"
    r"|(?P<IDENTIFIER>[^\W\d]\w*)"
    r'|(?P<STRING>"(?:[^"\\\n]|\\.)*"|`[^`]*`)'
    r"|(?P<SYMBOL>:=|[|(),=])"
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"'}


def template_error(line: int, message: str) -> ValidationError:
    """An error of a template at a line, counted from 1."""
    return ValidationError(f"template: line {line}: {message}")


def _tokenize(source: str) -> Iterator[_Token]:
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
            yield _Token(_Kind.TEXT, text, line)
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
) -> Generator[_Token, None, tuple[int, int, bool]]:
    """Yield the tokens of one action; return (position after it, line, whether it trims)."""
    yield _Token(_Kind.ACTION_BEGIN, "", line)
    adjacent = False
    while True:
        if position >= len(source):
            raise template_error(line, "unclosed action")
        if source.startswith(_RIGHT, position):
            yield _Token(_Kind.ACTION_END, "", line)
            return position + len(_RIGHT), line, False
        if source[position] in _BLANKS:
            if source.startswith("-" + _RIGHT, position + 1):
                yield _Token(_Kind.ACTION_END, "", line)
                return position + 1 + len("-" + _RIGHT), line, True
            line += source[position] == "\n"
            position, adjacent = position + 1, False
            continue
        match = _TOKENS.match(source, position)
        if match is None or match.lastgroup is None:
            raise template_error(line, _unexpected(source, position))
        kind = _Kind[match.lastgroup]
        text = match[match.lastgroup]
        if kind is _Kind.STRING:
            text = _unquote(text, line)
        yield _Token(kind, text, line, adjacent)
        line += match[0].count("\n")
        position, adjacent = match.end(), True


def _unexpected(source: str, position: int) -> str:
    character = source[position]
    if character in '"`':
        return "unterminated quoted string"
    if character in "+-.0123456789'":
        shown = re.compile(r"[-+.\w']*").match(source, position)
        return f"{shown[0][:_SHOWN_MAX] if shown else ''!r} is not supported: write numbers as decimal integers"
    return f"unexpected {character!r} in action"


def _unquote(text: str, line: int) -> str:
    if text[0] == "`":
        return text[1:-1]

    def undo(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise template_error(line, f"escape \\{match[1]} is not supported")
        return _ESCAPES[match[1]]

    return _ESCAPE.sub(undo, text[1:-1])


# -------------------------------------------------------------------------------------- the parser
def parse_template(source: str) -> tuple[Node, ...]:
    """Parse a template.

    Raises: ValidationError: not a template, or one that uses what we do not support.
    """
    parser = _Parser(list(_tokenize(source)))
    nodes, closer = parser.parse_list(())
    assert not closer
    return nodes


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        # Names in scope, innermost block last.
        self._variables: list[str] = ["$"]

    def parse_list(self, closers: tuple[str, ...]) -> tuple[tuple[Node, ...], str]:
        """Parse nodes up to one of the closing keywords, or to the end if there are none."""
        nodes: list[Node] = []
        while True:
            token = self._peek()
            if token is None:
                if closers:
                    raise self._error("unexpected end of template, a block is not closed by end")
                return tuple(nodes), ""
            self._next += 1
            if token.kind is _Kind.TEXT:
                nodes.append(Text(token.text))
                continue
            keyword = self._keyword()
            if keyword in ("end", "else"):
                if keyword not in closers:
                    raise self._error(f"unexpected {{{{{keyword}}}}}")
                self._next += 1
                return tuple(nodes), keyword
            if keyword == "if":
                self._next += 1
                nodes.append(self._parse_if())
            else:
                pipeline = self._parse_pipeline()
                self._expect_end()
                nodes.append(Action(pipeline))

    def _parse_if(self) -> If:
        self._enter()
        scope = len(self._variables)
        pipeline = self._parse_pipeline()
        self._expect_end()
        body_scope = len(self._variables)
        body, closer = self.parse_list(("end", "else"))
        del self._variables[body_scope:]
        otherwise: tuple[Node, ...] = ()
        if closer == "else" and self._keyword() == "if":
            # `else if` shares the `end` of its `if`.
            self._next += 1
            otherwise = (self._parse_if(),)
        else:
            if closer == "else":
                self._expect_end()
                otherwise, _ = self.parse_list(("end",))
            self._expect_end()
        del self._variables[scope:]
        self._depth -= 1
        return If(pipeline, body, otherwise)

    def _parse_pipeline(self) -> Pipeline:
        variable = self._parse_declaration()
        commands = [self._parse_command(first=True)]
        while self._take_symbol("|"):
            commands.append(self._parse_command(first=False))
        if variable:
            self._variables.append(variable)
            if len(self._variables) > _VARIABLES_MAX:
                raise self._error(f"more than {_VARIABLES_MAX} variables")
        return Pipeline(tuple(commands), variable)

    def _parse_declaration(self) -> str:
        """Take ``$x :=`` if it stands here. Returns: the name; empty: nothing is declared."""
        token = self._peek()
        if token is None or token.kind is not _Kind.VARIABLE:
            return ""
        self._next += 1
        if self._take_symbol(":="):
            return token.text
        if self._take_symbol("="):
            raise self._error("assignment by = is not supported: declare another variable by :=")
        self._next -= 1
        return ""

    def _parse_command(self, *, first: bool) -> Command:
        line = self._line()
        operands: list[Operand] = []
        while (operand := self._parse_operand()) is not None:
            operands.append(operand)
        if not operands:
            raise self._error("missing value for command")
        if not first and isinstance(operands[0], (Dot, Constant)):
            raise self._error("non executable command in pipeline")
        return Command(tuple(operands), line)

    def _parse_operand(self) -> Operand | None:
        token = self._peek()
        if token is None or token.kind is _Kind.ACTION_END:
            return None
        base: Operand
        fields: list[str] = []
        if token.kind is _Kind.SYMBOL:
            if token.text != "(":
                if token.text in ("|", ")"):
                    return None
                raise self._error(f"unexpected {token.text!r} in operand")
            base = self._parse_parentheses()
        else:
            self._next += 1
            base = self._operand_of(token)
            if token.kind is _Kind.FIELD:
                fields.append(token.text)
        while (field := self._peek()) is not None and field.kind is _Kind.FIELD and field.adjacent:
            if isinstance(base, (Constant, Function)):
                raise self._error(f"unexpected .{field.text[:_SHOWN_MAX]} after operand")
            fields.append(field.text)
            self._next += 1
        return Chain(base, tuple(fields)) if fields else base

    def _parse_parentheses(self) -> Pipeline:
        self._enter()
        self._next += 1
        pipeline = self._parse_pipeline()
        if pipeline.variable:
            raise self._error("a variable cannot be declared within parentheses")
        if not self._take_symbol(")"):
            raise self._error("unclosed left paren")
        self._depth -= 1
        return pipeline

    def _operand_of(self, token: _Token) -> Operand:
        match token.kind:
            case _Kind.FIELD | _Kind.DOT:
                return Dot()
            case _Kind.VARIABLE:
                if token.text not in self._variables:
                    raise self._error(f'undefined variable "{token.text[:_SHOWN_MAX]}"')
                return Variable(token.text)
            case _Kind.STRING:
                return Constant(token.text)
            case _Kind.NUMBER:
                return Constant(self._number(token.text))
            case _:
                return self._named(token.text)

    def _named(self, name: str) -> Operand:
        if name in _CONSTANTS:
            return Constant(_CONSTANTS[name])
        if name in _OTHER_KEYWORDS | _OTHER_FUNCTIONS:
            raise self._error(f"{name} is not supported ({_SUPPORTED})")
        if name not in FUNCTIONS:
            raise self._error(f'function "{name[:_SHOWN_MAX]}" not defined')
        return Function(name)

    def _number(self, text: str) -> int:
        digits = text.lstrip("+-")
        if len(digits) > 1 and digits[0] == "0":  # octal in Go
            raise self._error(
                f"{text[:_SHOWN_MAX]!r} is not supported: write numbers as decimal integers"
            )
        # Python refuses to read thousands of digits.
        if len(digits) > len(str(_INTEGER_MAX)) or not _INTEGER_MIN <= int(text) <= _INTEGER_MAX:
            raise self._error(f"number does not fit 64 bits: {text[:_SHOWN_MAX]}")
        return int(text)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX} levels")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _keyword(self) -> str | None:
        """The identifier that stands here, not taken."""
        token = self._peek()
        return token.text if token is not None and token.kind is _Kind.IDENTIFIER else None

    def _take_symbol(self, text: str) -> bool:
        token = self._peek()
        if token is None or token.kind is not _Kind.SYMBOL or token.text != text:
            return False
        self._next += 1
        return True

    def _expect_end(self) -> None:
        token = self._peek()
        if token is None or token.kind is not _Kind.ACTION_END:
            shown = "end of template" if token is None else token.text[:_SHOWN_MAX]
            raise self._error(f"unexpected {shown!r} in action")
        self._next += 1

    def _line(self) -> int:
        token = self._peek() or (self._tokens[-1] if self._tokens else None)
        return token.line if token is not None else 1

    def _error(self, message: str) -> ValidationError:
        return template_error(self._line(), message)
