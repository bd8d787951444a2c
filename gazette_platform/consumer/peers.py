"""Calls of other processes of the group, which answer in our place."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import aiohttp
from google.protobuf.message import DecodeError
from yarl import URL

from gazette_platform.client.wire import Authorizer, WirePool
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as pb
from gazette_platform.serving.interface import Code, Kind, NotNow, RpcFailed, brief_details

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Header

_STAT: Final = "/consumer.Shard/Stat"
_HTTP_ENDPOINT: Final = "/gazette_platform.ConsumerAdmin/HttpEndpoint"


@dataclass(frozen=True, slots=True)
class Page:
    """What another process answered over HTTP; it may send the reader elsewhere."""

    status: int
    headers: Mapping[str, str]
    """Names are compared without case."""
    body: bytes


@final
class ConsumerPeers:
    """A connection to each process that was asked, closed when it was not used for long.

    Args:
        config: certificates and keys; its address is not used.
    """

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._config = config
        self._tasks = TaskGroup("consumer peers")
        self._pool = WirePool(config, clock, self._tasks)
        self._authorizer = Authorizer(config, clock)
        self._http: aiohttp.ClientSession | None = None

    async def stat(self, header: Header, shard: str, request: bytes, *, timeout_s: float) -> bytes:
        """The StatResponse of the process that a header names.

        Args:
            request: a StatRequest, with the header attached.

        The rest, raises, cancellation: as `call`.
        """
        return await self.call(_STAT, header, shard, request, timeout_s=timeout_s)

    async def call(
        self, method: str, header: Header, shard: str, request: bytes, *, timeout_s: float
    ) -> bytes:
        """Call the process that a header names, which answers in our place.

        Args:
            method: full name, as ``/word_count.NGram/Query``.
            header: of a resolution that is remote.
            shard: that our token is for: to read.
            request: with the header attached.
            timeout_s: seconds.

        Returns: its response.
        Raises: RpcFailed: it has no endpoint, cannot be reached, or failed the call.
        Cancellation: reaches the other process.
        """
        endpoint = header.route.endpoint_of(header.process_id) if header.process_id else ""
        if not endpoint:
            raise NotNow(f"shard {shard}: its primary has no endpoint")
        wire = self._pool.get(endpoint)
        metadata = self._metadata(shard) or ()
        call = wire.channel.call(method, Kind.UNARY, metadata, request, timeout_s=timeout_s)
        try:
            with wire:
                return await call.answer()
        except RpcFailed as err:
            if err.code is Code.UNAVAILABLE:
                why = brief_details(err.text)
                raise NotNow(f"shard {shard}: its primary at {endpoint}: {why}") from err
            raise

    async def page(
        self,
        header: Header,
        shard: str,
        target: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> Page:
        """GET a page of the process that a header names, which answers in our place.

        Args:
            target: path and query, as they were asked of us.
            headers: to send along, beside our token; they carry the header.

        The rest, cancellation: as `call`.

        Raises: RpcFailed: it has no endpoint, cannot be reached, or has not answered in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self.call(_HTTP_ENDPOINT, header, shard, b"", timeout_s=timeout_s)
                endpoint = pb.HttpEndpointResponse.FromString(raw).endpoint
                url = URL(f"{endpoint}{target}", encoded=True)
                given = {**headers, **dict(self._metadata(shard) or ())}
                # Where a page sends its reader to is not for us to go to, with our token.
                asked = self._session().get(url, headers=given, allow_redirects=False)
                async with asked as answer:
                    return Page(answer.status, answer.headers, await answer.read())
        except TimeoutError as err:
            raise RpcFailed(
                Code.DEADLINE_EXCEEDED, f"shard {shard}: no page of its primary in {timeout_s:g} s"
            ) from err
        except (aiohttp.ClientError, DecodeError, ValueError) as err:
            raise NotNow(f"shard {shard}: its primary has no page for us: {err}") from err

    def _metadata(self, shard: str) -> tuple[tuple[str, str], ...] | None:
        selector = LabelSelector(include=LabelSet.of(id=shard))
        return self._authorizer.metadata(Capability.READ, selector)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            config = self._config
            context = ssl.create_default_context(cafile=config.trusted_ca_file or None)
            if config.cert_file:
                context.load_cert_chain(config.cert_file, config.cert_key_file)
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context), auto_decompress=False
            )
        return self._http

    async def close(self) -> None:
        """Close all connections; calls under way end."""
        if self._http is not None:
            await self._http.close()
        await self._tasks.close()
        await self._pool.close()
