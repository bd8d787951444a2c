"""The gRPC API: any process of the group answers any call, and asks the one that has the counts."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

import grpc  # type: ignore[import-untyped]
from typing_extensions import override

from examples.word_count.n_grams import count_from_bytes
from examples.word_count.pb import word_count_pb2 as pb, word_count_pb2_grpc as rpcs
from gazette_platform.consumer.protocol import ShardStatus
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import Header
from gazette_platform.protocol.auth import Capability
from gazette_platform.serving.calls import failure_of
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.app import ServingProcess
    from gazette_platform.message import Mapped
    from gazette_platform.protocol.auth import Claims

__all__ = ["NGramService"]

_QUERY: Final = "/word_count.NGram/Query"
_WAIT_S: Final = 30.0

_FIRST_KEY: Final = b"\x01"  # those before are the store's

# N-grams of an answer: some MB.
_GRAMS_MAX: Final = 65536


class Counting(Protocol):
    """What the service needs of the application."""

    async def publish(self, text: str) -> None:
        """Publish the n-grams of a text."""
        ...

    def journal_of(self, n_gram: str) -> Mapped:
        """Where an n-gram is counted."""
        ...


class NGramService(rpcs.NGramServicer):
    """Serves `word_count.NGram`."""

    def __init__(self, application: Counting, process: ServingProcess) -> None:
        self._application = application
        self._process = process

    @override
    async def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishResponse:
        try:
            self._claims(context, Capability.APPEND)
            await self._application.publish(request.text)
        except GazetteError as err:
            await self._end(context, "Publish", err)
        return pb.PublishResponse()

    @override
    async def Query(self, request: pb.QueryRequest, context: Any) -> pb.QueryResponse:
        try:
            return await self._query(request, self._claims(context, Capability.READ))
        except GazetteError as err:
            await self._end(context, "Query", err)

    def _claims(self, context: Any, capability: Capability) -> Claims:
        return self._process.auth.authorize(dict(context.invocation_metadata()), capability)

    async def _end(self, context: Any, call: str, err: GazetteError) -> NoReturn:
        failed = err if isinstance(err, RpcFailed) else failure_of(call, err, self._process.faults)
        await context.abort(grpc.StatusCode[failed.code.value], failed.text)
        raise AssertionError("the call has ended")

    async def _query(self, request: pb.QueryRequest, claims: Claims) -> pb.QueryResponse:
        shard = request.shard or self._shard_of(request.prefix)
        is_forwarded = request.HasField("header")
        found = await self._process.resolver.resolve(
            shard,
            may_proxy=not is_forwarded,
            proxy_header=Header.from_pb(request.header) if is_forwarded else None,
            claims=claims,
            timeout_s=_WAIT_S,
        )
        if found.is_remote:
            forwarded = pb.QueryRequest(
                header=found.header.to_pb(), prefix=request.prefix, shard=shard
            )
            raw = await self._process.peers.call(
                _QUERY, found.header, shard, forwarded.SerializeToString(), timeout_s=_WAIT_S
            )
            return pb.QueryResponse.FromString(raw)
        with found:
            if found.status is ShardStatus.SHARD_NOT_FOUND:
                raise RpcFailed(Code.NOT_FOUND, f"shard {shard}: {found.status.name}")
            if found.status is not ShardStatus.OK:
                raise NotNow(f"shard {shard}: {found.status.name}")
            assert isinstance(found.store, RocksDBStore)
            return await _counts(found.store, request.prefix.encode())

    def _shard_of(self, n_gram: str) -> str:
        journal = self._application.journal_of(n_gram).journal
        for spec in self._process.resolver.shards_with_source(journal):
            return spec.id
        raise RpcFailed(Code.NOT_FOUND, f"no shard reads {journal} (apply shards.yaml)")


async def _counts(store: RocksDBStore, prefix: bytes) -> pb.QueryResponse:
    """Raises: ValidationError: there are too many for one answer."""
    response, turns = pb.QueryResponse(), Turns()
    # Of what is committed: an iterator of RocksDB stays as it is.
    found = await store.read(lambda db: db.items(from_key=prefix or _FIRST_KEY))
    rows = cast("Iterator[tuple[bytes, bytes]]", found)
    for key, value in takewhile(lambda item: item[0].startswith(prefix), rows):
        await turns.take()
        response.grams.add(n_gram=key.decode(), count=count_from_bytes(value))
        if len(response.grams) > _GRAMS_MAX:
            raise ValidationError(
                f"more than {_GRAMS_MAX} n-grams begin with {prefix.decode()!r} (ask for a longer one)",
                path="prefix",
            )
    return response
