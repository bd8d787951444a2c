"""`gazctl` starts without what only some of its commands need, and what only servers do."""

from __future__ import annotations

import subprocess
import sys

import pytest

VERBS = (
    "journals.append",
    "journals.specs",
    "journals.prune",
    "journals.read",
    "savepoints",
    "sql",
)
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
SLOW += ("gazette_platform.message", "msgspec", "pyarrow", "rich.console", "yaml")

# What a query needs none of. Whatever of it comes in delays each first answer.
NOT_FOR_A_QUERY = (
    "aiohttp",
    "dagster",
    "gazette_platform.cli.gazctl.journals.specs",
    "gazette_platform.cli.gazctl.journals.read",
    "gazette_platform.hive",
    "gazette_platform.lake.inference.infer",
    "gazette_platform.lake.raw.registration",
    "gazette_platform.lake.raw.repair",
    "gazette_platform.stores",
    "numpy",
    "obstore",
    "pandas",
    "pydantic",
    "pyiceberg",
    "rich.console",
    "thrift",
)


@pytest.mark.parametrize(
    ("noun", "verb", "module"),
    [
        ("journals", "list", "journals.specs"),
        ("journals", "append", "journals.append"),
        ("journals", "read", "journals.read"),
        ("savepoints", "get", "savepoints"),
        ("lake", "list", "lake.commands"),
    ],
)
def test_a_command_imports_nothing_slow_that_it_may_not_need(noun, verb, module):
    program = (
        "import sys, typer.main; from gazette_platform.cli.gazctl import app\n"
        f"command = typer.main.get_command(app).commands[{noun!r}].commands[{verb!r}]\n"
        "print(*sys.modules, sep='\\n')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ended.stdout.split())
    assert loaded.isdisjoint(SLOW), loaded & set(SLOW)
    package = "gazette_platform.cli.gazctl."
    ours = {name.removeprefix(package) for name in loaded if name.startswith(package)}
    assert module in ours
    assert ours.isdisjoint({*VERBS} - {module}), "modules of other verbs"


def test_a_query_imports_nothing_that_it_does_not_need(tmp_path):
    """One over no table, which asks no broker, and one over a table as far as its rows' parser."""
    (tmp_path / "orders.yaml").write_text(
        "{name: shop.orders, selector: name=orders, format: json, columns: [{name: id, type: int}]}"
    )
    program = (
        "import contextlib, sys; from gazette_platform.cli.gazctl import main\n"
        f"sys.argv = ['gazctl', 'sql', 'SELECT 1', '-o', 'csv', '--tables', {str(tmp_path)!r}]\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "import gazette_platform.lake.engines.duckdb.dataset\n"
        "print(*(name for name, module in sys.modules.items() if module), sep='\\n')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ended.stdout.split())
    assert {"duckdb", "pyarrow.dataset", "gazette_platform.lake.reading.raw_rows"} <= loaded
    assert loaded.isdisjoint(NOT_FOR_A_QUERY), loaded & set(NOT_FOR_A_QUERY)


def test_a_broker_holds_no_memory_for_what_few_brokers_do():
    """Consumers are asked by the console of a broker that was given their addresses, and the lake by nothing in it."""
    program = "import sys, gazette_platform.broker.serve, gazette_platform.console\nprint(*sys.modules, sep='\\n')"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ended.stdout.split())
    assert "gazette_platform.console.shards_and_tables" in loaded
    for package in ("consumer", "lake", "platform", "spark", "kafka.gateway"):
        assert f"gazette_platform.{package}" not in loaded
    assert loaded.isdisjoint({"boto3", "botocore", "dagster", "obstore", "pyarrow", "rich.console"})
