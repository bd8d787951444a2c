"""A JVM that gets orders: what is left when it cannot start."""

from pathlib import Path

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import Jvm

OPEN = Path("/proc/self/fd")


def test_a_jvm_that_cannot_start_leaves_no_file_open(tmp_path):
    before = set(OPEN.iterdir())
    with pytest.raises(SetupError, match="did not start") as caught:
        Jvm(java_home=tmp_path, classpath=[]).open()
    assert caught.value.__traceback__, "holds the frame, and by it what it opened"
    assert set(OPEN.iterdir()) <= before
