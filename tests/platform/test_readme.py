"""README.md's section "Your own data", as it is written there."""

from __future__ import annotations

import re

from sales import README_ORDERS


def test_commands_run_as_written(readme_commands):
    done = readme_commands
    assert done.returncode == 0, done.stderr
    assert "shop.orders: new" in done.stderr
    total = sum(each["amount"] for each in README_ORDERS)
    table = [line.split() for line in done.stdout.splitlines()[-2:]]
    assert table[1] == ["eu", str(total)]


def test_platform_is_what_the_readme_says(platform):
    names = platform.endpoints
    for address in (names.broker, names.etcd, names.metastore, names.trino, names.dagster):
        assert re.fullmatch(r"[a-z]+://127\.0\.0\.1:\d+", address)
