"""What users import: one surface, which costs nothing until it is used."""

import subprocess
import sys

import pytest

import gazette_platform
from gazette_platform import client, message
from gazette_platform.lake.engines import duckdb


def test_all_of_client_and_message_is_exported():
    """A name that client or message has got has to be added to ``gazette_platform/__init__.py``."""
    assert set(gazette_platform.__all__) == {*client.__all__, *message.__all__, "connect"}
    for name in gazette_platform.__all__:
        homes = [home for home in (client, message, duckdb) if name in home.__all__]
        assert getattr(gazette_platform, name) is getattr(homes[0], name)
    with pytest.raises(AttributeError, match="no attribute 'topic'"):
        _ = gazette_platform.topic


def test_the_package_alone_imports_neither():
    script = "import gazette_platform, sys; print('gazette_platform.client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
