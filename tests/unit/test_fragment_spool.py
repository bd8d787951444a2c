"""The spool: Gazette's cases S1 to S8, as far as they apply to ours, and what ours adds."""

from __future__ import annotations

import gzip
import hashlib
import os
from datetime import UTC, datetime

import pytest

from gazette_platform.broker.spool import disk, spool as module
from gazette_platform.broker.spool.disk import COMPRESS_BATCH_BYTES, CompressedForm, SpoolFile
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.codecs import decompressor
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 3, 5, 6, tzinfo=UTC)
CODECS = [
    CompressionCodec.NONE,
    CompressionCodec.GZIP,
    CompressionCodec.ZSTANDARD,
    CompressionCodec.SNAPPY,
]


def sha1(content):
    return hashlib.sha1(content, usedforsecurity=False).digest()


def append(spool, *chunks, registers=None, now=NOW):
    end = spool.write(chunks, spool.end)
    spool.commit(end, registers=registers or LabelSet(), now=now)


def read(file, length=1 << 20):
    return os.pread(file.fd, length, 0)


def compress(spool):
    """All whole batches, as a broker does in the background."""
    while spool.compress_lag:
        spool.compress_step(spool.end)


def stored(completed, directory):
    """The bytes that would be persisted."""
    codec, length = completed.fragment.codec, completed.fragment.content_length
    form = completed.compressed or CompressedForm(codec, directory)
    while not form.is_whole:
        form.step(completed.content.fd, length, is_last=True)
    completed.compressed = form
    assert os.fstat(form.file.fd).st_size == form.length
    return read(form.file, form.length)


@pytest.fixture
def make(tmp_path):
    """Makes spools of `a/journal`, and closes what is left of them."""
    made = []

    def make_one(**options):
        spool = Spool("a/journal", directory=tmp_path, **options)
        made.append(spool)
        return spool

    yield make_one
    for spool in made:
        spool.discard()


@pytest.fixture
def small_batches(monkeypatch):
    """Compression works in batches of ten bytes."""
    for one in (module, disk):
        monkeypatch.setattr(one, "COMPRESS_BATCH_BYTES", 10)
    monkeypatch.setattr(disk, "_local", disk.threading.local())


# ------------------------------------------------------------------------------------- committing
def test_s1_a_new_spool_is_empty_and_owns_no_file(make, tmp_path):
    spool = make()
    assert spool.fragment() == Fragment("a/journal", 0, 0, ZERO_SUM, CompressionCodec.NONE)
    assert spool.file is None
    assert spool.first_append_at is None


def test_s1_commits_extend_the_fragment_from_its_begin(make):
    spool = make(begin=100)
    append(spool, b"some ", b"content")
    assert (spool.begin, spool.end, spool.content_length) == (100, 112, 12)
    assert read(spool.file) == b"some content"


@pytest.mark.parametrize("is_primary", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_s2_what_is_rolled_back_is_never_seen(make, tmp_path, codec, is_primary):
    """Rollback is forgetting: the next write begins after what is committed."""
    spool = make(codec=codec, is_primary=is_primary)
    append(spool, b"an initial ", b"write ")
    spool.write([b"rolled back, and longer than what follows"], spool.end)
    assert spool.fragment().end == 17
    assert read(spool.file, spool.end) == b"an initial write "
    append(spool, b"final ", now=LATER)
    append(spool, b"write")
    spool.write([b"never committed"], spool.end)
    completed = spool.complete()
    content = b"an initial write final write"
    assert completed.fragment == Fragment("a/journal", 0, len(content), sha1(content), codec)
    assert read(completed.content, len(content)) == content
    if codec is not CompressionCodec.NONE:
        persisted = stored(completed, tmp_path)
        assert decompressor(codec).decompress(memoryview(persisted)) == content
    assert completed.first_append_time == NOW
    assert spool.complete() is None, "there is nothing more to complete"
    completed.close()


def test_s2_first_append_time_is_that_of_the_first_commit_with_content(make):
    spool = make()
    spool.commit(0, registers=LabelSet(), now=NOW)
    assert spool.first_append_at is None
    append(spool, b"x", now=LATER)
    append(spool, b"y", now=NOW)
    assert spool.first_append_at == LATER


def test_s3_an_empty_spool_does_not_complete(make):
    spool = make(begin=10, is_primary=True)
    spool.commit(10, registers=LabelSet.of(a="1"), now=NOW)
    assert spool.complete() is None


def test_a_spool_of_uncommitted_bytes_does_not_complete(make):
    spool = make()
    spool.write([b"abandoned"], 0)
    file = spool.file.hold()
    assert spool.complete() is None
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)


def test_s5_commits_carry_registers(make):
    spool = make(registers=LabelSet.of(a="0"))
    assert spool.registers == LabelSet.of(a="0")
    append(spool, b"x", registers=LabelSet.of(a="1"))
    completed = spool.complete()
    assert completed.registers == LabelSet.of(a="1")
    completed.close()


# ----------------------------------------------------------------------------------------- digest
def test_s6_digest_trails_the_commits(make):
    spool = make(begin=7)
    append(spool, b"some ")
    append(spool, b"content")
    assert spool.digest_lag == 12
    assert spool.digested_fragment() == Fragment("a/journal", 7, 7, ZERO_SUM, spool.codec)
    spool.digest_step(12)
    assert spool.digest_lag == 7
    assert spool.digested_fragment().sum == sha1(b"some ")
    spool.digest_step(19)
    assert spool.digested_fragment() == Fragment(
        "a/journal", 7, 19, sha1(b"some content"), spool.codec
    )


def test_digest_covers_content_of_many_read_buffers(make):
    content = os.urandom(3 * COMPRESS_BATCH_BYTES + 17)
    spool = make()
    append(spool, content)
    spool.digest_step(spool.end)
    assert spool.digested_fragment().sum == sha1(content)


def test_digest_stays_readable_once_completed(make):
    """A listing may ask for the sum at the moment of the roll."""
    spool = make()
    append(spool, b"content")
    completed = spool.complete()
    assert spool.digested_fragment() == completed.fragment
    completed.close()


# ------------------------------------------------------------------------------------ compression
def test_s3_batches_become_members(make, small_batches, tmp_path):
    spool = make(codec=CompressionCodec.GZIP, is_primary=True)
    append(spool, b"first write ")  # 12 bytes: one batch, and two bytes that wait
    spool.compress_step(spool.end)
    first = spool._compressed.length
    assert spool._compressed.content_length == 10
    append(spool, b"2nd")
    spool.compress_step(spool.end)
    assert spool._compressed.length == first, "five bytes are no batch"
    completed = spool.complete()
    assert completed.compressed.content_length == 10, "the rest is left to the persister"
    whole = stored(completed, tmp_path)
    assert gzip.decompress(whole[:first]) == b"first writ"
    assert gzip.decompress(whole[first:]) == b"e 2nd"
    completed.close()


@pytest.mark.parametrize(
    "codec",
    [*CODECS[1:], CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION],
    ids=lambda codec: codec.name,
)
@pytest.mark.parametrize("sizes", [[3], [10], [9, 2], [25, 1, 10, 4]])
def test_compressed_form_is_a_whole_file_of_its_codec(make, small_batches, codec, sizes, tmp_path):
    spool = make(codec=codec, is_primary=True)
    for n, size in enumerate(sizes):
        append(spool, bytes([n]) * size)
        compress(spool)
    completed = spool.complete()
    steps = decompressor(codec)
    content = steps.decompress(stored(completed, tmp_path))
    steps.finish()
    assert content == b"".join(bytes([n]) * size for n, size in enumerate(sizes))
    completed.close()


@pytest.mark.parametrize(
    ("codec", "is_primary"),
    [
        (CompressionCodec.GZIP, False),
        (CompressionCodec.NONE, True),
        (CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION, True),
    ],
)
def test_s2_who_does_not_compress_as_it_goes(make, small_batches, codec, is_primary):
    """Replicas do when they persist; so does who makes one stream of a whole fragment."""
    spool = make(codec=codec, is_primary=is_primary)
    append(spool, b"x" * 100)
    assert spool.compress_lag == 0
    spool.compress_step(spool.end)
    completed = spool.complete()
    assert completed.compressed is None
    assert completed.is_primary == is_primary
    completed.close()


def test_compress_lag_counts_whole_batches(make, small_batches):
    spool = make(codec=CompressionCodec.ZSTANDARD, is_primary=True)
    append(spool, b"x" * 9)
    assert spool.compress_lag == 0
    append(spool, b"x" * 14)
    assert spool.compress_lag == 20
    spool.compress_step(spool.end)
    assert spool.compress_lag == 10, "a step is one batch, so that journals take turns"
    spool.compress_step(spool.end)
    assert spool.compress_lag == 0


def test_a_completed_spool_lags_in_nothing(make, small_batches):
    """Else rounds that were waiting for the completion would go on for ever."""
    spool = make(codec=CompressionCodec.GZIP, is_primary=True)
    append(spool, b"x" * 100)
    completed = spool.complete()
    assert (spool.digest_lag, spool.compress_lag) == (0, 0)
    completed.close()


# ------------------------------------------------------------------------------------ disk errors
class BrokenOnce:
    """An `os` function that fails, or does half of its work, as often as the test says."""

    def __init__(self, function, outcomes):
        self.function = function
        self.outcomes = outcomes

    def __call__(self, fd, data, *rest):
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, OSError):
            raise outcome
        if outcome == "short":
            data = data[: len(data) // 2]
        return self.function(fd, data, *rest)


def test_s8_a_write_that_failed_is_repeated_in_place(make, monkeypatch):
    spool = make()
    append(spool, b"before ")
    broken = BrokenOnce(os.pwrite, [None, OSError(28, "No space left on device")])
    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="No space left"):
        spool.write([b"one ", b"two"], spool.end)
    assert spool.end == 7
    append(spool, b"one ", b"two")
    assert read(spool.file) == b"before one two"


def test_s8_short_writes_are_continued(make, monkeypatch):
    spool = make()
    monkeypatch.setattr(os, "pwrite", BrokenOnce(os.pwrite, ["short", "short"]))
    append(spool, b"content of some length", memoryview(b"and more"))
    assert read(spool.file) == b"content of some lengthand more"


def test_s8_a_spool_whose_file_cannot_be_made_tries_again(tmp_path):
    gone = tmp_path / "gone"
    spool = Spool("a/journal", directory=gone)
    with pytest.raises(FileNotFoundError):
        spool.write([b"x"], 0)
    gone.mkdir()
    append(spool, b"x")
    assert spool.content_length == 1
    spool.discard()


def test_s8_compression_that_failed_is_left_to_the_persister(
    make, small_batches, monkeypatch, tmp_path
):
    spool = make(codec=CompressionCodec.GZIP, is_primary=True)
    append(spool, b"0123456789abcdefghij!")
    spool.compress_step(spool.end)
    held = spool._compressed.file.hold()
    monkeypatch.setattr(os, "pwrite", BrokenOnce(os.pwrite, ["short", OSError(5, "I/O error")]))
    with pytest.raises(OSError, match="I/O error"):
        spool.compress_step(spool.end)
    spool.stop_compressing()
    held.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.fd)
    assert spool.compress_lag == 0, "no one tries again and again"
    completed = spool.complete()
    assert completed.compressed is None
    assert gzip.decompress(stored(completed, tmp_path)) == b"0123456789abcdefghij!"
    completed.close()


def test_s8_completion_that_failed_is_repeated(make, monkeypatch):
    spool = make()
    append(spool, b"content")
    file = spool.file
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(OSError, match="before its committed content"):
        spool.complete()
    monkeypatch.setattr(os, "preadv", real)
    completed = spool.complete()
    assert completed.fragment.sum == sha1(b"content")
    assert completed.content is file
    completed.close()


# ------------------------------------------------------------------------------------------ files
def test_files_have_no_name(make, tmp_path, small_batches):
    """A crash leaves no litter."""
    spool = make(codec=CompressionCodec.GZIP, is_primary=True)
    append(spool, b"0123456789")
    spool.compress_step(spool.end)
    assert list(tmp_path.iterdir()) == []


def test_a_file_closes_with_its_last_holder(tmp_path):
    file = SpoolFile(tmp_path, 0)
    file.hold()
    file.release()
    os.fstat(file.fd)
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)
    with pytest.raises(ValueError, match="closed"):
        file.hold()


def test_discard_releases_both_files(make, small_batches):
    spool = make(codec=CompressionCodec.GZIP, is_primary=True)
    append(spool, b"0123456789")
    spool.compress_step(spool.end)
    fds = [spool.file.fd, spool._compressed.file.fd]
    spool.discard()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_was_rolled_back_is_cut_off_the_completed_file(make):
    spool = make()
    append(spool, b"kept")
    spool.write([b"rolled back"], spool.end)
    completed = spool.complete()
    assert os.fstat(completed.content.fd).st_size == 4
    completed.close()
