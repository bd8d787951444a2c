"""Trees of journals: shape, push-down, hoisting, and their YAML (J1)."""

import time
from dataclasses import replace

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalFlag,
    JournalSpec,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.yaml_specs.journal_tree import (
    JournalNode,
    _intersect,
    _subtract,
    _union,
    hoist,
    parse_journal_node,
    parse_journal_tree,
    render_journal_node,
    to_journal_tree,
    tree_of,
)

_NO_CHILDREN = (
    "expected one or more Children (a name that is empty or ends in '/' is a directory; "
    "list its journals below `children`)"
)


def _node(name: str, *children: JournalNode, **fields: object) -> JournalNode:
    return JournalNode(spec=JournalSpec(name), children=children, **fields)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (_node("foo/"), _NO_CHILDREN),
        (_node(""), _NO_CHILDREN),
        (_node("foo/", _node("foo/bar"), revision=3), "unexpected Revision (3)"),
        (_node("foo/bar", revision=-2), "invalid Revision (-2; expected >= -1)"),
        (
            _node("name", _node("name/bar")),
            "expected no Children with non-directory Node (name)",
        ),
        (_node("bad name"), "Name: not a valid token (bad name)"),
        (
            _node("foo/", _node("bar/baz")),
            "expected parent Name to prefix child (foo/ vs bar/baz)",
        ),
        (
            _node("foo/", _node("foo/bbb"), _node("foo/aaa")),
            "expected Children to be ordered (ind 1; foo/bbb vs foo/aaa; sort them by name)",
        ),
        (
            _node("foo/", _node("foo/bbb"), _node("foo/bbb")),
            "expected Children to be ordered (ind 1; foo/bbb vs foo/bbb; name each once)",
        ),
        (
            _node("foo/", _node("foo/aaa"), _node("foo/bar/", _node("foo/bar/x y"))),
            "Children[1].Children[0].Name: not a valid token (foo/bar/x y)",
        ),
    ],
)
def test_j1_shape_that_breaks_a_rule(node, text):
    with pytest.raises(ValidationError) as raised:
        node.validate()
    assert str(raised.value) == text


_TREE = """
comment: the root
name: ""
replication: 3
labels:
- name: aaa
  value: root
- name: bbb
  value: root
fragment:
  length: 1048576
  compression_codec: GZIP
  stores: [s3://base/]
  refresh_interval: 1m
  flush_interval: 3600000000000
suspend: {level: FULL, offset: 9}
children:
- name: foo/
  delete: yes
  flags: O_RDONLY
  children:
  - name: foo/bar
    revision: 12
  - name: foo/baz
    delete: off
    revision: -1
    replication: 1
    labels:
    - name: bbb
      value: 1
    - name: bbb
      value: 2
    - name: ccc
    fragment: {stores: [file:///a/, file:///b/], length: 0x800, retention: 24h, path_postfix_template: "x={{ .Spool.Begin }}"}
    flags: 4
    max_append_rate: 1e3
    suspend: {level: 1}
- name: other
"""


def test_j1_push_down_of_a_tree():
    bar, baz, other = parse_journal_tree(_TREE)
    assert bar == JournalChange(None, "foo/bar", 12)
    assert bar.name == "foo/bar"
    root_fragment = FragmentSpec(
        1 << 20,
        CompressionCodec.GZIP,
        ("s3://base/",),
        60 * 10**9,
        flush_interval_ns=3600 * 10**9,
    )
    assert baz == JournalChange(
        JournalSpec(
            "foo/baz",
            1,
            LabelSet.of(("aaa", "root"), ("bbb", "1"), ("bbb", "2"), ("ccc", "")),
            replace(
                root_fragment,
                stores=("file:///a/", "file:///b/"),
                length=2048,
                retention_ns=24 * 3600 * 10**9,
                path_postfix_template="x={{ .Spool.Begin }}",
            ),
            JournalFlag.O_RDWR,
            1000,
            SuspendSpec(SuspendLevel.PARTIAL),
        ),
        revision=-1,
    )
    assert other == JournalChange(
        JournalSpec("other", 3, LabelSet.of(aaa="root", bbb="root"), root_fragment)
    )
    assert other.name == "other"


_LEAF = """
name: a/journal
replication: 1
fragment: {length: 1024, compression_codec: NONE, refresh_interval: 1s}
"""


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("", "yaml: the document is empty"),
        ("[1, 2]", "yaml: line 1: expected a mapping of keys to values"),
        ("name: [", "yaml: line 2: did not find expected node content"),
        (
            "name: a\n---\nname: b",
            "yaml: line 2: expected a single document in the stream, but found another document",
        ),
        ("\tname: x", "yaml: line 1: found character that cannot start any token"),
        (b"name: \xff", "yaml: the document is not UTF-8"),
        ("name: a\x00b", "yaml: unacceptable character"),
        ("[" * 100_000, "yaml: line 1: nested deeper than 256 levels"),
        (_LEAF + "replicaton: 2\n", "yaml: line 5: unknown key 'replicaton' (known: comment, "),
        (_LEAF + "name: twice\n", "yaml: line 5: key 'name' is given twice"),
        (_LEAF + "? [a]\n: b\n", "yaml: line 5: a key must be a single word"),
        (_LEAF + "labels: {a: b}\n", "yaml: line 5: labels must be a list"),
        (_LEAF + "labels: [x]\n", "yaml: line 5: expected a mapping of keys to values"),
        (
            _LEAF + "labels:\n- name: aa\n  value: x\n  prefix: true\n",
            "yaml: line 8: unknown key 'prefix' (known: name, value)",
        ),
        (
            _LEAF + "labels:\n- name: bb\n- name: aa\n",
            "yaml: line 7: Labels not in unique, sorted order (aa= after bb=)",
        ),
        (_LEAF + "revision: x\n", "yaml: line 5: revision must be an integer of 64 bits, not 'x'"),
        (_LEAF + "revision: 1.5\n", "not '1.5'"),
        (_LEAF + "revision: 9223372036854775808\n", "not '9223372036854775808'"),
        (_LEAF + "revision: [1]\n", "yaml: line 5: revision must be a single value"),
        (_LEAF + "delete: maybe\n", "yaml: line 5: delete must be true or false, not 'maybe'"),
        (_LEAF + "flags: O_NOPE\n", "yaml: line 5: flags 'O_NOPE' is none of NOT_SPECIFIED, O_R"),
        (_LEAF + "flags: 35\n", "journal a/journal: Flags: invalid Flags combination (35)"),
        (_LEAF + "suspend: {level: 7}\n", "journal a/journal: Suspend.Level: invalid value (7)"),
        (_LEAF + "suspend: {levl: 7}\n", "unknown key 'levl' (known: level, offset)"),
        (_LEAF.replace("1s", "1 s"), "yaml: line 4: refresh_interval: unknown unit"),
        (_LEAF.replace("NONE", "LZ4"), "yaml: line 4: compression_codec 'LZ4' is none of INVALID"),
        (_LEAF.replace("{length", "{stores: [[]], length"), "stores must be a list of strings"),
        (_LEAF.replace("1024", "1"), "journal a/journal: Fragment: invalid Length (1; "),
        (_LEAF.replace("replication: 1", ""), "journal a/journal: invalid Replication (0; "),
        (_LEAF + "delete: true\n", "journal a/journal: delete needs the revision to delete, or -1"),
        (_LEAF + "<<: {<<: {<<: [x]}}\n", "expected a mapping of keys to values"),
    ],
)
def test_documents_that_are_refused(document, text):
    with pytest.raises(ValidationError) as raised:
        parse_journal_tree(document)
    assert text in str(raised.value)


def test_endless_trees_are_refused():
    with pytest.raises(ValidationError, match="nested deeper than 64 levels"):
        parse_journal_node("&a {children: [*a]}")
    with pytest.raises(ValidationError, match="merged into each other"):
        parse_journal_node("&a {<<: *a}")


def test_aliases_that_explode_are_refused():
    lines = ["- &a0 {name: x}"]
    lines += [f"- &a{n + 1} {{children: [{', '.join([f'*a{n}'] * 10)}]}}" for n in range(7)]
    document = "children:\n" + "\n".join(lines)
    with pytest.raises(ValidationError, match="aliases repeat more than 20000 mappings"):
        parse_journal_node(document)


def test_merges_that_explode_are_refused_in_bounded_time():
    lines = ["- &m0 {name: x}"]
    lines += [f"- &m{n + 1} {{<<: [{', '.join([f'*m{n}'] * 9)}]}}" for n in range(9)]
    begun = time.process_time()
    with pytest.raises(ValidationError, match="merges repeat more than 500000 keys"):
        parse_journal_node("children:\n" + "\n".join(lines))
    assert time.process_time() - begun < 10


def test_merged_mappings_and_null_fields():
    (change,) = parse_journal_tree(
        "name: a/journal\nreplication: 2\nlabels:\ncomment: ~\n"
        "fragment:\n  <<: [{length: 1024, compression_codec: NONE}, {length: 1}]\n"
        "  refresh_interval: 1s\n"
    )
    assert change.spec is not None
    assert change.spec.fragment == FragmentSpec(1024, CompressionCodec.NONE, (), 10**9)
    assert change.spec.labels == LabelSet()


def test_a_journal_that_is_a_directory_of_another_is_refused():
    spec = (
        "replication: 1\nfragment: {length: 1024, compression_codec: NONE, refresh_interval: 1s}\n"
    )
    children = "children:\n- name: foobar\n- name: foobar/baz\n"
    with pytest.raises(ValidationError, match="journal foobar is a directory of journal foobar/b"):
        parse_journal_tree(spec + children)
    deleted = "children:\n- {name: foobar, delete: true, revision: 3}\n- name: foobar/baz\n"
    assert len(parse_journal_tree(spec + deleted)) == 2


_SPEC = JournalSpec(
    "",
    3,
    LabelSet.of(aa="1", bb=""),
    FragmentSpec(1024, CompressionCodec.NONE, ("file:///",), 10**9),
)


def _named(*names: str) -> list[tuple[JournalSpec, int]]:
    return [(replace(_SPEC, name=name), index) for index, name in enumerate(names, 1)]


def _names(node: JournalNode) -> object:
    return (
        (node.spec.name, [_names(child) for child in node.children])
        if node.children
        else node.spec.name
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["only/one"], "only/one"),
        (["aaaa", "bbbb"], ("", ["aaaa", "bbbb"])),
        (["foo/bar", "foo/baz"], ("foo/", ["foo/bar", "foo/baz"])),
        (
            ["foo/bar/b", "foo/baz", "foo/bar/a", "foo-x/q"],
            ("", ["foo-x/q", ("foo/", [("foo/bar/", ["foo/bar/a", "foo/bar/b"]), "foo/baz"])]),
        ),
        (
            ["a/b/c/one", "a/b/c/two", "a/b/d/e/one"],
            ("a/b/", [("a/b/c/", ["a/b/c/one", "a/b/c/two"]), "a/b/d/e/one"]),
        ),
        (["foo/barn", "foo/bar"], ("foo/", ["foo/bar", "foo/barn"])),
    ],
)
def test_j1_tree_has_fewest_directories(names, expected):
    tree = tree_of(_named(*names))
    assert tree is not None
    assert _names(tree) == expected
    tree.validate()


def test_no_journals_make_no_tree():
    assert tree_of([]) is None
    assert to_journal_tree([]) == "{}\n"


def test_j1_hoisting_moves_what_all_children_share():
    one = replace(_SPEC, name="foo/one", labels=LabelSet.of(aa="1", bb="x"))
    two = replace(
        _SPEC,
        name="foo/two",
        labels=LabelSet.of(aa="1", bb="y"),
        flags=JournalFlag.O_RDONLY,
        suspend=SuspendSpec(SuspendLevel.FULL, 5),
        fragment=replace(_SPEC.fragment, stores=("file:///other/",)),
    )
    tree = hoist(JournalNode(JournalSpec("foo/"), children=(JournalNode(one), JournalNode(two))))
    assert tree.spec == JournalSpec(
        "foo/", 3, LabelSet.of(aa="1"), replace(_SPEC.fragment, stores=())
    )
    assert [child.spec for child in tree.children] == [
        JournalSpec("foo/one", 0, LabelSet.of(bb="x"), FragmentSpec(stores=("file:///",))),
        JournalSpec(
            "foo/two",
            0,
            LabelSet.of(bb="y"),
            FragmentSpec(stores=("file:///other/",)),
            JournalFlag.O_RDONLY,
            suspend=SuspendSpec(SuspendLevel.FULL, 5),
        ),
    ]
    assert [leaf.spec for leaf in tree.push_down().leaves()] == [one, two]


def test_v5_set_operations_of_specs():
    """What is shared and what is left make the whole again; zero values take the other's."""
    one = replace(_SPEC, name="a/one", max_append_rate=7, labels=LabelSet.of(aa="1", bb="x"))
    two = replace(_SPEC, name="a/two", replication=2, labels=LabelSet.of(aa="1", bb="y"))
    shared = _intersect(one, two)
    assert (shared.replication, shared.max_append_rate) == (0, 0)
    assert shared.labels == LabelSet.of(aa="1")
    assert shared.fragment == _SPEC.fragment
    for spec in (one, two):
        rest = _subtract(spec, shared)
        assert rest.fragment == FragmentSpec()
        assert "aa" not in rest.labels.names()
        assert _union(rest, replace(shared, name=spec.name)) == spec
    assert _union(one, two) == one, "its own values win"


def test_v5_flags_are_names_or_numbers_in_yaml():
    for text, flags in (("O_RDWR", JournalFlag.O_RDWR), ("35", JournalFlag.from_wire(35))):
        document = f"name: a/journal\nflags: {text}\n"
        node = parse_journal_node(document)
        assert node.spec.flags == flags
        assert render_journal_node(node) == document


_CANONICAL = """\
comment: kept
name: foo/
replication: 3
labels:
- name: aa
  value: "11"
- name: bb
  value: ""
- name: cc
  value: "yes"
- name: dd
  value: "y"
- name: ee
  value: "2020-01-02"
- name: ff
  value: 1e3x
- name: gg
  value: "1e3"
- name: hh
  value: plain/text=%20
- name: ii
  value: "0x1F"
- name: jj
  value: "~"
fragment:
  length: 1048576
  compression_codec: ZSTANDARD
  stores:
  - s3://bucket/a/?endpoint=http%3A%2F%2Flocalhost%3A9000&profile=a-rather-long-name-of-a-profile
  refresh_interval: 5m0s
  retention: 720h0m0s
  flush_interval: 1h0m0s
  path_postfix_template: date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{
    .Spool.FirstAppendTime.Format "15" }}
flags: O_RDWR
max_append_rate: 100
children:
- delete: true
  name: foo/aaa
  revision: 12
- delete: false
  name: foo/bbb
  flags: 35
  suspend: {}
  revision: -1
- name: foo/ccc/
  fragment:
    path_postfix_template: '{{ .Spool.Begin }}'
  children:
  - name: foo/ccc/日本
    suspend:
      level: FULL
"""


def test_j1_canonical_yaml_is_byte_exact():
    assert render_journal_node(parse_journal_node(_CANONICAL)) == _CANONICAL
    unfolded = _CANONICAL.replace("{{\n    .Spool", "{{ .Spool")
    assert parse_journal_node(unfolded) == parse_journal_node(_CANONICAL)


def test_j1_yaml_of_a_listing_hoists_and_keeps_revisions():
    journals = _named("foo/one", "foo/two")
    text = to_journal_tree(journals)
    assert text == (
        'name: foo/\nreplication: 3\nlabels:\n- name: aa\n  value: "1"\n- name: bb\n'
        '  value: ""\nfragment:\n  length: 1024\n  compression_codec: NONE\n  stores:\n'
        "  - file:///\n  refresh_interval: 1s\nchildren:\n- name: foo/one\n  revision: 1\n"
        "- name: foo/two\n  revision: 2\n"
    )
    assert [(c.spec, c.revision) for c in parse_journal_tree(text)] == journals
