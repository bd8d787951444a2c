"""`gazctl` starts without what only some of its commands need, and what only servers do."""

from __future__ import annotations

import subprocess
import sys

SLOW = (
    "aiohttp",
    "boto3",
    "botocore",
    "cramjam",
    "cryptography",
    "dagster",
    "duckdb",
    "google.auth",
    "google.cloud",
    "importlib.metadata",
    "jwt",
    "obstore",
    "prometheus_client",
    "pydantic",
)
SLOW += ("gazette_platform.message", "msgspec", "pyarrow", "rich.progress", "yaml")


def test_gazctl_imports_nothing_slow_that_it_may_not_need():
    program = "import sys, gazette_platform.cli.gazctl; print(*sys.modules, sep='\\n')"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ended.stdout.split())
    assert "gazette_platform.cli.gazctl" in loaded
    assert loaded.isdisjoint(SLOW), loaded & set(SLOW)
