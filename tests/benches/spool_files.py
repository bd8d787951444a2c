"""Fragments of a tenure, as a broker writes and records them."""

from __future__ import annotations

import os

from gazette_platform.broker.spool.disk import place_of, write_all
from gazette_platform.broker.spool.head_records import FragmentState
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, LabelSet


def say_made_here(home):
    """Have the copy of a home pass for its original, as one that was made block by block."""
    fds = [os.open(path, os.O_RDONLY) for path in (home, home / "heads")]
    (home / "place").write_text(place_of(*fds))
    for fd in fds:
        os.close(fd)


def crash_home(home):
    """As if the process that holds a home had ended: the lock is free, and nothing is tidied up."""
    os.close(home._lock_fd)
    os.close(home._heads_fd)
    home._lock_fd = home._heads_fd = -1


def state_of(begin, end, registers=None, **options):
    values = {
        "codec": CompressionCodec.NONE,
        "first_append_us": 1_700_000_000_000_001,
        "synced_to": begin,
        "digested_to": begin,
        "digest": ZERO_SUM,
        "is_durable": False,
    } | options
    return FragmentState(begin, end, registers or LabelSet(), **values)


def put(tenure, content, begin=0, registers=None, **options):
    """Write a fragment, and record all of it. Returns: its file."""
    file = tenure.content_file(begin)
    write_all(file.fd, content, 0)
    tenure.record(file.ordinal, state_of(begin, begin + len(content), registers, **options))
    return file
