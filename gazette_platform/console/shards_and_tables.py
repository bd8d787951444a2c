"""What pages ask of others than brokers: the shards of consumers, and the tables of the lake.

Consumers are asked at the addresses that the broker was given, with the token of the page. Its claims also hold here,
since a consumer may have no keys of its own, and be beyond the reach of whoever sent the token. Tables are what
``gazctl lake list`` prints: it runs as a process of its own while a page asks, so that the broker loads no library of the
lake. It sees the lake as a whole, so only callers who may list all journals may ask.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import orjson

from gazette_platform.client import ClientConfig
from gazette_platform.errors import GazetteError, SetupError, TransportError, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.auth import Forbidden

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.consumer.client import ShardClient, ShardListing
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import Metadata

PROGRESS_MAX: Final = 50
"""Shards that one request asks the progress of."""

_CALL_S: Final = 5.0
_AT_A_TIME: Final = 8
_LAKE_S: Final = 120.0
_FRESH_S: Final = 15.0
_OUTPUT_BYTES_MAX: Final = 16 << 20
_PIECE_BYTES: Final = 64 << 10
_ERROR_CHARACTERS: Final = 2000
_BEARER: Final = "Bearer "
# What errors of a client advise, and what helps here.
_ADVICE: Final = {
    "check the auth token or keys": "press Token, and give one that a key of this consumer has signed",
    "give the file of that one as trusted-ca-file": "start the broker with --broker.peer-ca-file",
}
_LAKE_VARIABLES: Final = ("GAZETTE_ENDPOINTS", "GAZETTE_TABLES")


def _token(metadata: Metadata) -> str:
    return metadata.get("authorization", "").removeprefix(_BEARER)


@final
class Consumers:
    """The consumers that a broker was given the addresses of."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.addresses = config.console_consumer

    @asynccontextmanager
    async def _client(self, address: str, metadata: Metadata) -> AsyncIterator[ShardClient]:
        """Yield a client.

        Raises: ValidationError: the broker was not given this address. SetupError: the consumer does not serve us.
        """
        if address not in self.addresses:
            raise ValidationError(f"{address} is not an address of --broker.console-consumer")
        from gazette_platform.consumer.client import ShardClient  # noqa: PLC0415  4 MB that most brokers never need

        config = self._config
        files = (config.peer_ca_file, config.peer_cert_file, config.peer_cert_key_file)
        ca, cert, key = (str(file or "") for file in files)
        client = ShardClient(
            ClientConfig(
                address=address,
                auth_token=_token(metadata),
                connect_timeout_s=_CALL_S,
                retry_timeout_s=_CALL_S,
                call_timeout_s=_CALL_S,
                trusted_ca_file=ca,
                cert_file=cert,
                cert_key_file=key,
            )
        )
        try:
            async with client:
                yield client
        except TransportError as err:
            text = str(err)
            for advice, ours in _ADVICE.items():
                text = text.replace(advice, ours)
            raise SetupError(text) from err

    async def shards(self, claims: Claims, metadata: Metadata) -> list[dict[str, Any]]:
        """Return the shards of each consumer within the claims, or why they are not known. Cancellation: safe."""

        async def one(address: str) -> dict[str, Any]:
            try:
                async with self._client(address, metadata) as client:
                    snapshot = await client.list()
            except GazetteError as err:
                return {"consumer": address, "error": str(err), "shards": []}
            shown = [one for one in snapshot if claims.match(one.spec.label_set_with_id())]
            return {"consumer": address, "shards": [_shard_row(shard) for shard in shown]}

        return await side_by_side(one, self.addresses, at_a_time=_AT_A_TIME)

    async def progress(
        self, address: str, shards: Sequence[str], claims: Claims, metadata: Metadata
    ) -> dict[str, dict[str, int]]:
        """Return the offsets that shards have read up to, by shard and journal.

        Those that do not answer, or are beyond the claims, are left out.

        Raises: GazetteError; ValidationError: they are too many, or the address is not known. Cancellation: safe.
        """
        if len(shards) > PROGRESS_MAX:
            raise ValidationError(
                f"ask for at most {PROGRESS_MAX} shards at a time ({len(shards)})"
            )
        found: dict[str, dict[str, int]] = {}
        async with self._client(address, metadata) as client:
            asked = await _within(client, shards, claims)

            async def one(shard: str) -> None:
                try:
                    found[shard] = {**(await client.stat(shard, timeout_s=_CALL_S)).read_through}
                except GazetteError:
                    found.pop(shard, None)

            await side_by_side(one, asked, at_a_time=_AT_A_TIME)
        return found

    async def unassign(
        self, address: str, shard: str, claims: Claims, metadata: Metadata
    ) -> list[str]:
        """Remove the assignments of a shard's primary and of failed replicas, so that it is assigned again.

        Returns: the shards that lost an assignment.
        Raises: GazetteError; Forbidden: the shard is beyond the claims. Cancellation: leaves open whether it was done.
        """
        async with self._client(address, metadata) as client:
            if not claims.match(LabelSet.of(id=shard)):
                raise Forbidden(f"not authorized to {shard}")
            return [*await client.unassign([shard])]


async def _within(client: ShardClient, shards: Sequence[str], claims: Claims) -> list[str]:
    """Those of `shards` that the claims show. Raises: GazetteError. Cancellation: safe."""
    if claims.is_for_all:
        return [*shards]
    wanted = {*shards}
    snapshot = await client.list()
    return [
        one.id
        for one in snapshot
        if one.id in wanted and claims.match(one.spec.label_set_with_id())
    ]


def _shard_row(shard: ShardListing) -> dict[str, Any]:
    """A shard as pages list it."""
    pairs = zip(shard.route.members, shard.statuses, strict=True)
    return {
        "id": shard.id,
        "status": "DISABLED" if shard.spec.disable else shard.status.code.name,
        "standbys": shard.spec.hot_standbys,
        "primary": shard.route.primary,
        "replicas": [
            {"process": member.name, "status": status.code.name, "errors": [*status.errors]}
            for member, status in pairs
        ],
        "sources": [source.journal for source in shard.spec.sources],
    }


@final
class Lake:
    """The lake that the environment of the broker names."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._turn = asyncio.Lock()
        self._clock = SystemClock()
        self._last: tuple[float, dict[str, Any] | SetupError] | None = None

    async def tables(self, claims: Claims, metadata: Metadata, broker: str) -> dict[str, Any]:
        """Return the tables, and addresses of Dagster and Trino; or that no lake is known.

        One process asks at a time, and others take what it found.

        Raises: Forbidden: the claims are for some journals only. SetupError: the lake cannot be asked.
        Cancellation: ends the process.
        """
        if not claims.is_for_all:
            raise Forbidden("tables are shown to tokens that may list all journals")
        if not any(os.environ.get(name) for name in _LAKE_VARIABLES):
            return {"is_known": False}
        async with self._turn:
            if self._last is None or self._clock.monotonic() - self._last[0] >= _FRESH_S:
                found: dict[str, Any] | SetupError
                try:
                    tables = await self._list(metadata, broker)
                    found = {"is_known": True, "links": _links(), "tables": tables}
                except SetupError as err:
                    found = err  # else all that wait would start a process, one after the other
                self._last = self._clock.monotonic(), found
            found = self._last[1]
        if isinstance(found, SetupError):
            raise SetupError(str(found))
        return found

    async def _list(self, metadata: Metadata, broker: str) -> Any:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("BROKER_", "ETCD_"))
        }
        environment |= {"BROKER_ADDRESS": broker, "BROKER_AUTH_TOKEN": _token(metadata)}
        if self._config.peer_ca_file is not None:
            environment["BROKER_TRUSTED_CA_FILE"] = str(self._config.peer_ca_file)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gazette_platform.cli.gazctl", "lake", "list", "-o", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(_LAKE_S):
                out, err = await asyncio.gather(_whole(process.stdout), _whole(process.stderr))
                await process.wait()
        except TimeoutError as error:
            raise SetupError(f"`gazctl lake list` did not end within {_LAKE_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            return orjson.loads(out)
        except orjson.JSONDecodeError as error:
            text = err.decode(errors="replace").strip()[-_ERROR_CHARACTERS:]
            raise SetupError(f"`gazctl lake list` failed: {text or process.returncode}") from error


async def _whole(stream: asyncio.StreamReader) -> bytes:
    """All that a process writes. Raises: SetupError: it is too much. Cancellation: safe."""
    found = bytearray()
    while piece := await stream.read(_PIECE_BYTES):
        found += piece
        if len(found) > _OUTPUT_BYTES_MAX:
            raise SetupError(f"`gazctl lake list` says more than {_OUTPUT_BYTES_MAX:,} bytes")
    return bytes(found)


def _links() -> dict[str, str]:
    """Addresses of Dagster and Trino, where endpoints.json or the environment has them."""
    links = {"dagster": os.environ.get("GAZETTE_DAGSTER_URI", "")}
    links["trino"] = os.environ.get("GAZETTE_TRINO_URI", "")
    try:
        with open(os.environ.get("GAZETTE_ENDPOINTS", ""), "rb") as file:  # noqa: PTH123
            endpoints = orjson.loads(file.read(1 << 20))
    except (OSError, orjson.JSONDecodeError):
        endpoints = {}
    found = {name: links[name] or endpoints.get(name, "") for name in links}
    return {name: url for name, url in found.items() if url.startswith(("http://", "https://"))}
