"""A plugin of pytest for `tools/run_tests.py`: writes the outcome of each test to the file that it reads.

Under pytest-xdist it also makes reports of any text serializable.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


def pytest_collection_finish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        _report(collected=len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: Sequence[str]) -> None:
    """Report the count that each worker has collected."""
    _report(collected=len(ids))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Replace lone surrogates, which tests log on purpose: xdist ends a worker that sends one."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_encodable(key): _encodable(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(_encodable, value))
    return value


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write each outcome to the file that `tools/run_tests.py` reads."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _report(
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=round(report.duration, 4),
        )


def _report(**row: object) -> None:
    path = os.environ.get("GAZETTE_TEST_REPORT")
    if path:
        with Path(path).open("a", encoding="utf-8") as report:
            report.write(json.dumps(row) + "\n")
