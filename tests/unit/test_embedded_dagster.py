"""Dagster's processes: when they may start beside each other."""

from __future__ import annotations

import pytest

from gazette_platform.embedded.dagster import CODE_SERVER, DAEMON, WEBSERVER, dagster_components

DATABASES = ["history/runs.db", "history/runs/index.db", "schedules/schedules.db"]


def requires_of_the_daemon(home):
    found = dagster_components(
        home, port=1, code_port=2, environment={}, requires=("broker-1",), uses=()
    )
    return next(component.requires for component in found if component.name == DAEMON)


@pytest.mark.parametrize("missing", DATABASES)
def test_tables_of_a_new_home_are_made_by_one_process(tmp_path, missing):
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER, WEBSERVER)
    for database in set(DATABASES) - {missing}:
        (tmp_path / database).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / database).touch()
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER, WEBSERVER)
    (tmp_path / missing).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / missing).touch()
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER)
