"""JSON values of any layout become lines, however content is cut into pieces."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform.errors import DataError
from gazette_platform.message import framing
from gazette_platform.message.framing import JsonValues

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["[", "]", "{", "}", ",", '"', "\\", "\n", "\u2028", "é", "😀"])
)
VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=8,
)
# An array at the top level is its elements.
TOP = VALUES.filter(lambda value: not isinstance(value, list))
LAYOUTS = st.fixed_dictionaries(
    {
        "indent": st.none() | st.integers(0, 3) | st.just("\t"),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" , ", "  :  ")]),
    }
)


def cut(content, size):
    values = JsonValues()
    found = [
        line for at in range(0, len(content), size) for line in values.feed(content[at : at + size])
    ]
    found += values.finish()
    assert values.count == len(found)
    return found


def parsed(lines):
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    return [json.loads(line) for line in lines]


@settings(max_examples=150)
@given(st.lists(VALUES, max_size=6), LAYOUTS, st.integers(1, 40))
def test_elements_of_an_array_are_lines(values, layout, size):
    assert parsed(cut(json.dumps(values, **layout).encode(), size)) == values


@pytest.mark.parametrize("content", [b"-0.0", b"1e5", b"-2.5E-3", b"12 0.5"])
def test_number_that_is_cut_anywhere_is_one_number(content):
    expected = [float(each) for each in content.split()]
    for size in range(1, len(content)):
        assert parsed(cut(content, size)) == expected, size


@settings(max_examples=150)
@given(
    st.lists(TOP, max_size=6), LAYOUTS, st.sampled_from(["\n", " ", "\r\n\r\n"]), st.integers(1, 40)
)
def test_consecutive_values_are_lines(values, layout, joint, size):
    content = joint.join(json.dumps(value, **layout) for value in values).encode()
    assert parsed(cut(content, size)) == values


def test_many_numbers_take_linear_time():
    """Each number must not cost a look at all content after it."""

    class Text(str):
        __slots__ = ()
        copied = 0

        def __add__(self, other):
            return Text(str.__add__(self, other))

        def __getitem__(self, key):
            found = str.__getitem__(self, key)
            Text.copied += len(found)
            return found

    values = JsonValues()
    values._text = Text()
    content = json.dumps(list(range(10_000))).encode()
    assert len(values.feed(content)) == 10_000
    assert Text.copied < 10 * len(content)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'[1, {"a": }]', "value 2 is not JSON: Expecting value"),
        (b"[1, ]", "value 2 is not JSON"),
        (b"[1 2]", "value 2 is not JSON: Expecting ',' or ']'"),
        (b"[1, 2", "unexpected EOF: the array has no ] after value 2"),
        (b"[,1]", "value 1 is not JSON"),
        (b'{"a": 1', "unexpected EOF: content ends in value 1"),
        (b'"open', "unexpected EOF: content ends in value 1"),
        (b"tru", "value 1 is not JSON"),
        (b"]", "value 1 is not JSON"),
        (b'{"a": Infinity}', "it has Infinity"),
        (b'{"a": "\x01"}', "Invalid control character"),
        (b'"\xff"', "value 1 is not JSON in UTF-8"),
        (b"[" * 3, "unexpected EOF"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ],
)
def test_invalid_json_is_an_error(content, error, size):
    with pytest.raises(DataError, match=error.replace("[", r"\[")):
        cut(content, size)


def test_value_that_is_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(framing, "VALUE_CHARACTERS_MAX", 1000)
    values = JsonValues()
    values.feed(b'["')

    def feed():
        for _ in range(2000):
            values.feed(b"xxxxx")

    with pytest.raises(DataError, match="value 1 is longer than"):
        feed()
