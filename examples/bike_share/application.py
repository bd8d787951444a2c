"""The application: keeps the last rides of each bike, and publishes the loops that they make."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from examples.bike_share.pages import BikePages
from examples.bike_share.tables import SCHEMA, add_ride, in_database, make_tables
from gazette_platform.app import Application, Option
from gazette_platform.client import JournalWatch
from gazette_platform.consumer.store import SQLStore, sql_engine
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import ApplicationFailed
from gazette_platform.message import Flags, modulo_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection, Engine

    from examples.bike_share.tables import Row
    from gazette_platform.app import ServingProcess, Shard, Transaction
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope

__all__ = ["BikeShare"]

_TYPE: Final = "app.gazette.dev/message-type"
_COLUMNS: Final = 16

_NUMBER: Final = re.compile(r"[0-9]{1,9}")  # what pages and the column of a database take


class BikeShare(Application[SQLiteStore | SQLStore, list[str]]):
    """Finds loops: more than ten rides in a row that bring a bike back to where the first one began.

    A shard with a recovery log keeps rides in a SQLite of its own, one without in the database that all
    processes share.

    Args:
        engine: of that database, with its tables made by `init`; None: see ``--bikeshare.database``.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "bikeshare.database",
            str,
            None,
            "URL of the database of shards without a log: postgresql://USER:PASSWORD@HOST/NAME.",
        ),
    )

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine

    @override
    def configure(self, values: Mapping[str, Any]) -> None:
        if values["bikeshare.database"]:
            self._engine = sql_engine(values["bikeshare.database"])

    @override
    async def init(self, process: ServingProcess) -> None:
        if self._engine is not None:
            await asyncio.to_thread(make_tables, self._engine)
        rides = JournalWatch(process.client, f"{_TYPE}=bike_share.Ride")
        cycles = JournalWatch(process.client, f"{_TYPE}=bike_share.Cycle")
        for journals in (rides, cycles):
            await journals.start(process.tasks)
        self._cycle_mapping = modulo_mapping(_bike_of, cycles)
        pages = BikePages(process, modulo_mapping(str.encode, rides))
        process.add_pages(pages.add_to)

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> SQLiteStore | SQLStore:
        if recorder is not None:
            return SQLiteStore(recorder, schema=SCHEMA)
        if self._engine is None:
            raise ApplicationFailed(
                f"{shard.id} has no recovery log, so that it needs a database (--bikeshare.database)"
            )
        return SQLStore(self._engine, shard.fqn)

    @override
    async def consume(
        self, txn: Transaction[SQLiteStore | SQLStore], envelope: Envelope[list[str]]
    ) -> None:
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        ride, store = _ride_of(envelope), txn.store
        if isinstance(store, SQLiteStore):
            found = add_ride(store.db.execute, ride)
        else:
            found = await store.run(_add_ride, ride)
        if found:
            await txn.publisher.publish(self._cycle_mapping, _cycle(ride["bike_id"], found))


def _add_ride(connection: Connection, ride: Mapping[str, Any]) -> list[Row]:
    return add_ride(in_database(connection), ride)


def _ride_of(envelope: Envelope[list[str]]) -> dict[str, Any]:
    """Values of the table's columns. Raises: ApplicationFailed: the record is not a ride."""
    record = envelope.message
    if len(record) != _COLUMNS or not _NUMBER.fullmatch(record[12]):
        raise ApplicationFailed(
            f"{envelope.journal} at {envelope.begin}: expected a UUID and the 15 columns of a ride, of "
            f"which the 12th is the bike's number ({str(record)[:500]})"
        )
    return {
        "bike_id": int(record[12]),
        "uuid": record[0],
        "start_time": record[2],
        "end_time": record[3],
        "start_station": record[5],
        "end_station": record[9],
    }


def _cycle(bike_id: int, rides: list[Row]) -> dict[str, Any]:
    steps = [{"Time": time, "Station": station} for time, station, _, _ in rides]
    _, _, time, station = rides[-1]
    return {"BikeID": bike_id, "Steps": [*steps, {"Time": time, "Station": station}]}


def _bike_of(cycle: Mapping[str, Any]) -> bytes:
    return str(cycle["BikeID"]).encode()
