import pytest

from gazette_platform.errors import Desynchronized
from gazette_platform.message import (
    FIXED_MAGIC,
    frame_fixed,
    split_fixed,
)


def test_fixed_frames_are_those_of_gazette():
    assert frame_fixed(b"foo") == bytes.fromhex("66339336 03000000 666f6f")
    assert frame_fixed(b"") == FIXED_MAGIC + bytes(4)


@pytest.mark.parametrize("cut", range(1, 30))
def test_fixed_frames_come_back_from_any_cut(cut):
    content = frame_fixed(b"foo") + frame_fixed(b"") + frame_fixed(b"barbaz")
    first, rest = split_fixed(content[:cut])
    second, rest = split_fixed(rest + content[cut:])
    assert first + second == [b"foo", b"", b"barbaz"]
    assert rest == b""
    assert split_fixed(content, has_headers=True)[0][0] == frame_fixed(b"foo")


def test_lost_place_is_reported_with_the_next_magic():
    with pytest.raises(Desynchronized, match=r"byte 11: found 67617262.*next magic is at byte 18"):
        split_fixed(frame_fixed(b"foo") + b"garbage" + frame_fixed(b"bar"))
    with pytest.raises(Desynchronized, match="no magic follows"):
        split_fixed(b"\n")
    with pytest.raises(Desynchronized, match="length up to"):
        split_fixed(FIXED_MAGIC + b"\xff\xff\xff\xff")
