"""Samples of journals: whole lines, of several places, and never more than the bounds say."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.inference.sampling import (
    SampleLimits,
    require_whole_lines,
    sample_lines,
    served,
    spread,
)
from gazette_platform.protocol import JournalSpec, SuspendLevel, SuspendSpec


class Content:
    """A journal of lines in fragments, given by their ends; the first bytes may be gone."""

    def __init__(self, content, fragments, begin=0):
        self.content, self.fragments, self.begin = content, fragments, begin
        self.read_bytes = 0

    def span(self, journal):
        return self.begin, len(self.content)

    def fragment_begin(self, journal, offset):
        return next((begin for begin in self.fragments if begin >= offset), None)

    def read(self, journal, begin, end):
        assert self.begin <= begin < end <= len(self.content)
        self.read_bytes += end - begin
        return self.content[begin:end]


JOURNALS = [JournalSpec(name="a", replication=1)]


@given(
    st.lists(
        st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")), max_size=8), max_size=8
    ),
    st.integers(1, 20),
    st.booleans(),
    st.integers(0, 8),
)
def test_samples_are_whole_lines_within_bounds(appends, length, lacks_newline, gone):
    content, begins = b"", []
    for lines in appends:
        if lines:
            begins.append(len(content))
            content += b"".join(line + b"\n" for line in lines)
    begin = begins[min(gone, len(begins) - 1)] if begins else 0
    if lacks_newline and content:
        content = content[:-1]
    source = Content(content, [b for b in begins if b >= begin], min(begin, len(content)))
    lines, samples = sample_lines(source, JOURNALS, SampleLimits(sample_bytes=length))
    assert source.read_bytes <= 4 * length
    ends = [(s.begin, s.end) for s in samples]
    assert all(first[1] <= second[0] for first, second in pairwise(ends))
    known = content[source.begin :].split(b"\n")
    assert set(lines) <= set(known)
    if len(content) - source.begin <= 4 * length:
        assert [line for line in lines if line] == [line for line in known if line]
    if samples:
        assert samples[0].begin == source.begin
        assert samples[-1].end == len(content)


def test_newline_at_the_end_adds_no_blank_line():
    assert sample_lines(Content(b"one\ntwo\n", [0]), JOURNALS)[0] == [b"one", b"two"]
    assert sample_lines(Content(b"one\n\n", [0]), JOURNALS)[0] == [b"one", b""]


def test_the_last_line_of_a_journal_is_read_without_its_newline():
    assert sample_lines(Content(b"one\ntwo", [0]), JOURNALS)[0] == [b"one", b"two"]
    long = b"x" * 50 + b"\n" + b"y\n" * 50 + b"end"
    lines, samples = sample_lines(Content(long, [0, 51]), JOURNALS, SampleLimits(sample_bytes=10))
    assert lines[-1] == b"end"
    assert samples[-1].may_begin_amid


def test_a_journal_of_one_append_is_read_amid_as_well():
    """What a client appends first is one fragment, however large: nothing else begins amid."""
    content = b"".join(b"%05d\n" % n for n in range(1000))
    lines, samples = sample_lines(Content(content, [0]), JOURNALS, SampleLimits(sample_bytes=600))
    assert [(s.begin, s.end) for s in samples] == [
        (0, 600),
        (3000, 3600),
        (4500, 5100),
        (5400, 6000),
    ]
    assert {s.journal_bytes for s in samples} == {6000}
    assert {b"00000", b"00501", b"00751", b"00999"} <= set(lines) <= set(content.split(b"\n"))


def test_journals_are_spread():
    specs = [JournalSpec(name=f"j/{n:03}", replication=1) for n in range(100)]
    assert [s.name for s in spread(specs, 3)] == ["j/000", "j/049", "j/099"]
    assert spread(specs, 1) == specs[:1]
    assert spread(specs, 200) == specs
    lines, samples = sample_lines(Content(b"x\n", [0]), specs, SampleLimits(journals_max=5))
    assert (len(samples), lines.count(b"x")) == (5, 5)


def test_a_suspended_journal_is_not_asked_for():
    """No broker serves it, so that asking is an error."""
    suspended = JournalSpec(name="gone", replication=1, suspend=SuspendSpec(SuspendLevel.FULL, 99))
    lines, samples = sample_lines(Content(b"x\n", [0]), [suspended, *JOURNALS])
    assert lines
    assert {sample.journal for sample in samples} == {"a"}
    assert served([suspended, *JOURNALS]) == JOURNALS


def test_lines_longer_than_the_samples_are_reported():
    """Nothing to infer from would be said of a journal that is full."""
    source = Content(b"x" * 1000 + b"\n", [0])
    with pytest.raises(SchemaMismatch, match=r"no line ends within 100 bytes: .* \(--bytes\)"):
        require_whole_lines(*sample_lines(source, JOURNALS, SampleLimits(sample_bytes=100)))
    require_whole_lines(*sample_lines(source, JOURNALS, SampleLimits(sample_bytes=1000)))
    require_whole_lines([], [])
