"""Shared fixtures, and the rule of a run: no server is skipped in silence."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import Phase, settings

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.etcd import find_etcd
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

# Spark's JVM is forked from a process that has used gRPC, whose fork handlers may break the child.
# gRPC looks here when its first channel is made; nothing forks to go on with it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# JVMs of tests live for a minute or two, in which their better compiler costs half of a machine's work and
# gives nothing back.
os.environ.setdefault("GAZETTE_TRINO_JVM_OPTIONS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark_conf")))

# Platforms of tests are remembered apart from those of the user, and of other processes of a run.
_state = tempfile.TemporaryDirectory(prefix="gazette-state-")
os.environ["XDG_STATE_HOME"] = _state.name

# What a script starts in the background, as tools/test_all does, ignores SIGINT, which tests send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes long says something of the machine, not of the code.
# (`ci` is hypothesis' own: the same examples each time.)
settings.register_profile("house", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=10_000)
# For another interpreter, where what is wrong is wrong of most examples.
settings.register_profile("brief", settings.get_profile("ci"), max_examples=20)
# For tools/broken_clone.py: a simpler example would take minutes, and no one reads it.
settings.register_profile(
    "first_fault", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "house")
)

pytest_plugins = ("gazette_platform.testing.plugin", "outcomes", "shared_servers")

# A folder is a tier (tests/README.md). Tests with these marks start servers that only these tiers may start.
_TIERS: Final = {
    "e2e": ("e2e",),
    "spark": ("e2e", "extended", "platform", "proof"),
    "trino": ("e2e", "extended", "platform", "proof"),
    "hive": ("e2e", "extended", "platform", "proof"),
    "s3": ("e2e", "extended"),
    "azure": ("e2e", "extended"),
    "gcs": ("e2e", "extended"),
    "browser": ("e2e", "extended"),
    "platform": ("platform",),
}
# Tests with these marks start real programs.
_SERVER_MARKS = frozenset(
    {"etcd", "s3", "azure", "gcs", "hive", "trino", "spark", "e2e", "browser", "platform"}
)

_conformance: defaultdict[str, Counter[str]] = defaultdict(Counter)


def pytest_configure() -> None:
    """Stop the servers first if the run is terminated, as on Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write golden transcripts again; look at the difference",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark, folders in _TIERS.items():
            if item.get_closest_marker(mark) is not None and item.path.parent.name not in folders:
                raise pytest.UsageError(f"{item.nodeid}: marked {mark}, and not in {folders}")
        _scale_timeout(config, item)


def _scale_timeout(config: pytest.Config, item: pytest.Item) -> None:
    """Let the timeout of a test follow GAZETTE_TEST_PATIENCE, except one of the command line."""
    if patient(1.0) == 1.0 or config.getoption("timeout", None) is not None:
        return
    mark = item.get_closest_marker("timeout")
    options = dict(mark.kwargs) if mark is not None else {}
    if mark is not None and mark.args:
        options["timeout"] = mark.args[0]
    limit_s = float(options.get("timeout", config.getini("timeout") or 0))
    item.add_marker(pytest.mark.timeout(**options | {"timeout": patient(limit_s)}), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under GAZETTE_REQUIRE_SERVERS=1 (`make test`) a server or library that is missing fails its tests."""
    report = yield
    if report.skipped and call.excinfo is not None:
        why = call.excinfo.value
        needs_server = any(mark.name in _SERVER_MARKS for mark in item.iter_markers())
        if needs_server or str(why).startswith("could not import"):  # as `importorskip` says
            _allow_no_skip(report, why)
    server = getattr(getattr(item, "cls", None), "served_by", "")
    if server and report.when == "call":
        _conformance[server][report.outcome] += 1
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which real server stood after each kind of store."""
    if _conformance:
        terminalreporter.section("conformance of stores")
    for server, outcomes in sorted(_conformance.items()):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        terminalreporter.line(f"{server}: {counts}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """So does a library whose lack skips a whole module."""
    report = yield
    if report.skipped:
        _allow_no_skip(report, report.longrepr)
    return report


def _allow_no_skip(report: pytest.TestReport | pytest.CollectReport, why: object) -> None:
    if os.environ.get("GAZETTE_REQUIRE_SERVERS") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, but GAZETTE_REQUIRE_SERVERS=1 allows no skip here: {why}"


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """The etcd of the environment or of PATH, else the one that the platform installs itself."""
    found = find_etcd()
    if found is not None:
        return found
    from gazette_platform.platform import tools

    return tools.etcd()


@pytest.fixture(scope="session")
def sturdy_etcd_binary() -> Path:
    """An etcd that may be killed and started again: the environment's, or Debian's.

    The 3.5.1 that the platform installs itself has known faults in that.
    """
    found = os.environ.get("GAZETTE_ETCD") or shutil.which("etcd")
    if not found:
        pytest.skip("needs Debian's etcd-server (apt-get install etcd-server, or GAZETTE_ETCD)")
    return Path(found)


@pytest.fixture
async def tasks() -> AsyncGenerator[TaskGroup]:
    """Owns the tasks of a test, and ends those that are left; none may have failed."""
    group = TaskGroup("test")
    yield group
    await group.close()
    assert group.failure is None
