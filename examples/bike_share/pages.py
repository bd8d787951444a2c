"""The HTTP API: any process of the group answers, and asks the one that has the bike's rides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

from aiohttp import web
from google.protobuf import text_format
from sqlalchemy.exc import SQLAlchemyError

from examples.bike_share.tables import in_database, rides_of
from gazette_platform.consumer.protocol import ShardStatus
from gazette_platform.consumer.store import SQLiteStore, SQLStore
from gazette_platform.errors import GazetteError, ShardNotFound, ValidationError, status_error
from gazette_platform.protocol import Header
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import caller_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.bike_share.tables import Row
    from gazette_platform.app import ServingProcess
    from gazette_platform.consumer.store import ShardStore
    from gazette_platform.message import Mapped

__all__ = ["BikePages"]

_PROXY_HEADER: Final = "X-ProxyHeader"
_FIELDS: Final = ("UUID", "StartTime", "EndTime", "StartStation", "EndStation")
_TEAPOT: Final = 418
_WAIT_S: Final = 30.0


@final
class BikePages:
    """Serves ``GET /api/bikes?id=N``: the bike's last rides, each a line of JSON.

    Headers of the answer: ``X-Shard-ID``, and ``X-Header``, which says which process served it. A request that one process
    makes of another has ``X-ProxyHeader``. Both are a `protocol.Header` in text form. All errors are 418.

    Args:
        mapping: the journal of a bike's rides, by the text of its number.
    """

    def __init__(self, process: ServingProcess, mapping: Callable[[str], Mapped]) -> None:
        self._process = process
        self._mapping = mapping

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the route."""
        router.add_get("/api/bikes", self._serve)

    async def _serve(self, request: web.Request) -> web.Response:
        try:
            return await self._bike(request)
        except (GazetteError, SQLAlchemyError, text_format.ParseError) as err:
            return web.Response(status=_TEAPOT, text=f"{err}\n")

    async def _bike(self, request: web.Request) -> web.Response:
        bike = request.query.get("id", "")
        if not bike.isascii() or not bike.isdecimal() or len(bike) > 9:
            raise ValidationError(f"expected the number of a bike ({bike!r})", path="id")
        shard = self._shard_of(bike)
        claims = self._process.auth.authorize(caller_metadata(request), Capability.READ)
        forwarded = request.headers.get(_PROXY_HEADER, "")
        found = await self._process.resolver.resolve(
            shard,
            may_proxy=not forwarded,
            proxy_header=_header_of(forwarded) if forwarded else None,
            claims=claims,
            timeout_s=_WAIT_S,
        )
        header = text_format.MessageToString(found.header.to_pb(), as_one_line=True)
        told = {"X-Shard-ID": shard, "X-Header": header}
        if found.is_remote:
            page = await self._process.peers.page(
                found.header,
                shard,
                str(request.rel_url),
                {_PROXY_HEADER: header},
                timeout_s=_WAIT_S,
            )
            told["Content-Type"] = page.headers.get("Content-Type", "text/plain")
            return web.Response(status=page.status, body=page.body, headers=told)
        with found:
            if found.status is not ShardStatus.OK or found.store is None:
                raise status_error(found.status.name, f"shard {shard}")
            rows = await self._rides(found.store, int(bike))
        lines = (json.dumps(dict(zip(_FIELDS, row, strict=True))) for row in rows)
        body = "".join(f"{line}\n" for line in lines).encode()
        told["Content-Type"] = "application/x-ndjson"
        return web.Response(body=body, headers=told)

    def _shard_of(self, bike: str) -> str:
        journal = self._mapping(bike).journal
        for spec in self._process.resolver.shards_with_source(journal):
            return spec.id
        raise ShardNotFound(f"no shard reads {journal} (apply shards.yaml)")

    async def _rides(self, store: ShardStore, bike: int) -> list[Row]:
        if isinstance(store, SQLiteStore):
            return await store.read(lambda db: rides_of(db.execute, bike))
        assert isinstance(store, SQLStore)
        return await store.read(lambda connection: rides_of(in_database(connection), bike))


def _header_of(text: str) -> Header:
    return Header.from_pb(text_format.Parse(text, pb.Header()))
