"""Limits of processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

_RAISED = """
import resource, sys
from gazette_platform.ops.process import raise_file_limit
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
told = raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (told, hard)
print(told)
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 1000, 1000), (500, 500, 500)])
def test_files_are_allowed_up_to_the_hard_limit(soft, hard, raised):
    command = [sys.executable, "-c", _RAISED, str(soft), str(hard)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(run.stdout) == raised
