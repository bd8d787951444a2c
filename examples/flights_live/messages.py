"""Messages of the journals: flights and planes as they come, and flights as they go out.

A journal's label ``app.gazette.dev/message-type`` says which of them it holds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

__all__ = ["ENRICHED", "FLIGHTS", "MESSAGE_TYPE", "PLANES", "Enriched", "Flight", "Plane"]

MESSAGE_TYPE: Final = "app.gazette.dev/message-type"

FLIGHTS: Final = f"{MESSAGE_TYPE}=flights_live.Flight"
PLANES: Final = f"{MESSAGE_TYPE}=flights_live.Plane"
ENRICHED: Final = f"{MESSAGE_TYPE}=flights_live.Enriched"


@dataclass(slots=True, kw_only=True)
class Plane:
    """What is known of a plane."""

    UUID: str = ""
    tailnum: str = ""
    year: int | None = None
    """In which it was built."""
    manufacturer: str | None = None
    model: str | None = None
    seats: int | None = None


@dataclass(slots=True, kw_only=True)
class Flight:
    """A departure; delays are in minutes, and early is negative."""

    UUID: str = ""
    tailnum: str | None = None
    """Of the plane; None for most flights that were cancelled."""
    departs_at: str = ""
    """Scheduled: ISO 8601, in UTC."""
    carrier: str = ""
    flight: int = 0
    origin: str = ""
    dest: str = ""
    distance: int | None = None
    """Miles."""
    dep_delay: int | None = None
    """None: the flight was cancelled."""
    arr_delay: int | None = None


@dataclass(slots=True, kw_only=True)
class Enriched(Flight):
    """A flight with what is known of its plane, and of that one's flights before."""

    plane_flight: int | None = None
    """Which of the plane's flights it is, from 1; None without a tail number."""
    former_dest: str | None = None
    """Where the flight before went."""
    former_arr_delay: int | None = None
    """How late the last one arrived that did."""
    plane_age: int | None = None
    """Years."""
    manufacturer: str | None = None
    model: str | None = None
    seats: int | None = None

    @classmethod
    def of(cls, flight: Flight) -> Enriched:
        """A flight that nothing was added to yet. It will get a UUID of its own."""
        return cls(**asdict(flight) | {"UUID": ""})
