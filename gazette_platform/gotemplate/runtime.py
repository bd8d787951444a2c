"""Execution of a parsed template over data."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate.functions import FUNCTIONS, LAZY_FUNCTIONS
from gazette_platform.gotemplate.lexer import template_error
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
from gazette_platform.gotemplate.parser import TEMPLATE_LENGTH_MAX, parse_template
from gazette_platform.gotemplate.values import (
    GoObject,
    Method,
    NamedInt,
    Value,
    is_true,
    show,
    type_name,
    weight,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Template"]

# A path is 512 bytes at most; text that is thrown away by a condition may be longer.
OUTPUT_LENGTH_MAX: Final = 64 * 1024

# Nested ranges multiply; this ends them within 50 ms. An operand is a step, and so are so many
# characters that a function is given or makes.
STEPS_MAX: Final = 20_000
_CHARACTERS_PER_STEP: Final = 8

# What arithmetic, look-ups and the depth of the interpreter's stack raise. The rules of templates
# are checked where they are, but whatever a template makes Python say is an error of the template:
# it comes from a user, and is evaluated where no other error is expected.
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

    def execute(self, data: GoObject, *, is_bounded: bool = True) -> str:
        """Return the text that the template makes of `data`.

        Args:
            is_bounded: whether to end what takes many steps or makes long text; else only the data does.

        Raises: ValidationError: a field is missing, types do not fit, or it does not end.
        """
        execution = _Execution(data, is_bounded=is_bounded)
        with _template_errors():
            execution.run(self._nodes, data)
        return "".join(execution.output)


class _Execution:
    def __init__(self, data: GoObject, *, is_bounded: bool) -> None:
        self.output: list[str] = []
        self._length_max = OUTPUT_LENGTH_MAX if is_bounded else math.inf
        self._steps_max = STEPS_MAX if is_bounded else math.inf
        self._length = 0
        self._steps = 0
        self._variables: list[tuple[str, Value]] = [("$", data)]

    def run(self, nodes: Sequence[Node], dot: Value) -> None:
        for node in nodes:
            self._step()
            match node:
                case Text():
                    self._write(node.text)
                case Action() | Branch():
                    try:
                        self._act(node, dot)
                    except ValidationError as err:
                        raise _located(err, node.pipeline.commands[0].line) from None

    def _act(self, node: Action | Branch, dot: Value) -> None:
        if isinstance(node, Branch):
            self._branch(node, dot)
            return
        value = self._pipeline(node.pipeline, dot)
        if not node.pipeline.variables:
            self._pay(value)
            self._write(show(value))

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > self._steps_max:
            raise ValidationError(f"template: takes more than {STEPS_MAX} steps")

    def _pay(self, *values: Value) -> None:
        """Count what it takes to handle values, and refuse large ones."""
        total = sum(map(weight, values))
        if total > self._length_max:
            raise ValidationError(f"template: computes more than {OUTPUT_LENGTH_MAX} characters")
        self._step(total // _CHARACTERS_PER_STEP)

    def _write(self, text: str) -> None:
        self._length += len(text)
        if self._length > self._length_max:
            raise ValidationError(f"template: makes more than {OUTPUT_LENGTH_MAX} characters")
        self.output.append(text)

    def _branch(self, branch: Branch, dot: Value) -> None:
        scope = len(self._variables)
        value = self._pipeline(branch.pipeline, dot)
        if branch.keyword == "range":
            self._range(branch, value, dot)
        elif is_true(value):
            self.run(branch.body, value if branch.keyword == "with" else dot)
        else:
            self.run(branch.otherwise, dot)
        del self._variables[scope:]

    def _range(self, branch: Branch, value: Value, dot: Value) -> None:
        if value is None or isinstance(value, (str, int, float, GoObject)):
            raise ValidationError(f"range can't iterate over {type_name(value)}")
        if not value:
            self.run(branch.otherwise, dot)
            return
        names = branch.pipeline.variables
        for index, item in enumerate(value):
            self._step()
            scope = len(self._variables)
            bound: tuple[Value, ...] = (item,) if len(names) == 1 else (index, item)
            for name, part in zip(names, bound, strict=False):
                self._bind(name, part, declares=branch.pipeline.declares)
            self.run(branch.body, item)
            del self._variables[scope:]

    def _bind(self, name: str, value: Value, *, declares: bool) -> None:
        if declares:
            self._variables.append((name, value))
            return
        for index in range(len(self._variables) - 1, -1, -1):
            if self._variables[index][0] == name:
                self._variables[index] = (name, value)
                return

    def _pipeline(self, pipeline: Pipeline, dot: Value) -> Value:
        values: list[Value] = []
        for command in pipeline.commands:
            try:
                values = [self._command(command, dot, values)]
            except ValidationError as err:
                raise _located(err, command.line) from None
        if len(pipeline.variables) == 1:
            self._bind(pipeline.variables[0], values[0], declares=pipeline.declares)
        return values[0]

    def _command(self, command: Command, dot: Value, piped: list[Value]) -> Value:
        """Evaluate a command; the value that is piped into it becomes its last argument."""
        first, rest = command.operands[0], command.operands[1:]
        match first:
            case Function():
                return self._call(first.name, rest, dot, piped)
            case Chain():
                base = self._operand(first.base, dot)
                for name in first.fields[:-1]:
                    base = self._member(base, name, [])
                arguments = [self._operand(operand, dot) for operand in rest]
                return self._member(base, first.fields[-1], arguments + piped)
            case _:
                if rest or piped:
                    raise ValidationError("can't give argument to non-function")
                if isinstance(first, Constant) and first.value is None:
                    raise ValidationError("nil is not a command")
                return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: Value) -> Value:
        self._step()
        match operand:
            case Dot():
                return dot
            case Constant():
                return operand.value
            case Variable():
                return self._variable(operand.name)
            case Function():
                return self._call(operand.name, (), dot, [])
            case Chain():
                value = self._operand(operand.base, dot)
                for name in operand.fields:
                    value = self._member(value, name, [])
                return value
            case Pipeline():
                return self._pipeline(operand, dot)

    def _variable(self, name: str) -> Value:
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise ValidationError(f"undefined variable: {name}")

    def _call(
        self, name: str, operands: Sequence[Operand], dot: Value, piped: list[Value]
    ) -> Value:
        if name not in LAZY_FUNCTIONS:
            arguments = [self._operand(operand, dot) for operand in operands] + piped
            self._pay(*arguments)
            value = FUNCTIONS[name](arguments)
            self._pay(value)
            return value
        if not operands and not piped:
            raise ValidationError(f"wrong number of args for {name}: want at least 1 got 0")
        # `and` ends at the first false value, `or` at the first true one.
        found: Value = None
        for operand in operands:
            found = self._operand(operand, dot)
            if is_true(found) is (name == "or"):
                return found
        return piped[0] if piped else found

    def _member(self, value: Value, name: str, arguments: list[Value]) -> Value:
        self._step()
        if value is None:
            raise ValidationError(f"nil pointer evaluating {name}")
        if not isinstance(value, (GoObject, NamedInt)):
            raise ValidationError(f"can't evaluate field {name} in type {type_name(value)}")
        member = value.find(name)
        if isinstance(member, Method):
            self._pay(*arguments)
            return member.call(name, arguments)
        if arguments:
            raise ValidationError(f"{name} has arguments but cannot be invoked as function")
        return member


def _located(err: ValidationError, line: int) -> ValidationError:
    """The error at a line, unless it says already where it is."""
    return err if err.message.startswith("template: ") else template_error(line, err.message)
