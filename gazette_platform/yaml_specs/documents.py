"""YAML documents that people write: read strictly, and written byte for byte as Gazette's tools write them.

Reading: YAML 1.1, as Gazette's tools read it. A key that is unknown, or given twice, is an error with its line, so a
typo never silently changes a spec. Scalars are read as the field wants them: the number ``11`` is a fine label value.

Writing: PyYAML's emitter has the same ancestor as Go's, and chooses most forms alike. `dump_yaml` corrects the rest:
which strings are quoted because they could be read as another type, text of several lines, and how quoted text is
escaped and folded at 80 columns.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, Protocol, final

import yaml
from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

# Aliases can make a small text stand for a huge tree. No real document comes near.
_REPETITIONS_MAX = 20_000

# Characters of a wrong value that an error shows.
_SHOWN_MAX = 60

# Keys that merges (``<<``) bring in: those of merged mappings that merge others multiply.
_MERGED_KEYS_MAX = 500_000

# Of an integer, which the constructor of YAML's reads in the square of the time, if written to base 60.
_INTEGER_CHARACTERS_MAX = 1000
_INT_TAG = "tag:yaml.org,2002:int"

# A node of a tree of journals is three levels of a document.
_DEPTH_MAX = 256

# The C parser is ten times as fast, and reads the same language.
_Loader: Final[type[yaml.SafeLoader]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL_TAG = "tag:yaml.org,2002:null"
_MERGE_TAG = "tag:yaml.org,2002:merge"

_INTEGER: Final = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

# Spellings of booleans that YAML 1.1 knows.
_BOOLEANS: Final = {
    **dict.fromkeys(("y", "yes", "true", "on"), True),
    **dict.fromkeys(("n", "no", "false", "off"), False),
}


def read_yaml(document: str | bytes) -> StrictMapping:
    """Read one YAML document, which must be a mapping.

    Raises: ValidationError: not UTF-8, not YAML, several documents, or no mapping.
    """
    return StrictMapping(_composed(document), _Seen())


def check_yaml(document: str | bytes) -> None:
    """Refuse a document that would cost another parser more than its size, or its life.

    PyYAML's composer crashes the process at deep nesting, and merges make its memory grow
    exponentially.

    Raises: ValidationError: that, or what `read_yaml` raises.
    """
    seen = _Seen()
    done: set[int] = set()
    left = [_composed(document)]
    while left:
        node = left.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _fields_of(node, seen)
            for key, value in node.value:
                left += (key, value)
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
        elif node.tag == _INT_TAG and len(node.value) > _INTEGER_CHARACTERS_MAX:
            raise _line_error(node, f"a number of {len(node.value)} characters")


def _composed(document: str | bytes) -> yaml.Node:
    try:
        text = document if isinstance(document, str) else document.decode("utf-8")
        _check_depth(text)
        root = yaml.compose(text, Loader=_Loader)
    except UnicodeError as err:
        raise ValidationError(f"yaml: the document is not UTF-8 ({err})") from None
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        line = 0 if mark is None else mark.line + 1
        # Some of the problems are the second half of a sentence, whose first one is the context.
        halves = [err.context] if (err.problem or "but").startswith("but ") else []
        said = ", ".join(half for half in (*halves, err.problem) if half) or str(err.context)
        raise ValidationError(f"yaml: line {line}: {said}") from None
    except yaml.YAMLError as err:
        raise ValidationError(f"yaml: {err}") from None
    if root is None:
        raise ValidationError("yaml: the document is empty")
    return root


def _check_depth(text: str) -> None:
    """Refuse deep nesting, which exhausts the stack of the recursive composer."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth > _DEPTH_MAX:
                line = 0 if event.start_mark is None else event.start_mark.line + 1
                raise ValidationError(f"yaml: line {line}: nested deeper than {_DEPTH_MAX} levels")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


class _Seen:
    """Which mappings were read, to bound how often aliases and merges repeat them."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._repetitions = 0
        self._merged_keys = 0

    def visit(self, node: yaml.Node) -> None:
        # The document's root keeps every node alive, so ids stay unique.
        if id(node) in self._ids:
            self._repetitions += 1
            if self._repetitions > _REPETITIONS_MAX:
                raise _line_error(node, f"aliases repeat more than {_REPETITIONS_MAX} mappings")
        self._ids.add(id(node))

    def merge(self, node: yaml.Node, keys: int) -> None:
        self._merged_keys += 1 + keys
        if self._merged_keys > _MERGED_KEYS_MAX:
            raise _line_error(node, f"merges repeat more than {_MERGED_KEYS_MAX} keys")


def _line_error(node: yaml.Node, message: str) -> ValidationError:
    return ValidationError(f"yaml: line {node.start_mark.line + 1}: {message}")


class StrictMapping:
    """A mapping whose keys are taken one by one; `finish` refuses what is left."""

    def __init__(self, node: yaml.Node, seen: _Seen) -> None:
        seen.visit(node)
        self._node = node
        self._seen = seen
        self._fields = _fields_of(node, seen)
        self._known: list[str] = []

    def error(self, message: str) -> ValidationError:
        """An error at the mapping's line."""
        return _line_error(self._node, message)

    def text(self, key: str, default: str = "") -> str:
        """A scalar as it is written."""
        scalar = self._scalar(key)
        return default if scalar is None else str(scalar.value)

    def integer(self, key: str, default: int = 0) -> int:
        """An integer of 64 bits; a float that is whole will do."""
        scalar = self._scalar(key)
        return default if scalar is None else _integer_of(scalar, key)

    def boolean(self, key: str) -> bool | None:
        """A boolean, or None if the key is absent."""
        scalar = self._scalar(key)
        if scalar is None:
            return None
        value = _BOOLEANS.get(scalar.value.lower())
        if value is None:
            raise _line_error(scalar, f"{key} must be true or false, not {scalar.value!r}")
        return value

    def duration(self, key: str) -> int:
        """A duration such as ``1m30s``, or an integer of nanoseconds; zero if absent."""
        scalar = self._scalar(key)
        if scalar is None:
            return 0
        if _INTEGER.fullmatch(scalar.value):
            return _integer_of(scalar, key)
        try:
            return parse_duration(scalar.value)
        except ValidationError as err:
            raise _line_error(scalar, f"{key}: {err.message}") from None

    def choice(self, key: str, names: dict[str, int]) -> int:
        """A name of `names`, or one of any integers; zero if absent."""
        scalar = self._scalar(key)
        if scalar is None:
            return 0
        if scalar.value in names:
            return names[scalar.value]
        if _INTEGER.fullmatch(scalar.value):
            return _integer_of(scalar, key)
        raise _line_error(scalar, f"{key} {scalar.value!r} is none of {', '.join(names)}")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of scalars, as they are written; empty if absent."""
        texts = []
        for item in self._items(key):
            if not isinstance(item, yaml.ScalarNode):
                raise _line_error(item, f"{key} must be a list of strings")
            texts.append(str(item.value))
        return tuple(texts)

    def mapping(self, key: str) -> StrictMapping | None:
        """A nested mapping, or None if absent."""
        self._known.append(key)
        node = self._value(key)
        return None if node is None else StrictMapping(node, self._seen)

    def mappings(self, key: str) -> Iterator[StrictMapping]:
        """A list of nested mappings; empty if absent."""
        for item in self._items(key):
            yield StrictMapping(item, self._seen)

    def finish(self) -> None:
        """Refuse keys that were not asked for.

        Raises: ValidationError: names the key, its line and the keys that are known.
        """
        for key, (key_node, _) in self._fields.items():
            if key not in self._known:
                known = ", ".join(self._known)
                raise _line_error(key_node, f"unknown key {key!r} (known: {known})")

    def _value(self, key: str) -> yaml.Node | None:
        field = self._fields.get(key)
        if field is None or field[1].tag == _NULL_TAG:
            return None
        return field[1]

    def _scalar(self, key: str) -> yaml.ScalarNode | None:
        self._known.append(key)
        node = self._value(key)
        if node is not None and not isinstance(node, yaml.ScalarNode):
            raise _line_error(node, f"{key} must be a single value")
        return node

    def _items(self, key: str) -> list[yaml.Node]:
        self._known.append(key)
        node = self._value(key)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise _line_error(node, f"{key} must be a list")
        return list(node.value)


def _integer_of(scalar: yaml.ScalarNode, key: str) -> int:
    text = scalar.value
    value: int | None = None
    # Python refuses to read thousands of digits, and prefixes without any.
    with contextlib.suppress(ValueError):
        if _INTEGER.fullmatch(text):
            digits = text.replace("_", "").lstrip("+")
            octal = digits.lstrip("-").isdigit() and digits.lstrip("-").startswith("0")
            value = int(digits, 8 if octal else 0)
        elif _FLOAT.fullmatch(text) and float(text).is_integer():
            value = int(float(text))
    if value is None or not _INT64_MIN <= value <= _INT64_MAX:
        shown = repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"
        raise _line_error(scalar, f"{key} must be an integer of 64 bits, not {shown}")
    return value


def _fields_of(
    node: yaml.Node, seen: _Seen, depth: int = 0
) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The keys and values of a mapping, those of merged (``<<``) mappings where it has none."""
    if not isinstance(node, yaml.MappingNode):
        raise _line_error(node, "expected a mapping of keys to values")
    if depth > 10:
        raise _line_error(node, "mappings are merged into each other")
    fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == _MERGE_TAG:
            merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise _line_error(key, "a key must be a single word")
        if key.value in fields:
            raise _line_error(key, f"key {key.value!r} is given twice")
        fields[key.value] = (key, value)
    for source in merged:
        found = _fields_of(source, seen, depth + 1)
        seen.merge(source, len(found))
        for name, field in found.items():
            fields.setdefault(name, field)
    return fields


class Spec(Protocol):
    """Of a journal, or of a shard."""

    def validate(self) -> None:
        """Raises: ValidationError."""
        ...


def check_change(what: str, spec: Spec, *, delete: bool | None, revision: int) -> None:
    """Check one entry, once what it shares is pushed down.

    Args:
        what: it is of, as ``journal a/b``.
        revision: that it must be at.

    Raises: ValidationError: the spec is not valid, or a deletion lacks its revision.
    """
    if delete:
        if revision == 0:
            raise ValidationError(f"{what}: delete needs the revision to delete, or -1 for any")
        return
    try:
        spec.validate()
    except ValidationError as err:
        raise ValidationError(f"{what}: {err}") from None


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
