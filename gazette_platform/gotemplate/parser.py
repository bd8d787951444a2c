"""From tokens to the tree of a template."""

from __future__ import annotations

import math
from typing import Final

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate.functions import FUNCTIONS
from gazette_platform.gotemplate.lexer import Kind, Token, template_error, tokenize
from gazette_platform.gotemplate.nodes import (
    Action,
    Branch,
    Chain,
    Command,
    Constant,
    Dot,
    Function,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)

__all__ = ["TEMPLATE_LENGTH_MAX", "parse_template"]

TEMPLATE_LENGTH_MAX: Final = 8192
"""Characters: 16 times those of the longest path. They are parsed within 50 ms."""

_BRANCHES: Final = ("if", "with", "range")
_UNSUPPORTED: Final = ("block", "break", "continue", "define", "template")
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "nil": None}

# Deeper nesting than anybody writes, and less than what exhausts the interpreter's stack.
_DEPTH_MAX = 50

# In scope at a time; each use looks for its own among them.
_VARIABLES_MAX = 100

# Of an int64 and of a uint64: Go's constants may be either.
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1

# Characters of a malformed token that an error shows.
_SHOWN_MAX = 40


def parse_template(source: str) -> tuple[Node, ...]:
    """Parse a template.

    Raises: ValidationError: not a template, or one that uses what we do not support.
    """
    parser = _Parser(list(tokenize(source)))
    nodes, closer = parser.parse_list(())
    assert not closer
    return nodes


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
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
            if token.kind is Kind.TEXT:
                nodes.append(Text(token.text))
                continue
            keyword = self._keyword()
            if keyword in ("end", "else"):
                if keyword not in closers:
                    raise self._error(f"unexpected {{{{{keyword}}}}}")
                self._next += 1
                return tuple(nodes), keyword
            if keyword in _UNSUPPORTED:
                raise self._error(f"{{{{{keyword}}}}} is not supported in path postfix templates")
            if keyword in _BRANCHES:
                self._next += 1
                nodes.append(self._parse_branch(keyword))
            else:
                pipeline = self._parse_pipeline()
                self._expect_end()
                nodes.append(Action(pipeline))

    def _parse_branch(self, keyword: str) -> Branch:
        self._enter()
        scope = len(self._variables)
        pipeline = self._parse_pipeline(ranges=keyword == "range")
        self._expect_end()
        body_scope = len(self._variables)
        body, closer = self.parse_list(("end", "else"))
        del self._variables[body_scope:]
        otherwise: tuple[Node, ...] = ()
        if closer == "else":
            nested = self._keyword()
            if nested is not None:
                if nested != keyword or keyword == "range":
                    raise self._error(f"unexpected {nested} after else")
                # `else if` shares the `end` of its `if`.
                self._next += 1
                otherwise = (self._parse_branch(keyword),)
                del self._variables[scope:]
                self._depth -= 1
                return Branch(keyword, pipeline, body, otherwise)
            self._expect_end()
            otherwise, _ = self.parse_list(("end",))
        self._expect_end()
        del self._variables[scope:]
        self._depth -= 1
        return Branch(keyword, pipeline, body, otherwise)

    def _parse_pipeline(self, *, ranges: bool = False) -> Pipeline:
        variables, declares = self._parse_declaration(ranges=ranges)
        commands = [self._parse_command(first=True)]
        while self._take_symbol("|"):
            commands.append(self._parse_command(first=False))
        if declares:
            self._variables.extend(variables)
            if len(self._variables) > _VARIABLES_MAX:
                raise self._error(f"more than {_VARIABLES_MAX} variables")
        return Pipeline(tuple(commands), variables, declares)

    def _parse_declaration(self, *, ranges: bool) -> tuple[tuple[str, ...], bool]:
        """Take ``$x :=``, ``$x =`` or, of a range, ``$i, $x :=``, if one stands here."""
        start = self._next
        names: list[str] = []
        while (token := self._peek()) is not None and token.kind is Kind.VARIABLE:
            names.append(token.text)
            self._next += 1
            if self._take_symbol(":="):
                self._check_declared_names(names, ranges=ranges)
                return tuple(names), True
            if self._take_symbol("="):
                self._check_declared_names(names, ranges=ranges)
                for name in names:
                    self._require_variable(name)
                return tuple(names), False
            if not self._take_symbol(","):
                break
        self._next = start
        return (), False

    def _check_declared_names(self, names: list[str], *, ranges: bool) -> None:
        if len(names) > (2 if ranges else 1):
            raise self._error("too many declarations")

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
        if token is None or token.kind is Kind.ACTION_END:
            return None
        base: Operand
        fields: list[str] = []
        if token.kind is Kind.SYMBOL:
            if token.text != "(":
                if token.text in ("|", ")"):
                    return None
                raise self._error(f"unexpected {token.text!r} in operand")
            base = self._parse_parentheses()
        else:
            self._next += 1
            base = self._operand_of(token)
            if token.kind is Kind.FIELD:
                fields.append(token.text)
        while (field := self._peek()) is not None and field.kind is Kind.FIELD and field.adjacent:
            if isinstance(base, (Constant, Function)):
                raise self._error(f"unexpected .{field.text[:_SHOWN_MAX]} after operand")
            fields.append(field.text)
            self._next += 1
        return Chain(base, tuple(fields)) if fields else base

    def _parse_parentheses(self) -> Pipeline:
        self._enter()
        self._next += 1
        pipeline = self._parse_pipeline()
        if pipeline.variables:
            raise self._error("a variable cannot be declared within parentheses")
        if not self._take_symbol(")"):
            raise self._error("unclosed left paren")
        self._depth -= 1
        return pipeline

    def _operand_of(self, token: Token) -> Operand:
        match token.kind:
            case Kind.FIELD | Kind.DOT:
                return Dot()
            case Kind.VARIABLE:
                self._require_variable(token.text)
                return Variable(token.text)
            case Kind.STRING:
                return Constant(token.text)
            case Kind.CHARACTER:
                if len(token.text) != 1:
                    raise self._error("malformed character constant")
                return Constant(ord(token.text))
            case Kind.NUMBER:
                return Constant(self._number(token))
            case _:
                return self._named(token)

    def _named(self, token: Token) -> Operand:
        if token.text in _CONSTANTS:
            return Constant(_CONSTANTS[token.text])
        if token.text not in FUNCTIONS:
            raise self._error(f'function "{token.text[:_SHOWN_MAX]}" not defined')
        return Function(token.text)

    def _number(self, token: Token) -> int | float:
        text = token.text
        try:
            if any(c in text for c in ".eE") and not text.lstrip("+-").lower().startswith("0x"):
                real = float(text)
                if math.isinf(real):
                    raise self._error(f"number is too large: {text[:_SHOWN_MAX]}")
                return real
            unsigned = text.lstrip("+-")
            # A leading zero is octal in Go; Python wants 0o.
            octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned.isdigit()
            number = int(text, 8 if octal else 0)
        except ValidationError:
            raise
        except ValueError:
            raise self._error(f"bad number syntax: {text[:_SHOWN_MAX]!r}") from None
        if not _INTEGER_MIN <= number <= _INTEGER_MAX:
            raise self._error(f"number does not fit 64 bits: {text[:_SHOWN_MAX]}")
        return number

    def _require_variable(self, name: str) -> None:
        if name not in self._variables:
            raise self._error(f'undefined variable "{name[:_SHOWN_MAX]}"')

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX} levels")

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _keyword(self) -> str | None:
        """The identifier that stands here, not taken."""
        token = self._peek()
        return token.text if token is not None and token.kind is Kind.IDENTIFIER else None

    def _take_symbol(self, text: str) -> bool:
        token = self._peek()
        if token is None or token.kind is not Kind.SYMBOL or token.text != text:
            return False
        self._next += 1
        return True

    def _expect_end(self) -> None:
        token = self._peek()
        if token is None or token.kind is not Kind.ACTION_END:
            shown = "end of template" if token is None else token.text[:_SHOWN_MAX]
            raise self._error(f"unexpected {shown!r} in action")
        self._next += 1

    def _line(self) -> int:
        token = self._peek() or (self._tokens[-1] if self._tokens else None)
        return token.line if token is not None else 1

    def _error(self, message: str) -> ValidationError:
        return template_error(self._line(), message)
