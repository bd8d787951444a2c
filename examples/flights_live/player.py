"""Plays planes and flights into their journals: ``python -m examples.flights_live.player --flights 1000``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from examples.flights_live.data import dataset, flights_of, planes_of
from examples.flights_live.messages import FLIGHTS, PLANES, Flight, Plane
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.message import Publisher, modulo_mapping
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["play", "plays"]


async def play(
    client: AsyncClient,
    selector: str,
    messages: Sequence[Flight | Plane],
    *,
    per_second: float = 0.0,
    on_played: Callable[[int], None] = lambda count: None,  # noqa: ARG005
) -> None:
    """Publish messages in their order, those of a plane to one journal.

    Flights and planes have as many journals, so that those of the same plane have the same number.

    Args:
        selector: of the journals.
        per_second: how many at most; 0: as many as brokers take.
        on_played: called with how many are published so far.

    Raises: GazetteError: brokers refuse. Cancellation: some are published.
    """
    partitions, clock = await client.list_snapshot(selector), SystemClock()
    service = client.append_service()
    publisher: Publisher[Flight | Plane] = Publisher(
        service, modulo_mapping(_plane_of, lambda: partitions), clock
    )
    began = clock.monotonic()
    for count, message in enumerate(messages, 1):
        _ = await publisher.publish_committed(message)
        on_played(count)
        if per_second:
            await asyncio.sleep(max(0.0, began + count / per_second - clock.monotonic()))
    await service.close()


def _plane_of(message: Flight | Plane) -> bytes:
    return (message.tailnum or "").encode()


async def plays(client: AsyncClient, flights: int, per_second: float) -> None:
    """Play all planes, and then flights. Raises: GazetteError: as of `play`, `dataset`."""
    data = dataset()
    await play(client, PLANES, planes_of(data))
    await play(client, FLIGHTS, flights_of(data, flights), per_second=per_second)


def main(
    address: Annotated[
        str, typer.Option("--broker.address", envvar="BROKER_ADDRESS", help="URL of a broker.")
    ] = "http://localhost:8080",
    flights: Annotated[int, typer.Option("--flights", help="How many, from New Year.")] = 20_000,
    per_second: Annotated[
        float, typer.Option("--per-second", help="Flights; 0: as fast as brokers take them.")
    ] = 0.0,
) -> None:
    """Publish all planes of the data set, and then flights in their order."""

    async def work() -> None:
        async with AsyncClient(ClientConfig(address=address)) as client:
            await plays(client, flights, per_second)

    try:
        uvloop.run(work())
    except GazetteError as err:
        typer.echo(f"player: error: {err}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"player: ok flights={flights}")


if __name__ == "__main__":
    typer.run(main)
