"""What parsers of users' input raise, whatever it is: a ValidationError, soon."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from pathlib import Path

import pytest

from gazette_platform.client.read.store_reader import fragment_file, read_fragment
from gazette_platform.errors import DataError, StoreError, ValidationError
from gazette_platform.ops.text import parse_duration
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    Header,
    JournalSpec,
    LabelSelector,
    LabelSet,
    parse_fragment_path,
    parse_store_url,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.protocol.routing import validate_header
from gazette_platform.yaml_specs.documents import read_yaml
from gazette_platform.yaml_specs.journal_tree import (
    JournalNode,
    hoist,
    parse_journal_tree,
    to_journal_tree,
    tree_of,
)

DIGITS = "9" * 5000
MANY = "9" * 1_000_000

JOURNAL = """
name: a/journal
replication: 1
fragment: {{length: 1024, compression_codec: NONE, refresh_interval: 1s}}
{}
"""

DOCUMENTS = {
    "integer": JOURNAL.format(f"revision: {DIGITS}"),
    "integer, many": JOURNAL.format(f"revision: {MANY}"),
    "negative": JOURNAL.format(f"revision: -{DIGITS}"),
    "hexadecimal": JOURNAL.format(f"revision: 0x{'f' * 5000}"),
    "binary": JOURNAL.format(f"revision: 0b{'1' * 5000}"),
    "binary without digits": JOURNAL.format("revision: 0b_"),
    "octal": JOURNAL.format(f"revision: 0{'7' * 5000}"),
    "octal of wrong digits": JOURNAL.format("revision: 0o_"),
    "float": JOURNAL.format(f"revision: 1e{DIGITS}"),
    "float of many digits": JOURNAL.format(f"revision: 1.5{DIGITS}"),
    "boolean": JOURNAL.format(f"delete: {DIGITS}"),
    "flags": JOURNAL.format(f"flags: {DIGITS}"),
    "suspension": JOURNAL.format(f"suspend: {{level: {DIGITS}, offset: {DIGITS}}}"),
    "duration": JOURNAL.format("").replace("1s", f"{DIGITS}s"),
    "duration of nanoseconds": JOURNAL.format("").replace("1s", DIGITS),
    "duration, negative": JOURNAL.format("").replace("1s", f"-{DIGITS}h"),
    "name": "name: " + "a/" * 100_000,
    "depth, flow": "[" * 100_000,
    "depth, mappings": "{a: " * 100_000,
    "depth, children": "name: ''\nchildren:\n"
    + "".join(f"{'  ' * n}- name: ''\n{'  ' * n}  children:\n" for n in range(200)),
    "depth, lists": "- " * 50_000 + "a",
    "anchors": "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(1000)),
    "alias of itself": "name: &a\n  children: *a\n",
    "alias of itself, in children": "&a\nname: ''\nchildren: [*a]\n",
    "not UTF-8": b"name: \xff\xfe",
    "half of UTF-16": b"\xff\xfea",
    "NUL": "name: a\0b",
    "surrogate": 'name: "\\ud800"',
    "surrogate as it is": "name: \ud800",
    "controls": "name: \x01",
    "tag": "!!python/object/apply:os.system [echo]",
    "tag of a scalar": "name: !!binary zz",
    "merge of itself": "&a\n<<: *a\n",
    "timestamps": JOURNAL.format("revision: 2001-99-99"),
    "two documents": "name: a\n---\nname: b\n",
    "question": "? [a, b]\n: c\n",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_of_journals(name):
    began = time.process_time()
    with pytest.raises(ValidationError) as caught:
        parse_journal_tree(DOCUMENTS[name])
    assert time.process_time() - began < 5
    assert len(str(caught.value)) < 20_000_000


@pytest.mark.parametrize(
    "text",
    [
        f"{DIGITS}s",
        f"1.{DIGITS}s",
        f".{MANY}s",
        f"{MANY}h",
        "1s" * 100_000,
        "1" + "µ" * 100_000,
        "٣s",
        "1e9s",
        "\0s",
        "-" * 10_000,
    ],
)
def test_durations(text):
    began = time.process_time()
    with pytest.raises(ValidationError) as caught:
        parse_duration(text)
    assert time.process_time() - began < 1
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "path",
    [
        f"{'0' * 16}-{'f' * 5000}-{'0' * 40}.raw",
        f"{'f' * 200}-{'f' * 200}-{'0' * 40}",
        f"{'0' * 16}-{'0' * 16}-{'0' * 5000}",
        f"{'0' * 16}-{'0' * 16}-{'٣' * 40}",
        "-" * 10_000,
        "/".join("d" * 5000),
        f"{'x' * 600}/{'0' * 16}-{'0' * 16}-{'0' * 40}",
        f"a\0b/{'0' * 16}-{'0' * 16}-{'0' * 40}",
        f"\ud800/{'0' * 16}-{'0' * 16}-{'0' * 40}",
        "",
        "/",
        ".",
    ],
)
def test_names_of_fragments(path):
    with pytest.raises(ValidationError):
        parse_fragment_path("a/journal", path)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "a=" + "b" * 1_000_000,
        "aa in (" + ",".join(map(str, range(20_000))) + "),!",
        "aa in (" + " " * 100_000,
        "aa" + " " * 100_000 + "=",
        "!" * 100_000,
        "aa=b," * 5_000 + "!",
        "\0",
        "aa=\ud800",
        "(" * 10_000,
    ],
)
def test_selectors(text):
    began = time.process_time()
    with pytest.raises(ValidationError):
        LabelSelector.parse(text)
    assert time.process_time() - began < 5


def test_trees_of_names_that_are_deep():
    """From a listing: a name has 256 segments at most."""
    names = ["root/" + "/".join("a" * n + "b") for n in range(1, 250)]
    tree = tree_of((JournalSpec(name, 1), 1) for name in names)
    assert [leaf.spec.name for leaf in tree.leaves()] == sorted(names)
    assert len(list(hoist(tree).push_down().leaves())) == len(names)
    assert isinstance(tree, JournalNode)
    tree.validate()


def test_listings_of_names_that_are_deep_are_written_and_read():
    fragment = FragmentSpec(1024, CompressionCodec.NONE, (), 10**9)
    names = [f"root/{'a/' * n}b" for n in range(1, 250)]
    text = to_journal_tree((JournalSpec(name, 1, fragment=fragment), 1) for name in names)
    assert [change.name for change in parse_journal_tree(text)] == sorted(names)


@pytest.mark.parametrize(
    "url",
    [
        "file:///%2e%2e/etc/passwd",
        "file:///a/%2e%2e/%2e%2e/etc/passwd",
        "file:///../etc/passwd",
        "file:///a/..",
        "file:///x%00y",
        "file:///%2fetc/../passwd",
        "file://[::1/x",
    ],
)
async def test_files_of_fragments_lie_below_the_root(tmp_path, url):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_bytes(b"secret")
    with pytest.raises(StoreError):
        fragment_file(url, root)
    fragment = Fragment("a/journal", 0, 6, codec=CompressionCodec.NONE)
    with pytest.raises((StoreError, DataError)):
        _ = [piece async for piece in read_fragment(fragment, url, offset=0, file_root=root)]


async def test_files_with_names_too_long_are_errors_of_the_store(tmp_path):
    fragment = Fragment("a/journal", 0, 6, codec=CompressionCodec.NONE)
    with pytest.raises(StoreError):
        _ = [
            piece
            async for piece in read_fragment(
                fragment, f"file:///{'x' * 5000}", offset=0, file_root=tmp_path
            )
        ]
    assert fragment_file("file:///a/..b", tmp_path) == tmp_path / "a" / "..b"
    assert fragment_file("file:////etc/x", Path("/data")) == Path("/data/etc/x")


def test_labels_and_urls_of_any_size():
    with pytest.raises(ValidationError):
        LabelSet.of(name=MANY).validate()
    with pytest.raises(ValidationError):
        parse_store_url(f"file:///{MANY}/")
    with pytest.raises(ValidationError):
        read_yaml("")


def test_headers_that_are_large_or_malformed_are_not_kept():
    """Callers can think up any number of them."""
    many, large = pb.Header(), pb.Header()
    for message in (many, large):
        message.etcd.MergeFrom(pb.Header.Etcd(cluster_id=1, member_id=1, revision=1, raft_term=1))
    for _ in range(900):
        many.route.members.add()  # of empty names: two bytes each
    for i in range(2_000):
        large.route.members.add(zone="zone", suffix=f"suffix-{i}")
    tracemalloc.start()
    try:
        for revision in range(1, 65):
            for message in (many, large):
                message.etcd.revision = revision
                with contextlib.suppress(ValidationError):
                    validate_header(message)
                if message is large:
                    Header.from_pb(message)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
