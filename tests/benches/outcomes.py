"""A plugin of pytest: writes the outcome of each test to the file that `tools/run_tests.py` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


# Taken out, so that neither workers nor a pytest that a test starts write to it.
_REPORT = os.environ.pop("GAZETTE_TEST_REPORT", "")


def pytest_collection_finish(session: pytest.Session) -> None:
    _report(collected=len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: Sequence[str]) -> None:
    """Report the count that each worker has collected."""
    _report(collected=len(ids))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write each outcome to the file that `tools/run_tests.py` reads."""
    _report(
        test=report.nodeid,
        when=report.when,
        outcome=report.outcome,
        seconds=round(report.duration, 4),
    )


def _report(**row: object) -> None:
    if _REPORT:
        with Path(_REPORT).open("a", encoding="utf-8") as report:
            report.write(json.dumps(row) + "\n")
