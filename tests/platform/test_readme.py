"""README.md's quick start, as it is written there, at this platform."""

from __future__ import annotations

import json
import re


def test_commands_run_as_written(readme_commands, platform):
    done = readme_commands
    assert done.returncode == 0, done.stderr
    assert f"using the platform in {platform.layout.root}" in done.stderr
    assert "shop.clicks: new" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["/docs", "3", "120"] in lines
    assert ["7", "4"] in lines
    visitors = [
        json.loads(line)["visitor"] for line in done.stdout.splitlines() if line.startswith("{")
    ]
    assert visitors == ["ada", "ada", "grace", "linus", "grace", "ada", "barbara"]


def test_platform_is_what_the_readme_says(platform):
    names = platform.endpoints
    for address in (names.broker, names.etcd, names.metastore, names.trino, names.dagster):
        assert re.fullmatch(r"[a-z]+://127\.0\.0\.1:\d+", address)
