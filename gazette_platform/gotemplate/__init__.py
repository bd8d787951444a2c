"""The part of Go's ``text/template`` that path postfixes of fragments are written in.

Supported: text, comments, trim markers, fields, methods with arguments, pipelines, parentheses, variables declared by
``:=``, ``if`` with ``else if`` and ``else``, comparisons (``eq ne lt le gt ge``), ``and or not``, and ``printf`` with
``%s %q %d %x %X %v``. Constants are strings, decimal integers, ``true``, ``false`` and ``nil``.

That is more than Gazette's documentation and tests use, which is fields, ``FirstAppendTime.Format`` and ``printf``. Brokers of
Gazette, written in Go, evaluate all of Go's language. In a cluster with them each broker must derive the same path,
so a template either means here what it means in Go, or is refused by name when the spec is applied: never is it
evaluated to something else. Refused are ``range``, ``with``, ``define``, ``template``, ``block``, assignment by ``=``,
and functions that compute on lists and bytes. ``printf`` refuses arguments that do not fit its verbs, for which
Go would put ``%!d(string=…)`` into a path.

Templates come from users, so their length, and that of values and output, is bounded, except where users run them for
themselves. Whatever goes wrong is a `ValidationError`.

`parser` parses a template, and `Template` executes it over data: Go's strings, booleans and integers are Python's; nil is
None. Structs are `GoObject`; integers that print as words (enums, months, durations) are `NamedInt`.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate.parser import (
    TEMPLATE_LENGTH_MAX,
    Action,
    Chain,
    Command,
    Constant,
    Dot,
    Function,
    If,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
    parse_template,
    template_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


__all__ = ["GoObject", "Method", "NamedInt", "Template"]


Value: TypeAlias = "str | int | bool | GoObject | None"

# A path is 512 bytes at most. Variables can double a text with each action: a value that is longer ends the
# execution. So does output, which a condition may throw away.
VALUE_LENGTH_MAX: Final = 4096
OUTPUT_LENGTH_MAX: Final = 64 * 1024

_PARAMETER_NAMES = {str: "string", int: "int"}


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its parameters, each str or int, and what computes it."""

    compute: Callable[..., Value]
    parameters: tuple[type, ...] = ()

    def call(self, name: str, arguments: Sequence[Value]) -> Value:
        """Call the method after a check of the arguments.

        Raises: ValidationError: their number or a type is wrong.
        """
        _require(name, arguments, len(self.parameters), len(self.parameters))
        for argument, wanted in zip(arguments, self.parameters, strict=True):
            if not isinstance(argument, wanted) or isinstance(argument, bool):
                raise ValidationError(
                    f"wrong type for value of {name}; "
                    f"expected {_PARAMETER_NAMES[wanted]}; got {type_name(argument)}"
                )
        return self.compute(*arguments)


class NamedInt(int):
    """An integer with a type name and a text, which its only method String returns, too."""

    text: str
    type_name: str

    def __new__(cls, number: int, text: str, type_name: str) -> Self:
        """Make `number` print as `text`."""
        made = super().__new__(cls, number)
        made.text = text
        made.type_name = type_name
        return made

    def find(self, name: str) -> Method:
        """A method. Raises: ValidationError: there is none."""
        if name != "String":
            raise ValidationError(f"can't evaluate field {name} in type {self.type_name}")
        return Method(lambda: self.text)


@dataclass(frozen=True, slots=True)
class GoObject:
    """A struct: fields and methods by name, those of embedded fields promoted."""

    type_name: str
    members: Mapping[str, Value | Method]
    embedded: tuple[str, ...] = ()
    """Names of the fields whose own members are promoted, as Go does: the least deep wins."""
    text: str | None = None
    """What it prints as; None if it cannot be printed as a whole."""

    def find(self, name: str) -> Value | Method:
        """A field or method.

        Raises: ValidationError: there is none, or several at the same depth.
        """
        level: list[GoObject] = [self]
        while level:
            holders = [holder for holder in level if name in holder.members]
            if len(holders) > 1:
                raise ValidationError(f"ambiguous field {name} in type {self.type_name}")
            if holders:
                return holders[0].members[name]
            level = [
                member
                for holder in level
                for member in (holder.members[inner] for inner in holder.embedded)
                if isinstance(member, GoObject)
            ]
        raise ValidationError(f"can't evaluate field {name} in type {self.type_name}")


def type_name(value: Value) -> str:
    """Name of a value's type, for errors."""
    match value:
        case NamedInt() | GoObject():
            return value.type_name
        case bool():  # an integer to Python
            return "bool"
        case int():
            return "int"
        case str():
            return "string"
        case _:
            return "nil"


def _show(value: Value) -> str:
    """The text of a value as Go's ``print`` gives it.

    Raises: ValidationError: a struct that has no text.
    """
    if isinstance(value, (NamedInt, GoObject)):
        if value.text is None:
            raise ValidationError(f"{value.type_name} is a struct, name one of its fields")
        return value.text
    if value is None or isinstance(value, bool):
        return {None: "<nil>", True: "true", False: "false"}[value]
    return str(value)


def _is_true(value: Value) -> bool:
    """Whether a condition holds: not zero, not empty, not nil. Structs always are."""
    return isinstance(value, GoObject) or bool(value)


# --------------------------------------------------------------------------------------- functions
def _require(name: str, arguments: Sequence[Value], least: int, most: int | None = None) -> None:
    count = len(arguments)
    if count < least or (most is not None and count > most):
        wanted = str(least) if least == most else f"at least {least}"
        raise ValidationError(f"wrong number of args for {name}: want {wanted} got {count}")


def _kind(value: Value) -> type:
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind
    raise ValidationError(f"invalid type for comparison ({type_name(value)})")


def _is_equal(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return left is right
    if _kind(left) is not _kind(right):
        raise ValidationError(
            f"incompatible types for comparison ({type_name(left)} and {type_name(right)})"
        )
    return left == right


def _is_less(name: str, left: Value, right: Value) -> bool:
    if _kind(left) is bool or _kind(right) is bool:
        raise ValidationError(f"invalid type for comparison by {name} (bool)")
    _is_equal(left, right)  # which refuses different types
    return left < right  # type: ignore[operator]


def _compare(name: str, arguments: Sequence[Value]) -> bool:
    """One of eq, ne, lt, le, gt and ge. Only eq takes more than two."""
    _require(name, arguments, 2, None if name == "eq" else 2)
    left, right, *more = arguments
    match name:
        case "eq":
            return any(_is_equal(left, other) for other in (right, *more))
        case "ne":
            return not _is_equal(left, right)
        case "lt" | "ge":
            return _is_less(name, left, right) is (name == "lt")
        case _:
            return _is_less(name, right, left) is (name == "gt")


_VERB: Final = re.compile(
    r"%(?P<flags>[-+ 0]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>.)?",
    re.DOTALL | re.ASCII,
)

# Wider than any path; a format from a spec must not make a broker build a gigabyte.
_WIDTH_MAX = 512

# Characters of a verb that an error shows.
_SHOWN_MAX = 40

_ESCAPES: Final = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
    "\\": r"\\", '"': r"\"",
}  # fmt: skip


def _printf(arguments: Sequence[Value]) -> str:
    """Format the arguments after the first by the first: %s, %q, %d, %x, %X and %v.

    Stricter than Go, which would put ``%!d(string=…)`` into a path.

    Raises: ValidationError: the format is not a string, an argument does not fit its verb or has
        none, or a verb is unknown.
    """
    if not arguments or not isinstance(arguments[0], str):
        raise ValidationError("printf needs a format string")
    rest = list(arguments[1:])
    used = 0

    def expand(match: re.Match[str]) -> str:
        nonlocal used
        shown = match[0][-_SHOWN_MAX:]
        if match["verb"] == "%":
            return "%"
        if match["verb"] is None or match["verb"] not in "sqdxXv":
            raise ValidationError(f"printf: unknown verb {shown!r} (known are %s %q %d %x %X %v)")
        if used >= len(rest):
            raise ValidationError(f"printf: no argument for {shown}")
        used += 1
        return _format(match, rest[used - 1])

    text = _VERB.sub(expand, arguments[0])
    if used != len(rest):
        raise ValidationError(f"printf: {len(rest) - used} arguments too many")
    return text


def _format(match: re.Match[str], value: Value) -> str:
    flags, verb = match["flags"], match["verb"]
    width = _bounded(match["width"])
    precision = None if match["precision"] is None else _bounded(match["precision"])
    is_number = isinstance(value, int) and not isinstance(value, bool) and verb != "s"
    if verb in "dxX" and isinstance(value, int) and not isinstance(value, bool):
        digits = format(abs(value), verb).rjust(precision or 0, "0")
        text = ("-" if value < 0 else "") + digits
    elif verb == "v" or (verb == "s" and isinstance(value, (str, NamedInt, GoObject))):
        text = _show(value)
        text = text[:precision] if isinstance(value, str) or verb == "s" else text
    elif verb == "q" and isinstance(value, str):
        text = '"' + "".join(map(_escaped, value[:precision])) + '"'
    else:
        shown = match[0][-_SHOWN_MAX:]
        raise ValidationError(f"printf: {shown} cannot format a {type_name(value)}")
    if is_number and text[:1] != "-":
        text = ("+" if "+" in flags else " " if " " in flags else "") + text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and is_number:
        sign = text[0] if text[:1] in ("-", "+", " ") else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


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


def _bounded(digits: str) -> int:
    """A width or precision. Python refuses to read thousands of digits."""
    if len(digits.lstrip("0")) > len(str(_WIDTH_MAX)) or int(digits or 0) > _WIDTH_MAX:
        raise ValidationError(f"printf: a verb is wider than {_WIDTH_MAX}")
    return int(digits or 0)


# --------------------------------------------------------------------------------------- execution

# What look-ups and the depth of the interpreter's stack raise. The rules of templates are checked where they are, but
# whatever a template makes Python say is an error of the template: it comes from a user, and is evaluated where
# no other error is expected.
_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except ValidationError:
        raise
    except _ERRORS as err:
        raise ValidationError(f"template: {type(err).__name__}: {err}") from err


class Template:
    """A parsed template. Immutable, so it may be executed at the same time by several threads."""

    def __init__(self, text: str) -> None:
        """Parse `text`.

        Raises: ValidationError: it is not a template that we support.
        """
        if len(text) > TEMPLATE_LENGTH_MAX:
            raise ValidationError(
                f"template: of {len(text)} characters is too long (at most {TEMPLATE_LENGTH_MAX})"
            )
        self.text = text
        with _template_errors():
            self._nodes = parse_template(text)

    def execute(self, data: GoObject | None, *, is_bounded: bool = True) -> str:
        """Return the text that the template makes of `data`.

        Args:
            is_bounded: whether to refuse long values and text; else only the data bounds them.

        Raises: ValidationError: a field is missing, types do not fit, or it makes too much.
        """
        execution = _Execution(data, is_bounded=is_bounded)
        with _template_errors():
            execution.run(self._nodes)
        return "".join(execution.output)


class _Execution:
    def __init__(self, data: GoObject | None, *, is_bounded: bool) -> None:
        self.output: list[str] = []
        self._value_max = VALUE_LENGTH_MAX if is_bounded else math.inf
        self._length_max = OUTPUT_LENGTH_MAX if is_bounded else math.inf
        self._length = 0
        self._data = data
        # Of the blocks that we are in, innermost last: the last of a name counts.
        self._variables: list[tuple[str, Value]] = [("$", data)]

    def run(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            match node:
                case Text():
                    self._write(node.text)
                case Action():
                    value = self._pipeline(node.pipeline)
                    if not node.pipeline.variable:
                        self._write(self._shown(value, node.pipeline))
                case If():
                    scope = len(self._variables)
                    is_met = _is_true(self._pipeline(node.pipeline))
                    self.run(node.body if is_met else node.otherwise)
                    del self._variables[scope:]

    def _shown(self, value: Value, pipeline: Pipeline) -> str:
        try:
            return _show(value)
        except ValidationError as err:
            raise _located(err, pipeline.commands[0].line) from None

    def _write(self, text: str) -> None:
        self._length += len(text)
        if self._length > self._length_max:
            raise ValidationError(f"template: makes more than {OUTPUT_LENGTH_MAX} characters")
        self.output.append(text)

    def _checked(self, value: Value) -> Value:
        if isinstance(value, str) and len(value) > self._value_max:
            raise ValidationError(f"template: computes more than {VALUE_LENGTH_MAX} characters")
        return value

    def _pipeline(self, pipeline: Pipeline) -> Value:
        piped: list[Value] = []
        for command in pipeline.commands:
            try:
                piped = [self._command(command, piped)]
            except ValidationError as err:
                raise _located(err, command.line) from None
        if pipeline.variable:
            self._variables.append((pipeline.variable, piped[0]))
        return piped[0]

    def _command(self, command: Command, piped: list[Value]) -> Value:
        """Evaluate a command; the value that is piped into it becomes its last argument."""
        first, rest = command.operands[0], command.operands[1:]
        match first:
            case Function():
                return self._call(first.name, rest, piped)
            case Chain():
                base = self._operand(first.base)
                for name in first.fields[:-1]:
                    base = self._member(base, name, [])
                arguments = [self._operand(operand) for operand in rest]
                return self._member(base, first.fields[-1], arguments + piped)
            case _:
                if rest or piped:
                    raise ValidationError("can't give argument to non-function")
                if isinstance(first, Constant) and first.value is None:
                    raise ValidationError("nil is not a command")
                return self._operand(first)

    def _operand(self, operand: Operand) -> Value:
        match operand:
            case Dot():
                return self._data
            case Constant():
                return operand.value
            case Variable():
                return next(v for name, v in reversed(self._variables) if name == operand.name)
            case Function():
                return self._call(operand.name, (), [])
            case Chain():
                value = self._operand(operand.base)
                for name in operand.fields:
                    value = self._member(value, name, [])
                return value
            case Pipeline():
                return self._pipeline(operand)

    def _call(self, name: str, operands: Sequence[Operand], piped: list[Value]) -> Value:
        if name in ("and", "or"):
            return self._and_or(name, operands, piped)
        arguments = [self._operand(operand) for operand in operands] + piped
        if name == "printf":
            return self._checked(_printf(arguments))
        if name == "not":
            _require(name, arguments, 1, 1)
            return not _is_true(arguments[0])
        return _compare(name, arguments)

    def _and_or(self, name: str, operands: Sequence[Operand], piped: list[Value]) -> Value:
        """`and` ends at the first false value, `or` at the first true one: the rest is not evaluated."""
        if not operands and not piped:
            raise ValidationError(f"wrong number of args for {name}: want at least 1 got 0")
        found: Value = None
        for operand in operands:
            found = self._operand(operand)
            if _is_true(found) is (name == "or"):
                return found
        return piped[0] if piped else found

    def _member(self, value: Value, name: str, arguments: list[Value]) -> Value:
        if value is None:
            raise ValidationError(f"nil pointer evaluating {name}")
        if not isinstance(value, (GoObject, NamedInt)):
            raise ValidationError(f"can't evaluate field {name} in type {type_name(value)}")
        member = value.find(name)
        if isinstance(member, Method):
            return self._checked(member.call(name, arguments))
        if arguments:
            raise ValidationError(f"{name} has arguments but cannot be invoked as function")
        return member


def _located(err: ValidationError, line: int) -> ValidationError:
    """The error at a line, unless it says already where it is."""
    return err if err.message.startswith("template: ") else template_error(line, err.message)
