"""Memory settings of servers."""

from __future__ import annotations

import subprocess
import sys

_FREED_BUFFERS_STAY = """
import os, resource
from gazette_platform.ops.memory import settle_memory

def faults(rounds=50, size=1 << 20):
    for _ in range(rounds):
        bytearray(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        bytearray(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

settle_memory()
import gc
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
print(faults())
"""


def test_buffers_of_content_are_not_faulted_in_again():
    run = subprocess.run(
        [sys.executable, "-c", _FREED_BUFFERS_STAY], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 50  # 256 a MiB, were it mapped each time
