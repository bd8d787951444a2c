"""All of the example at once, on a platform that is up: ``python -m examples.flights_live.tour``.

It applies the specs, starts a consumer, plays flights into its journals, kills it half-way, and starts another one. Then it
has the tables hold what was published, waits for the rollups, and compares what Trino and Spark say with what was played.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from examples.flights_live import tables
from examples.flights_live.data import dataset, flights_of, planes_of
from examples.flights_live.messages import ENRICHED, FLIGHTS, PLANES
from examples.flights_live.player import play
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.errors import GazetteError, LakeError, SetupError
from gazette_platform.lake import LakeSettings, TrinoSession, running_session
from gazette_platform.message import Flags, read_committed, read_uncommitted
from gazette_platform.testing.servers import ConsumerServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.flights_live.messages import Flight
    from examples.flights_live.tables import Ask, Row, Told
    from gazette_platform.message import CommittedReader, UncommittedReader

__all__ = ["Report", "Tour", "published"]

FOLDER: Final = Path(__file__).parent
TABLE: Final = "flights_live.enriched"
QUESTIONS: Final = ("late_planes", "manufacturers")
"""Queries of the folder ``sql`` that are asked in both engines."""

_GROUP: Final = "/examples/flights-live"
# Until a killed process is known to be gone: what one waits for in vain is short, and no busy machine misses it.
_LEASE_S: Final = 8.0
_CONSUMED_TIMEOUT_S: Final = 180.0
# Dagster looks twice a minute, one rollup needs Spark, and the machine may be busy with other things.
_ROLLUPS_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of it."""

    played: int
    committed: int = 0
    """Flights that readers of committed messages get."""
    appended: int = 0
    """With those of transactions that were taken back."""
    trino: Told | None = None
    spark: Told | None = None
    answers: dict[str, list[Row]] = field(default_factory=dict)
    """Of Trino, to each of the questions."""
    agreed: list[str] = field(default_factory=list)
    """Questions to which Spark gave the same answer."""

    @property
    def is_ok(self) -> bool:
        """Whether each flight is everywhere, once, and the engines agree."""
        told = self.trino
        if told is None or told != self.spark or len(self.agreed) != len(QUESTIONS):
            return False
        # Of the raw table, so of all that was appended.
        rollups = {"lines": self.appended, "planes": self.played, "routes": self.played}
        return (
            self.committed == told.typed == self.played
            and told.raw_flights == self.appended
            and told.planes_wrong == 0
            and told.rollups == rollups
        )

    def compare(self, trino: Ask, spark: Ask) -> None:
        """Ask both engines the same. Raises: LakeError: a table is not there."""
        self.trino = tables.ask(trino, tables.RAW_IN_TRINO)
        self.spark = tables.ask(spark, tables.RAW_IN_SPARK)
        for name in QUESTIONS:
            sql = tables.load(name)
            rows = self.answers[name] = trino(sql)
            if rows and rows == spark(sql):
                self.agreed.append(name)

    def line(self) -> str:
        """The last line."""
        told = {"trino": self.trino, "spark": self.spark}
        typed = " ".join(f"{name}={each.typed if each else 0}" for name, each in told.items())
        return (
            f"flights-live: {'ok' if self.is_ok else 'FAILED'} played={self.played} "
            f"enriched={self.committed} taken_back={self.appended - self.committed} {typed} "
            f"rollups={len(self.trino.rollups) if self.trino else 0}"
        )


class Tour:
    """The steps, on a platform that is up.

    Args:
        settings: of its lake.
        etcd: its address.
        folder: for the files of consumers.

    Raises: SetupError: the platform lacks a part.
    """

    def __init__(self, settings: LakeSettings, etcd: str, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._etcd = etcd
        self._trino = TrinoSession(settings.required("trino"))
        if not settings.dagster:
            raise SetupError("rollups are made by Dagster: start the platform without --without")

    def run(self, flights: Sequence[Flight], per_second: float) -> Report:
        """All steps in order. Raises: GazetteError: a step failed."""
        report = Report(played=len(flights))
        asyncio.run(self._stream(flights, per_second, report))
        _gazctl("lake", "flush", TABLE)
        self._await_rollups(report)
        self._compare(report)
        return report

    # ------------------------------------------------------------------------------- streaming
    async def _stream(self, flights: Sequence[Flight], per_second: float, report: Report) -> None:
        async with AsyncClient(ClientConfig(address=self._settings.broker)) as client:
            if await client.list("prefix=examples/flights-live/"):
                raise SetupError(
                    "there are journals examples/flights-live/ already: start a platform with another --root"
                )
            _gazctl("journals", "apply", "--specs", str(FOLDER / "journals.yaml"))
            self._apply_tables()
            with ExitStack() as stack:
                first, second = self._consumer("consumer-one"), self._consumer("consumer-two")
                for consumer in (first, second):
                    stack.callback(consumer.kill)
                await self._consume(client, first, second, flights, per_second)
                await asyncio.to_thread(second.stop)
            report.committed, report.appended = await published(client)
        taken_back = report.appended - report.committed
        _say(f"{report.committed:,} enriched flights are committed, and {taken_back:,} taken back")

    async def _consume(
        self,
        client: AsyncClient,
        first: ConsumerServer,
        second: ConsumerServer,
        flights: Sequence[Flight],
        per_second: float,
    ) -> None:
        """Play while the first consumer is killed, and the second goes on; until all is consumed."""
        await asyncio.to_thread(first.start)
        specs = str(FOLDER / "shards.yaml")
        _gazctl("shards", "apply", "--specs", specs, "--consumer.address", first.address)
        await play(client, PLANES, planes_of(dataset()))
        await _read_through(client, first, PLANES)
        _say("the consumer knows all planes")
        half = asyncio.Event()

        def on_played(count: int) -> None:
            if count > len(flights) // 2:
                half.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                _ = tasks.create_task(
                    play(client, FLIGHTS, flights, per_second=per_second, on_played=on_played)
                )
                await half.wait()
                await asyncio.to_thread(first.kill)
                _say("killed the consumer while flights come in, and started another")
                await asyncio.to_thread(second.start)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        await _read_through(client, second, FLIGHTS)
        _say(f"played {len(flights):,} flights, and all are consumed")

    def _apply_tables(self) -> None:
        """Before Dagster loads its definitions, which it does as specs come."""
        rollups = self._settings.required("rollups")
        shutil.copytree(FOLDER / "rollups", rollups, dirs_exist_ok=True)
        _say(f"copied the rollups to {rollups}")
        _gazctl("lake", "apply", str(FOLDER / "table.yaml"))

    def _consumer(self, name: str) -> ConsumerServer:
        return ConsumerServer(
            self._folder / name,
            program=(sys.executable, "-m", "examples.flights_live"),
            etcd=self._etcd,
            prefix=_GROUP,
            broker=self._settings.broker,
            consumer_id=name,
            lease_s=_LEASE_S,
        )

    # ------------------------------------------------------------------------------------ lake
    def _await_rollups(self, report: Report) -> None:
        """Wait until Dagster has made the rollups of all that was published."""
        _say("waiting for the rollups, which Dagster makes by Trino and Spark …")
        wanted = {"lines": report.appended, "planes": report.played, "routes": report.played}
        deadline = time.monotonic() + _ROLLUPS_TIMEOUT_S
        last: object = None
        while time.monotonic() < deadline:
            try:
                last = tables.rollup_flights(self._trino.query)
            except LakeError as err:
                last = err
            if last == wanted:
                return
            time.sleep(_POLL_S)
        raise LakeError(
            f"the rollups are not made of all flights after {_ROLLUPS_TIMEOUT_S:g} s: {last} (see the runs on "
            "Dagster's pages)"
        )

    def _compare(self, report: Report) -> None:
        """Ask both engines, and show what they say."""
        with running_session(self._settings) as spark:
            report.compare(self._trino.query, tables.in_spark(spark))
        for name, told in (("Trino", report.trino), ("Spark", report.spark)):
            assert told is not None
            rollups = ", ".join(f"{n} {count:,}" for n, count in told.rollups.items())
            _say(
                f"{name}: {told.raw_lines:,} lines in the raw table, {told.raw_flights:,} of them flights; "
                f"{told.typed:,} in the typed table; flights of rollups: {rollups}"
            )
        for question, rows in report.answers.items():
            _say(f"{question}, of a rollup:")
            for row in rows:
                typer.echo("    " + "  ".join(f"{value!s:<16}" for value in row).rstrip())


async def _read_through(client: AsyncClient, consumer: ConsumerServer, selector: str) -> None:
    """Wait until all of these journals is consumed. Raises: GazetteError: it is not in time."""
    heads = {each.name: await client.write_head(each.name) for each in await client.list(selector)}
    config = ClientConfig(address=consumer.address, retry_timeout_s=_CONSUMED_TIMEOUT_S)
    async with ShardClient(config) as shards:
        for shard in await shards.list():
            _ = await shards.stat(shard.id, heads, timeout_s=_CONSUMED_TIMEOUT_S)


async def published(client: AsyncClient) -> tuple[int, int]:
    """Flights that are committed, and all that were appended."""
    committed = appended = 0
    for journal in await client.list(ENRICHED):
        committed += await _flights(await read_committed(client, journal.name))
        appended += await _flights(await read_uncommitted(client, journal.name))
    return committed, appended


async def _flights(reader: CommittedReader[Any] | UncommittedReader[Any]) -> int:
    """How many it reads, without acknowledgements."""
    count = 0
    async with reader:
        async for batch in reader:
            count += sum(each.uuid.flags != Flags.ACK_TXN for each in batch)
    return count


def _gazctl(*arguments: str) -> None:
    """Run a command, and show it. Raises: SetupError: it failed."""
    typer.echo(f"$ gazctl {shlex.join(arguments)}")
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", *arguments]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)  # noqa: S603  one of ours
    if done.returncode:
        raise SetupError(f"gazctl {shlex.join(arguments)} failed: see above")


def _say(text: str) -> None:
    typer.echo(f"* {text}")


def main(
    flights: Annotated[int, typer.Option("--flights", help="How many, from New Year.")] = 20_000,
    per_second: Annotated[float, typer.Option("--per-second", help="Flights that are played.")] = (
        2_000
    ),
) -> None:
    """Enrich flights live, and compare what Trino and Spark have of them in the end."""
    etcd = os.environ.get("ETCD_ADDRESS", "")
    try:
        if not etcd:
            raise SetupError('no ETCD_ADDRESS: `eval "$(gazette env --root platform)"` sets it')
        with tempfile.TemporaryDirectory(prefix="flights-live-") as folder:
            tour = Tour(LakeSettings.from_environment(os.environ), etcd, Path(folder))
            report = tour.run(flights_of(dataset(), flights), per_second)
    except GazetteError as err:
        typer.echo(f"flights-live: error: {err}", err=True)
        raise typer.Exit(1) from None
    typer.echo(report.line())
    if not report.is_ok:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
