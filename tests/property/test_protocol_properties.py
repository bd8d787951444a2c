"""Laws of labels, selectors, names, fragments, durations and journal trees."""

import pytest
from hypothesis import example, given, strategies as st

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalFlag,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
    conflicting_prefix,
    format_duration,
    parse_duration,
    parse_fragment_path,
    validate_journal_name,
)
from gazette_platform.protocol.path_postfix import PathPostfixTemplate
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree, to_journal_tree

_INT64_MAX = (1 << 63) - 1
_ANY_CHARACTER = st.characters(categories=["L", "N"])
_TOKEN_ALPHABET = st.one_of(st.sampled_from("abAB01-_+/."), _ANY_CHARACTER)
_PATH_ALPHABET = st.one_of(st.sampled_from("abAB01-_+/.=%"), _ANY_CHARACTER)
_NAMES = st.text(_TOKEN_ALPHABET, min_size=2, max_size=10)
# Few names and values, so that sets meet.
_COMMON_NAMES = st.sampled_from(["aa", "bb", "cc/dd", "日本"])
_VALUES = st.one_of(st.sampled_from(["x", "y", "x/y"]), st.text(_PATH_ALPHABET, max_size=8))


def _is_valid(labels: LabelSet) -> bool:
    try:
        labels.validate(prefix=True)
    except ValidationError:
        return False
    return True


_PAIRS = st.tuples(st.one_of(_COMMON_NAMES, _NAMES), _VALUES)
_LABEL_SETS = st.lists(_PAIRS, max_size=6).map(lambda pairs: LabelSet.of(*pairs)).filter(_is_valid)


@st.composite
def _selected_labels(draw: st.DrawFn) -> LabelSet:
    labels = LabelSet()
    for name, value in draw(st.lists(_PAIRS, max_size=4)):
        labels = labels.with_added(name, value, prefix=draw(st.booleans()))
    return labels


_SELECTED = _selected_labels().filter(_is_valid)
_SELECTORS = st.builds(LabelSelector, _SELECTED, _SELECTED)

_SEGMENTS = st.text(
    st.one_of(st.sampled_from("abc-_+.=%"), _ANY_CHARACTER), min_size=1, max_size=6
).filter(lambda segment: segment not in (".", ".."))


def _is_journal_name(name: str) -> bool:
    try:
        validate_journal_name(name)
    except ValidationError:
        return False
    return True


_JOURNAL_NAMES = st.lists(_SEGMENTS, min_size=1, max_size=4).map("/".join).filter(_is_journal_name)
_CODECS = st.sampled_from([codec for codec in CompressionCodec if codec])


@given(_LABEL_SETS, _LABEL_SETS)
def test_algebra_of_sets(left, right):
    union, common = left.union(right), left.intersect(right)
    union.validate()
    common.validate()
    assert union.names() == tuple(sorted({*left.names(), *right.names()}))
    assert all(union.values_of(name) == right.values_of(name) for name in right.names())
    assert right.intersect(left) == common
    assert left.subtract(right).union(common) == left
    assert not left.subtract(right).intersect(right)
    assert left.union(left) == left.intersect(left) == left
    assert not left.subtract(left)


@given(_SELECTORS)
@example(LabelSelector(include=LabelSet.of(aa="=")))
@example(LabelSelector(include=LabelSet.of(aa="=x"), exclude=LabelSet.of(bb="=x")))
def test_canonical_text_parses_back(selector):
    text = str(selector)
    assert LabelSelector.parse(text) == selector
    assert str(LabelSelector.parse(text)) == text
    assert LabelSelector.from_pb(selector.to_pb()) == selector


@given(st.text(max_size=30))
def test_selector_text_never_fails_otherwise(text):
    try:
        selector = LabelSelector.parse(text)
    except ValidationError:
        return
    assert LabelSelector.parse(str(selector)) == selector


@given(_SELECTORS, _LABEL_SETS)
def test_matching_by_its_definition(selector, labels):
    def hits(want: Label) -> bool:
        return any(
            have.name == want.name
            and (
                want.value in ("", have.value)
                or (want.prefix and have.value.startswith(want.value))
            )
            for have in labels
        )

    expected = not any(hits(want) for want in selector.exclude) and all(
        any(hits(want) for want in selector.include if want.name == name)
        for name in selector.include.names()
    )
    assert selector.matches(labels) is expected


@given(st.text(max_size=20))
def test_names_that_pass_cannot_escape_their_directory(name):
    if _is_journal_name(name):
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))
        assert all(character > "#" for character in name)


@st.composite
def _fragments(draw: st.DrawFn) -> Fragment:
    begin, end = sorted(draw(st.tuples(*[st.integers(0, _INT64_MAX)] * 2)))
    return Fragment(
        draw(_JOURNAL_NAMES),
        begin,
        end,
        draw(st.binary(min_size=20, max_size=20)),
        draw(_CODECS),
        path_postfix=draw(st.lists(_SEGMENTS, max_size=3).map("/".join)),
    )


@given(_fragments())
def test_fragments_parse_from_their_own_path(fragment):
    fragment.validate()
    path = fragment.content_path
    assert path.startswith(fragment.journal + "/")
    assert parse_fragment_path(fragment.journal, path[len(fragment.journal) + 1 :]) == fragment
    assert (
        Fragment.from_pb(pb.Fragment.FromString(fragment.to_pb().SerializeToString())) == fragment
    )


@given(st.text(max_size=80))
def test_fragment_paths_never_fail_otherwise(path):
    try:
        parse_fragment_path("a/journal", path).validate()
    except ValidationError:
        return


@given(st.integers(-_INT64_MAX, _INT64_MAX))
def test_durations_parse_from_their_own_text(nanoseconds):
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


_STORES = st.lists(
    st.sampled_from(["s3://a/b/", "gs://c/?find=x&replace=y", "file:///日/"]), max_size=2
)
_DURATIONS = st.sampled_from([60 * 10**9, 3600 * 10**9, 86_400 * 10**9])
_TEMPLATES = st.sampled_from(
    ["", "x", 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}', "{{ .Spool.Begin }}: # y"]
)
_FRAGMENT_SPECS = st.builds(
    FragmentSpec,
    st.sampled_from([1024, 1 << 20, 1 << 34]),
    _CODECS.filter(lambda codec: codec is not CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION),
    _STORES.map(tuple),
    _DURATIONS,
    st.one_of(st.just(0), _DURATIONS),
    st.one_of(st.just(0), _DURATIONS),
    _TEMPLATES,
)
_SPECS = st.builds(
    JournalSpec,
    _JOURNAL_NAMES,
    st.integers(1, 5),
    _LABEL_SETS.filter(lambda labels: not {"name", "prefix"} & set(labels.names())),
    _FRAGMENT_SPECS,
    st.sampled_from(JournalFlag),
    st.sampled_from([0, 1 << 20]),
    st.one_of(
        st.none(),
        st.builds(SuspendSpec, st.sampled_from(SuspendLevel), st.sampled_from([0, 12])),
    ),
)
_LISTINGS = st.lists(
    st.tuples(_SPECS, st.integers(-1, 1 << 40)), max_size=6, unique_by=lambda item: item[0].name
).filter(lambda listing: conflicting_prefix(spec.name for spec, _ in listing) is None)


@given(_LISTINGS)
def test_trees_give_their_journals_back(listing):
    text = to_journal_tree(listing)
    if not listing:
        assert text == "{}\n"
        return
    changes = parse_journal_tree(text)
    assert [(change.spec, change.revision) for change in changes] == sorted(
        listing, key=lambda item: item[0].name
    )
    assert to_journal_tree((c.spec, c.revision) for c in changes if c.spec is not None) == text


@given(
    st.text(st.one_of(st.sampled_from("{}()|.$`\"' :=-/*"), st.sampled_from("aif1")), max_size=40)
)
def test_templates_never_fail_otherwise(text):
    for template in (text, "{{" + text + "}}"):
        try:
            PathPostfixTemplate(template)
        except ValidationError:
            continue


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60)))
def test_trees_never_fail_otherwise(document):
    with pytest.raises(ValidationError):
        parse_journal_tree(document)
