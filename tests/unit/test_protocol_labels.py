"""Labels, sets, selectors: validation texts, algebra, matching and parsing (V1-V4)."""

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import Label, LabelSelector, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb


def _labels(*pairs: tuple[str, str]) -> LabelSet:
    return LabelSet(tuple(Label(*pair) for pair in pairs))


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (Label("a"), "Name: invalid length (1; expected 2 <= length <= 64)"),
        (Label("a" * 65), "Name: invalid length (65; expected 2 <= length <= 64)"),
        (Label("日" * 22), "Name: invalid length (66; expected 2 <= length <= 64)"),
        (Label("bad label"), "Name: not a valid token (bad label)"),
        (Label("name:prefix"), "Name: not a valid token (name:prefix)"),
        (Label("aa=bb"), "Name: not a valid token (aa=bb)"),
        (Label("aa", "bad value"), "Value: not a valid token (bad value)"),
        (Label("aa", "v" * 1025), "Value: invalid length (1025; expected 0 <= length <= 1024)"),
        (Label("aa", "v", prefix=True), "prefix is only allowed within a LabelSelector (aa)"),
    ],
)
def test_v1_label_that_breaks_a_rule(label, text):
    with pytest.raises(ValidationError) as raised:
        label.validate()
    assert str(raised.value) == text


@pytest.mark.parametrize(
    "label",
    [
        Label("aa"),
        Label("a" * 64, "v" * 1024),
        Label("日½²_-+/.", "日½²_-+/.=%"),
        Label("aa", "//../not//clean/"),
    ],
)
def test_v1_label_that_is_fine(label):
    label.validate()


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (
            _labels(("a", "")),
            "Labels[0].Name: invalid length (1; expected 2 <= length <= 64)",
        ),
        (
            _labels(("bb", ""), ("aa", "")),
            "Labels not in unique, sorted order (index 1; label Name aa <= bb)",
        ),
        (
            _labels(("aa", "2"), ("aa", "1")),
            "Labels not in unique, sorted order (index 1; label aa Value 1 <= 2)",
        ),
        (
            _labels(("aa", "1"), ("aa", "1")),
            "Labels not in unique, sorted order (index 1; label aa Value 1 <= 1)",
        ),
        (
            _labels(("aa", ""), ("aa", "1")),
            "label has empty & non-empty values (index 1; label aa value 1)",
        ),
        (
            LabelSet((Label("aa"), Label("bb", "x", prefix=True))),
            "Labels[1]: prefix is only allowed within a LabelSelector (bb)",
        ),
    ],
)
def test_v1_set_that_breaks_a_rule(labels, text):
    with pytest.raises(ValidationError) as raised:
        labels.validate()
    assert str(raised.value) == text


def test_v1_selector_errors_name_the_set():
    bad = _labels(("a", ""))
    with pytest.raises(ValidationError, match=r"^Include\.Labels\[0\]\.Name: invalid length"):
        LabelSelector(include=bad).validate()
    with pytest.raises(ValidationError, match=r"^Exclude\.Labels\[0\]\.Name: invalid length"):
        LabelSelector(exclude=bad).validate()
    LabelSelector(include=LabelSet((Label("aa", "x", prefix=True),))).validate()


def test_v2_of_sorts_and_drops_repetitions():
    made = LabelSet.of(("bb", "2"), {"cc/d": "x"}, ("bb", "1"), ("bb", "2"), aa="")
    assert made == _labels(("aa", ""), ("bb", "1"), ("bb", "2"), ("cc/d", "x"))
    made.validate()
    assert str(made) == "aa=,bb=1,bb=2,cc/d=x"
    assert len(made) == 4
    assert made
    assert not LabelSet()


def test_v2_values_of_a_name():
    labels = _labels(("aa", ""), ("bb", "1"), ("bb", "2"))
    assert labels.values_of("bb") == ("1", "2")
    assert labels.values_of("aa") == ("",)
    assert labels.values_of("zz") == ()
    assert labels.value_of("bb") == "1"
    assert labels.value_of("zz") == ""
    assert labels.names() == ("aa", "bb")


def test_v2_set_add_and_remove():
    labels = _labels(("bb", "1"), ("bb", "2"))
    assert labels.with_value("bb", "3") == _labels(("bb", "3"))
    assert labels.with_value("aa", "0") == _labels(("aa", "0"), ("bb", "1"), ("bb", "2"))
    assert labels.with_added("bb", "0") == _labels(("bb", "0"), ("bb", "1"), ("bb", "2"))
    assert labels.with_added("bb", "1") == labels
    assert labels.without("bb") == LabelSet()
    assert labels.without("aa") == labels


def test_v2_adding_by_prefix_wins_over_the_exact_value():
    exact = LabelSet().with_added("aa", "x")
    assert exact.with_added("aa", "x", prefix=True) == LabelSet((Label("aa", "x", prefix=True),))


def test_v2_algebra_goes_by_name():
    left = _labels(("aa", "1"), ("aa", "2"), ("bb", ""), ("cc", "3"))
    right = _labels(("aa", "1"), ("cc", "3"), ("dd", "4"))
    assert left.union(right) == _labels(("aa", "1"), ("bb", ""), ("cc", "3"), ("dd", "4"))
    assert left.intersect(right) == _labels(("cc", "3"))
    assert left.subtract(right) == _labels(("aa", "1"), ("aa", "2"), ("bb", ""))


def test_registers_of_an_append_sequence():
    """The arithmetic of scenario AA2: subtract first, then union."""
    registers = LabelSet.of(AA="11", BB="22")
    registers = registers.subtract(LabelSet.of(AA="11", BB="XYZ")).union(LabelSet.of(CC="33"))
    assert registers == LabelSet.of(BB="22", CC="33")
    registers = registers.subtract(LabelSet.of(CC="33")).union(LabelSet.of(AA="44"))
    assert registers == LabelSet.of(AA="44", BB="22")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("aa", True),
        ("zz", False),
        ("aa = 1", True),
        ("aa = 2", True),
        ("aa = 3", False),
        ("aa in (3, 2)", True),
        ("aa in (3, 4)", False),
        ("aa, bb", True),
        ("aa, zz", False),
        ("!zz", True),
        ("!aa", False),
        ("aa != 3", True),
        ("aa != 2", False),
        ("aa not in (3, 4)", True),
        ("aa not in (3, 1)", False),
        ("bb", True),
        ("bb = x", False),
        ("bb != x", True),
        ("path:prefix = a/b", True),
        ("path:prefix = b/", False),
        ("path = a/b", False),
        ("path:prefix in (x, a/)", True),
        ("path:prefix", True),
        ("path:prefix != a/", False),
        ("path:prefix != b/", True),
        ("aa, path:prefix != a/b/c/d", True),
    ],
)
def test_v3_matching(text, expected):
    labels = _labels(("aa", "1"), ("aa", "2"), ("bb", ""), ("path", "a/b/c"))
    assert LabelSelector.parse(text).matches(labels) is expected


def test_v3_prefix_and_exact_values_of_one_name_are_alternatives():
    selector = LabelSelector.parse("name:prefix=foo/, name=bar")
    assert selector.matches(LabelSet.of(name="bar"))
    assert selector.matches(LabelSet.of(name="foo/x"))
    assert not selector.matches(LabelSet.of(name="barn"))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("aa=bb", "aa=bb"),
        ("aa == bb", "aa=bb"),
        (" aa = bb , cc != dd ,", "aa=bb,cc!=dd"),
        ("aa in ( x ,y, z)", "aa in (x,y,z)"),
        ("aa in (z)", "aa=z"),
        ("aa notin (y, x)", "aa notin (x,y)"),
        ("aa not in (y)", "aa!=y"),
        ("!aa", "!aa"),
        ("aa!=", "!aa"),
        ("foo=b, foo=a", "foo in (a,b)"),
        ("zz, aa", "aa,zz"),
        ("foo-bar=1, foo:prefix=2", "foo-bar=1,foo:prefix=2"),
        ("日本=語", "日本=語"),
        ("foo=%2Fx", "foo=%2Fx"),
    ],
)
def test_v4_parsing_gives_canonical_text(text, canonical):
    selector = LabelSelector.parse(text)
    assert str(selector) == canonical
    assert LabelSelector.parse(canonical) == selector


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x", 'could not match "x" to a label selector expression'),
        ("aa=bb, &&", 'could not match " &&" to a label selector expression'),
        (
            "foo in (a, &, c)",
            (
                'parsing "foo in (a, &, c)": could not match " &, c" '
                "to a label selector set expression"
            ),
        ),
        (
            "foo, foo in (bar)",
            "Include: label has empty & non-empty values (index 1; label foo value bar)",
        ),
        ("foo in ()", 'could not match "foo in ()" to a label selector expression'),
    ],
)
def test_v4_parsing_errors(text, error):
    with pytest.raises(ValidationError) as raised:
        LabelSelector.parse(text)
    assert str(raised.value) == error


def test_label_survives_its_message():
    label = Label("aa", "x", prefix=True)
    assert Label.from_pb(label.to_pb()) == label


def test_selector_survives_its_message():
    selector = LabelSelector.parse("aa in (1,2),name:prefix=x/,!old")
    assert LabelSelector.from_pb(selector.to_pb()) == selector
    assert selector.to_pb().HasField("exclude")
    assert LabelSelector.from_pb(pb.LabelSelector()) == LabelSelector()


def test_reading_a_set_keeps_disorder_for_validation():
    message = pb.LabelSet(labels=[pb.Label(name="bb"), pb.Label(name="aa")])
    with pytest.raises(ValidationError, match="sorted order"):
        LabelSet.from_pb(message).validate()
