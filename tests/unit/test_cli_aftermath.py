"""How many brokers a journal needs."""

from __future__ import annotations

import pytest

from gazette_platform.cli.aftermath import wanted_replicas
from gazette_platform.protocol import JournalSpec, SuspendLevel, SuspendSpec


@pytest.mark.parametrize(
    ("level", "expected"),
    [(None, 3), (SuspendLevel.NONE, 3), (SuspendLevel.PARTIAL, 1), (SuspendLevel.FULL, 0)],
)
def test_suspended_journals_need_fewer_brokers(level, expected):
    suspend = None if level is None else SuspendSpec(level, 7)
    assert wanted_replicas(JournalSpec("a/one", 3, suspend=suspend)) == expected
