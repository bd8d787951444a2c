"""Tokens survive their way, whatever they claim; events are the same, however content is cut."""

from __future__ import annotations

import base64
import string

from hypothesis import given, strategies as st

from gazette_platform.broker.api.gateway import EventStream
from gazette_platform.broker.api.gateway_messages import ReadQuery
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import Label, LabelSelector, LabelSet
from gazette_platform.protocol.auth import Claims, KeyRing, Unauthenticated

words = st.text(string.ascii_letters + string.digits + "-_+/.", min_size=2, max_size=8)
label_sets = st.lists(st.builds(Label, words, words | st.just(""), st.booleans()), max_size=4).map(
    lambda labels: LabelSet(tuple(sorted(set(labels))))
)
claims = st.builds(
    Claims, st.integers(0, (1 << 32) - 1), st.builds(LabelSelector, label_sets, label_sets)
)
keys = st.binary(min_size=2, max_size=64).map(lambda key: base64.b64encode(key).decode())


@given(claims, st.lists(keys, min_size=1, max_size=3), st.integers(0, 2), st.integers(1, 10**6))
def test_claims_survive_signing_and_verifying(made, ring, at, lifetime_s):
    signer = ring[at % len(ring)]
    token = KeyRing(signer).sign(made, now=1000.5, lifetime_s=lifetime_s)
    read = Claims.from_payload(KeyRing(" ".join(ring)).verify(token))
    assert read == Claims(made.capability, made.selector, 1000 + lifetime_s)


@given(claims, st.integers(0), st.integers(1, 255))
def test_no_byte_of_a_token_may_change(made, at, change):
    ring = KeyRing("c2VjcmV0")
    token = bytearray(ring.sign(made, now=1000, lifetime_s=60).encode())
    at %= token.rindex(b".")
    token[at] ^= change
    try:
        ring.verify(token.decode("latin-1"))
    except Unauthenticated:
        return
    raise AssertionError(f"verifies with byte {at} changed")


@given(st.text(max_size=40))
def test_whatever_is_sent_as_a_token_is_refused_in_order(token):
    try:
        KeyRing("c2VjcmV0").verify(token)
    except Unauthenticated:
        return
    raise AssertionError("verifies")


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xc3\xa9", b"\xff", b"data: "]), max_size=30),
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.integers(0, 1 << 40),
)
def test_events_are_the_same_however_content_is_cut(parts, sizes, offset):
    content = b"".join(parts)
    whole, cut = EventStream(offset), EventStream(offset)
    events, at, step = [], 0, 0
    while at < len(content):
        size = sizes[step % len(sizes)]
        events += cut.feed(content[at : at + size])
        at, step = at + size, step + 1
    joined = b"".join(events)
    assert joined == b"".join(whole.feed(content))
    # One event a line, and the last id is the offset after the last whole line.
    assert joined.count(b"\n\n") == content.count(b"\n")
    ids = [int(line[4:]) for line in joined.split(b"\n") if line.startswith(b"id: ")]
    ends = [offset + n + 1 for n, byte in enumerate(content) if byte == ord("\n")]
    assert ids == ends


@given(st.lists(st.tuples(st.sampled_from(["offset", "block"]) | st.text(), st.text()), max_size=3))
def test_any_query_is_taken_or_refused(pairs):
    try:
        query = ReadQuery.parse(pairs)
    except ValidationError:
        return
    assert isinstance(query.offset, int)
    assert isinstance(query.block, bool)
