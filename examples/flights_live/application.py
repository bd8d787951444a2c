"""The application: joins each flight with what is known of its plane, and publishes it to the journal of its origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from examples.flights_live.messages import ENRICHED, MESSAGE_TYPE, Enriched, Flight, Plane
from gazette_platform.app import Application, ApplicationFailed, Flags, Mapped, SQLiteStore
from gazette_platform.client import JournalWatch
from gazette_platform.errors import ValidationError
from gazette_platform.message import JsonFraming

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.app import ServingProcess, Shard, Transaction
    from gazette_platform.client import ListSnapshot
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope
    from gazette_platform.message.framing import Unframing
    from gazette_platform.protocol import JournalSpec

__all__ = ["FlightsLive", "by_origin"]

_ORIGIN: Final = "origin"

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS planes (
    tailnum TEXT PRIMARY KEY, year INTEGER, manufacturer TEXT, model TEXT, seats INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS flown (
    tailnum TEXT PRIMARY KEY, flights INTEGER NOT NULL, dest TEXT, arr_delay INTEGER
) WITHOUT ROWID;
"""

_KEEP_PLANE: Final = "INSERT OR REPLACE INTO planes VALUES (?, ?, ?, ?, ?)"

_KNOWN: Final = """
SELECT flights, dest, arr_delay, year, manufacturer, model, seats
FROM (SELECT ? AS tailnum) LEFT JOIN flown USING (tailnum) LEFT JOIN planes USING (tailnum)
"""

# A flight that was cancelled says nothing of how late its plane is.
_FLOWN: Final = """
INSERT INTO flown VALUES (?, 1, ?, ?)
ON CONFLICT DO UPDATE SET
    flights = flights + 1, dest = excluded.dest, arr_delay = ifnull(excluded.arr_delay, arr_delay)
"""


class FlightsLive(Application[SQLiteStore, Flight | Plane]):
    """Enriches flights: each shard reads a journal of flights and the one of the same planes.

    A plane that is not known yet leaves its columns empty: flights do not wait.
    """

    @override
    async def init(self, process: ServingProcess) -> None:
        journals = JournalWatch(process.client, ENRICHED)
        await journals.start(process.tasks)
        self._mapping = by_origin(journals)

    @override
    def framing(self, journal: JournalSpec) -> Unframing[Flight | Plane]:
        kind = journal.labels.value_of(MESSAGE_TYPE)
        if kind == "flights_live.Flight":
            return JsonFraming(message_type=Flight)
        if kind == "flights_live.Plane":
            return JsonFraming(message_type=Plane)
        raise ValidationError(
            f"{journal.name} must say flights_live.Flight or flights_live.Plane ({kind!r})",
            path=f"label {MESSAGE_TYPE}",
        )

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> SQLiteStore:
        if recorder is None:
            raise ApplicationFailed(
                f"{shard.id} needs a recovery log: give it a recovery_log_prefix"
            )
        return SQLiteStore(recorder, schema=_SCHEMA)

    @override
    async def consume(
        self, txn: Transaction[SQLiteStore], envelope: Envelope[Flight | Plane]
    ) -> None:
        message = envelope.message
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        if isinstance(message, Plane):
            _keep(txn.store, message)
        else:
            await txn.publisher.publish(self._mapping, _enriched(txn.store, message))


def _keep(store: SQLiteStore, plane: Plane) -> None:
    values = (plane.tailnum, plane.year, plane.manufacturer, plane.model, plane.seats)
    store.db.execute(_KEEP_PLANE, values)


def _enriched(store: SQLiteStore, flight: Flight) -> Enriched:
    """The flight with what the state has of its plane; it becomes the plane's last flight."""
    found = Enriched.of(flight)
    if flight.tailnum is None:
        return found
    (row,) = store.db.execute(_KNOWN, (flight.tailnum,))
    before, found.former_dest, found.former_arr_delay, built, *plane = row
    found.plane_flight = (before or 0) + 1
    found.plane_age = None if built is None else int(flight.departs_at[:4]) - built
    found.manufacturer, found.model, found.seats = plane
    store.db.execute(_FLOWN, (flight.tailnum, flight.dest, flight.arr_delay))
    return found


def by_origin(partitions: Callable[[], ListSnapshot]) -> Callable[[Enriched], Mapped]:
    """Maps a flight to the journal whose label `origin` is its own.

    So a table of these journals has the origin as a partition column, and a query of one airport reads no
    other's fragments.
    """
    known: tuple[ListSnapshot | None, dict[str, Mapped]] = (None, {})

    def mapping(flight: Enriched) -> Mapped:
        nonlocal known
        listed, (former, journals) = partitions(), known
        if listed is not former:
            journals = {
                one.spec.labels.value_of(_ORIGIN): Mapped(
                    one.name, one.spec.labels.value_of("content-type")
                )
                for one in listed
            }
            known = listed, journals
        if flight.origin not in journals:
            raise ApplicationFailed(
                f"flight {flight.carrier}{flight.flight} departs from {flight.origin!r}, which no journal of "
                f"{ENRICHED} has as its label {_ORIGIN}: apply one"
            )
        return journals[flight.origin]

    return mapping
