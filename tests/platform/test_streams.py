"""Journals as streams: what README.md promises of appends and reads, at the platform's broker."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from live_platform import http

from gazette_platform import read_arrow
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import patient, wait_until

FILE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})(\.gz|\.raw)?")


def block(letter, lines=500):
    return b"".join(b'{"from": "%s", "n": %d}\n' % (letter, n) for n in range(lines))


def exactly(reader, count):
    """Read so many bytes of a blocking reader, which gives what it has."""
    got = b""
    while len(got) < count and (piece := reader.read(count - len(got))):
        got += piece
    return got


def test_concurrent_appends_are_whole_and_apart(own, client):
    journal = own.journal()
    blocks = [block(letter, 20_000) for letter in (b"a", b"b", b"c", b"d")]
    with ThreadPoolExecutor() as pool:
        spans = list(pool.map(lambda content: client.append(journal, content), blocks))
    content = client.read(journal).read()
    assert len(content) == sum(map(len, blocks))
    for span, appended in zip(spans, blocks, strict=True):
        assert content[span.begin : span.end] == appended


def test_append_that_breaks_off_leaves_nothing(own, client):
    journal = own.journal()
    client.append(journal, b"first\n")
    seen = []

    def breaks_off():
        yield block(b"x")
        # The broker holds half of an append; readers see nothing of it.
        seen.append(client.read(journal).read())
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        client.append(journal, breaks_off())
    client.append(journal, b"second\n")
    assert seen == [b"first\n"]
    assert client.read(journal).read() == b"first\nsecond\n"


def test_acknowledged_bytes_never_change(own, client):
    journal = own.journal()
    spans = []
    for letter in (b"a", b"b", b"c"):
        spans.append(client.append(journal, block(letter)))
        client.flush(f"name={journal}")
    spans += [client.append(journal, block(letter)) for letter in (b"d", b"e")]
    assert all(former.end == later.begin for former, later in pairwise(spans))
    for span in spans:
        content = client.read(journal, span.begin, end_offset=span.end).read()
        assert hashlib.sha1(content, usedforsecurity=False).digest() == span.sha1
        assert len(content) == span.end - span.begin


def test_one_read_goes_from_zero_to_live_appends(own, client):
    journal = own.journal()
    expected = b""
    for letter in (b"a", b"b"):  # in the store
        client.append(journal, block(letter))
        client.flush(f"name={journal}")
        expected += block(letter)
    client.append(journal, block(b"c"))  # in the spool
    expected += block(b"c")
    with client.read(journal, 0, block=True) as reader:
        assert exactly(reader, len(expected)) == expected
        # Now the call waits at the head, until something is appended.
        got = []
        thread = threading.Thread(target=lambda: got.append(exactly(reader, len(block(b"d")))))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        client.append(journal, block(b"d"))
        thread.join(patient(20))
        assert got == [block(b"d")]


def test_tail_sees_appends_within_milliseconds(own, client):
    journal = own.journal()
    seen = {}
    with client.tail(journal, offset=0) as reader:

        def follow():
            for batch in reader.json_lines():
                now = time.perf_counter()
                seen.update((each["n"], now) for each in batch)
                if len(seen) == 50:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        began = {}
        for n in range(50):
            began[n] = time.perf_counter()
            client.append(journal, b'{"n": %d}\n' % n)
        thread.join(patient(20))
    assert sorted(seen) == list(range(50))
    # From before the append until the tail has the record: the append is part of it.
    assert statistics.median(seen[n] - began[n] for n in range(50)) < patient(0.1)


@pytest.mark.parametrize(
    ("codec", "suffix", "content_of"),
    [
        (CompressionCodec.GZIP, ".gz", lambda path: gzip.decompress(path.read_bytes())),
        (CompressionCodec.NONE, ".raw", lambda path: path.read_bytes()),
    ],
    ids=["gzip", "plain"],
)
def test_files_hold_just_the_records(own, client, codec, suffix, content_of):
    journal = own.journal("kind=a", codec=codec, path_postfix_template="date=2026-01-02")
    for letter in (b"a", b"b"):
        client.append(journal, block(letter))
        client.flush(f"name={journal}")
    files = own.files(journal)
    assert {path.parent.name for path in files} == {"date=2026-01-02"}
    begins = 0
    for path, letter in zip(files, (b"a", b"b"), strict=True):
        begin, end, digest, ending = FILE.fullmatch(path.name).groups()
        content = content_of(path)
        assert content == block(letter)
        assert (int(begin, 16), int(end, 16)) == (begins, begins + len(content))
        assert digest == hashlib.sha1(content, usedforsecurity=False).hexdigest()
        assert ending == suffix
        begins += len(content)


def test_content_is_kept_once(own, client, gazctl, platform):
    journal = own.journal(codec=CompressionCodec.NONE)
    mark = b"only-one-copy-of-this"
    client.append(journal, b'{"id": 1, "word": "%s"}\n' % mark)
    table = own.spec("kept", "[{name: id, type: bigint}, {name: word, type: string}]")
    done = gazctl("lake", "flush", table, "--tables", own.tables)
    assert "1 row(s) more" in done.out, done.err
    folders = (platform.layout.fragments, platform.layout.warehouse, platform.layout.metastore)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if mark in path.read_bytes()] == own.files(journal)


def test_http_gateway_appends_reads_and_follows(own, platform):
    journal = own.journal()
    url = f"{platform.endpoints.http}/{journal}"
    status, headers, _ = http(url, method="PUT", data=block(b"a"))
    assert (status, headers["X-Commit-Begin"]) == (204, "0")
    status, headers, _ = http(url, method="PUT", data=block(b"b"))
    assert int(headers["X-Commit-Begin"]) == len(block(b"a"))
    status, headers, content = http(f"{url}?offset={len(block(b'a'))}")
    assert (status, content) == (206, block(b"b"))
    assert int(headers["X-Write-Head"]) == len(block(b"a") + block(b"b"))
    assert http(f"{platform.endpoints.http}/no/such/journal")[0] == 404


def test_gazctl_appends_reads_and_lists(own, gazctl, tmp_path):
    journal = own.journal("region=eu")
    (tmp_path / "eu.jsonl").write_bytes(block(b"a", 3))
    selector = f"name={journal}"
    assert gazctl("journals", "append", "-l", selector, "-i", "eu.jsonl").code == 0
    assert gazctl("journals", "read", "-l", selector).out.encode() == block(b"a", 3)
    assert gazctl("journals", "list", "-l", selector).out.split()[1:] == [journal]
    printed = gazctl("journals", "list", "-l", selector, "-o", "yaml").out
    # What `list` prints, `apply` takes.
    changed = printed.replace("67108864", "33554432")
    assert changed != printed
    assert gazctl("journals", "apply", stdin=changed.encode()).code == 0
    assert "33554432" in gazctl("journals", "list", "-l", selector, "-o", "yaml").out


def test_prefix_is_read_as_one_arrow_table(own, client):
    for part in ("part=0", "part=1"):
        client.append(own.journal(part), b"".join(b'{"n": %d}\n' % n for n in range(100)))
    table = read_arrow(client, f"name:prefix={own.name}/").read_all()
    assert table.num_rows == 200
    assert sum(table["n"].to_pylist()) == 2 * sum(range(100))


def test_any_part_of_history_is_replayed(own, client):
    journal = own.journal()
    spans = []
    for letter in (b"a", b"b", b"c", b"d"):
        spans.append(client.append(journal, block(letter)))
        client.flush(f"name={journal}")
    inside = spans[1].begin + len(block(b"b", 250))
    content = client.read(journal, inside, end_offset=spans[2].end).read()
    assert content == (block(b"b") + block(b"c"))[len(block(b"b", 250)) :]


def test_pruning_deletes_whole_fragments_only(own, client, gazctl, platform):
    journal = own.journal()
    spans = []
    for letter in (b"a", b"b", b"c"):
        spans.append(client.append(journal, block(letter)))
        client.flush(f"name={journal}")
    cut = spans[1].end - 10  # within the second one, which therefore stays
    pruned = gazctl(
        *("journals", "prune", "-l", f"name={journal}", "--before-offset", cut),
        *("--file-root", platform.layout.fragments),
    )
    assert pruned.code == 0, pruned.err
    names = [path.name for path in own.files(journal)]
    assert [int(name[:16], 16) for name in names] == [spans[1].begin, spans[2].begin]

    def is_forgotten():
        with client.read(journal, 0, on_jump="continue") as reader:
            return reader.read() == block(b"b") + block(b"c")

    wait_until(is_forgotten)


def test_readme_snippet_tails_what_it_appends(own, platform, client, readme):
    journal = own.journal("clicks")
    code = readme.python("client.tail").replace("events/clicks", journal)
    environment = os.environ | {"BROKER_ADDRESS": platform.endpoints.broker}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, env=environment
    ) as process:
        try:
            # Its loop follows the journal without end, so a later append comes, too.
            assert b"'visitor': 'ada'" in process.stdout.readline()
            client.append(journal, b'{"visitor": "grace", "page": "/"}\n')
            assert b"'visitor': 'grace'" in process.stdout.readline()
        finally:
            process.kill()
