"""What pages ask of journals, fragments, stores and brokers: RPCs of this broker, answered as plain values.

Each call carries the token of the page that asks. The broker authorizes it, just as it does over gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.errors import GazetteError, ValidationError, status_error
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import (
    CompressionCodec,
    JournalSpec,
    LabelSelector,
    Status,
    SuspendLevel,
    validate_fragments_request,
    validate_journal_name,
    validate_list_request,
)
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.serving.interface import Code, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from gazette_platform.serving.interface import Metadata, Rpc

LISTED_MAX: Final = 20_000
"""Journals that a page lists at most; a selector narrows them."""

HEADS_MAX: Final = 100
"""Journals that one request asks the state of; a page shows fewer rows."""

STORES_MAX: Final = 16
FRAGMENTS_MAX: Final = 500

# A journal whose brokers do not answer must not keep the state of the others from the page.
_ONE_S: Final = 3.0
_CALL_S: Final = 10.0
_AT_A_TIME: Final = 8
_PEERS_AT_A_TIME: Final = 64
_FRESH_S: Final = 5.0

# Later than any fragment is stored. Fragments in spools have no time yet, and pass as well (`FragmentsApi`).
_NOT_STORED: Final = 1 << 40

M = TypeVar("M", bound="Message")


class _Enough(NotTaken):
    """The page has the journals, or as many as it shows."""

    def __init__(self) -> None:
        super().__init__(Code.CANCELLED, "the page has what it shows")


@final
class BrokerCalls:
    """RPCs of one broker for pages.

    Args:
        rpcs: of the broker, by name.
    """

    def __init__(self, rpcs: Mapping[str, Rpc]) -> None:
        self._rpcs = rpcs

    async def _unary(
        self,
        name: str,
        request: Message,
        kind: type[M],
        metadata: Metadata,
        limit_s: float = _CALL_S,
    ) -> M:
        """Make a call. Raises: RpcFailed; StatusError: its outcome is not OK."""
        async with asyncio.timeout(limit_s):
            raw = await self._rpcs[name].handler(request.SerializeToString(), metadata)
        response = kind.FromString(raw)
        _check(response, getattr(request, "journal", ""))
        return response

    async def journals(
        self,
        selector: str,
        metadata: Metadata,
        take: Callable[[list[dict[str, Any]]], Awaitable[None]],
        *,
        known: int = 0,
    ) -> dict[str, Any]:
        """List journals by name.

        Args:
            take: gets some of them at a time.
            known: revision of the list that the page has; 0: it has none.

        Returns: whether these are all, and the revision of etcd; or that nothing has changed since `known`.
        Raises: RpcFailed; ValidationError: the selector is malformed. Cancellation: safe.
        """
        request = pb.ListRequest(selector=LabelSelector.parse(selector).to_pb())
        validate_list_request(request)
        left, revision = LISTED_MAX, 0

        async def send(raw: bytes) -> None:
            nonlocal left, revision
            response = pb.ListResponse.FromString(raw)
            revision = response.header.etcd.revision or revision
            if revision == known:
                raise _Enough
            rows = [journal_row(one) for one in response.journals]
            await take(rows[:left])
            left -= len(rows)
            if left < 0:
                raise _Enough

        with contextlib.suppress(_Enough):
            await self._rpcs["List"].handler(request.SerializeToString(), send, metadata)
        if revision == known:
            return {"unchanged": True}
        return {"complete": left >= 0, "revision": revision}

    async def states(self, names: Sequence[str], metadata: Metadata) -> list[dict[str, Any]]:
        """Return first byte, write head and unpersisted bytes of journals, or why they are not known.

        Raises: ValidationError: they are too many. RpcFailed: the caller is not known. Cancellation: safe.
        """
        if len(names) > HEADS_MAX:
            raise ValidationError(f"ask for at most {HEADS_MAX} journals at a time ({len(names)})")

        async def one(name: str) -> dict[str, Any]:
            try:
                async with asyncio.timeout(_ONE_S):
                    return await self._state(name, metadata)
            except RpcFailed as err:
                if err.code is Code.UNAUTHENTICATED:
                    raise
                return {"name": name, "error": err.text}
            except TimeoutError:
                return {"name": name, "error": f"no answer within {_ONE_S:g} s"}
            except GazetteError as err:
                return {"name": name, "error": str(err)}

        return await side_by_side(one, names, at_a_time=_AT_A_TIME)

    async def _state(self, name: str, metadata: Metadata) -> dict[str, Any]:
        first = pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER)

        async def take(raw: bytes) -> None:
            first.ParseFromString(raw)

        read = pb.ReadRequest(journal=name, metadata_only=True)
        await self._rpcs["Read"].handler(read.SerializeToString(), take, metadata)
        if first.status != pb.OFFSET_NOT_YET_AVAILABLE:
            _check(first, name)
        listing = pb.FragmentsRequest(journal=name, begin_mod_time=_NOT_STORED)
        listed = await self._unary("ListFragments", listing, pb.FragmentsResponse, metadata)
        fragments = [one.spec for one in listed.fragments if not one.spec.backing_store]
        held = [(one.begin, one.end) for one in fragments]
        return {
            "name": name,
            "begin": min(first.offset, first.write_head),
            "head": first.write_head,
            "unpersisted": covered_bytes(held),
        }

    async def journal(self, name: str, metadata: Metadata) -> dict[str, Any]:
        """Return a journal with its spec as YAML.

        Raises: RpcFailed; StatusError; ValidationError: no such name can be. Cancellation: safe.
        """
        from gazette_platform.yaml_specs.journal_tree import to_journal_tree  # noqa: PLC0415  slow to import

        validate_journal_name(name)  # an empty one would select all
        label = pb.Label(name="name", value=name)
        selector = pb.LabelSelector(include=pb.LabelSet(labels=[label]))
        found: list[pb.ListResponse.Journal] = []

        async def send(raw: bytes) -> None:
            found.extend(pb.ListResponse.FromString(raw).journals)

        request = pb.ListRequest(selector=selector)
        async with asyncio.timeout(_CALL_S):
            await self._rpcs["List"].handler(request.SerializeToString(), send, metadata)
        if not found:
            raise status_error(Status.JOURNAL_NOT_FOUND.name, "", journal=name)
        spec = JournalSpec.from_pb(found[0].spec)
        yaml = to_journal_tree([(spec, found[0].mod_revision)])
        return {**journal_row(found[0]), "yaml": yaml, "revision": found[0].mod_revision}

    async def fragments(
        self, name: str, metadata: Metadata, *, token: int, since: int, limit: int
    ) -> dict[str, Any]:
        """Return a page of a journal's fragments.

        Args:
            token: offset to list from; the answer has that of the next page as `next`, 0 on the last one.
            since: Unix second; lists what is stored since then, and what is not stored yet.
            limit: of fragments.

        Raises: RpcFailed; StatusError; ValidationError: no such name can be. Cancellation: safe.
        """
        request = pb.FragmentsRequest(
            journal=name,
            next_page_token=token,
            begin_mod_time=since,
            page_limit=max(1, min(limit, FRAGMENTS_MAX)),
        )
        validate_fragments_request(request)
        page = await self._unary("ListFragments", request, pb.FragmentsResponse, metadata)
        return {
            "fragments": [fragment_row(one.spec) for one in page.fragments],
            "next": page.next_page_token,
        }

    async def stores(self, urls: Sequence[str], metadata: Metadata) -> list[dict[str, str]]:
        """Return the health of fragment stores: an empty `error` says that a store is healthy.

        Raises: ValidationError: they are too many. Cancellation: safe.
        """
        if len(urls) > STORES_MAX:
            raise ValidationError(f"ask for at most {STORES_MAX} stores at a time ({len(urls)})")

        async def one(url: str) -> dict[str, str]:
            request = pb.FragmentStoreHealthRequest(fragment_store=url)
            kind = pb.FragmentStoreHealthResponse
            try:
                async with asyncio.timeout(_CALL_S):
                    raw = await self._rpcs["FragmentStoreHealth"].handler(
                        request.SerializeToString(), metadata
                    )
            except RpcFailed as err:
                return {"store": url, "error": err.text}
            except TimeoutError:
                return {"store": url, "error": f"no answer within {_CALL_S:g} s"}
            return {"store": url, "error": kind.FromString(raw).store_health_error}

        return await side_by_side(one, urls, at_a_time=_AT_A_TIME)

    async def brokers(self, metadata: Metadata) -> list[dict[str, Any]]:
        """Return the brokers of the cluster. Raises: RpcFailed. Cancellation: safe."""
        request, kind = admin_pb.ListBrokersRequest(), admin_pb.ListBrokersResponse
        listed = await self._unary("ListBrokers", request, kind, metadata)
        own = listed.header.process_id
        return [
            {
                "name": f"{one.process_spec.id.zone}#{one.process_spec.id.suffix}",
                "zone": one.process_spec.id.zone,
                "endpoint": one.process_spec.endpoint,
                "limit": one.journal_limit,
                "is_own": one.process_spec.id == own,
            }
            for one in listed.brokers
        ]


@final
class History:
    """The last hour of this broker, a sample each 10 seconds: 360 of six numbers.

    Args:
        vitals: of the broker.
    """

    EVERY_S = 10.0
    KEPT = 360

    def __init__(self, vitals: Callable[[], Mapping[str, float]]) -> None:
        self._vitals = vitals
        self._clock = SystemClock()
        self._samples: deque[tuple[float, ...]] = deque(maxlen=self.KEPT)

    async def run(self) -> None:
        """Take samples for ever. Cancellation: safe."""
        late_s = 0.0
        while True:
            due = self._clock.monotonic() + self.EVERY_S
            self._samples.append(self._sample(late_s))
            await asyncio.sleep(self.EVERY_S)
            late_s = max(0.0, self._clock.monotonic() - due)

    def _sample(self, late_s: float) -> tuple[float, ...]:
        now = self._vitals()
        numbers = (now["appended_bytes"], now["appends"], now["unpersisted_bytes"])
        return now["at"], *numbers, now["cpu_s"], round(late_s, 4)

    def all(self) -> dict[str, Any]:
        """Return what is known now, and the samples.

        Each has the Unix second, appended bytes, appends, unpersisted bytes, seconds of CPU, and how late it was.
        """
        return {"vitals": {**self._vitals()}, "samples": [*self._samples], "every_s": self.EVERY_S}


@final
class PeerVitals:
    """What other brokers have done and hold. Pages that ask within some seconds share the answers.

    Args:
        ask: a broker, by its endpoint.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Mapping[str, float]]]) -> None:
        self._ask = ask
        self._clock = SystemClock()
        self._turn = asyncio.Lock()
        self._known: dict[str, Mapping[str, float] | str] = {}
        self._asked_at = -_FRESH_S

    async def of(self, endpoints: Sequence[str]) -> Mapping[str, Mapping[str, float] | str]:
        """Return vitals by endpoint, or why a broker does not report them. Cancellation: safe."""
        async with self._turn:
            if self._clock.monotonic() - self._asked_at >= _FRESH_S or {*endpoints} - {
                *self._known
            }:
                self._known = dict(
                    await side_by_side(self._one, endpoints, at_a_time=_PEERS_AT_A_TIME)
                )
                self._asked_at = self._clock.monotonic()
            return self._known

    async def _one(self, endpoint: str) -> tuple[str, Mapping[str, float] | str]:
        try:
            async with asyncio.timeout(_ONE_S):
                return endpoint, await self._ask(endpoint)
        except RpcFailed as err:
            is_gazette = err.code is Code.UNIMPLEMENTED
            return endpoint, "a broker of Gazette reports none" if is_gazette else err.text
        except TimeoutError:
            return endpoint, f"no answer within {_ONE_S:g} s"
        except GazetteError as err:
            return endpoint, str(err)


def _check(response: Any, journal: str) -> None:
    """Raises: StatusError: a response says so."""
    number = getattr(response, "status", pb.OK)
    if number != pb.OK:
        detail = getattr(response, "store_health_error", "")
        raise status_error(Status.from_wire(number).name, detail, journal=journal)


def journal_row(listed: pb.ListResponse.Journal) -> dict[str, Any]:
    """A journal as pages list it."""
    spec, route = listed.spec, listed.route
    row = {
        "name": spec.name,
        "rf": spec.replication,
        "brokers": [f"{member.zone}#{member.suffix}" for member in route.members],
        "primary": route.primary,
        "stores": [*spec.fragment.stores],
    }
    if spec.HasField("suspend") and spec.suspend.level:
        level = SuspendLevel(spec.suspend.level)
        row["suspended"] = level.name
        if level is SuspendLevel.FULL:
            row["head"] = spec.suspend.offset  # no broker serves it
    return row


def fragment_row(fragment: pb.Fragment) -> dict[str, Any]:
    """A fragment as pages list it."""
    return {
        "begin": fragment.begin,
        "end": fragment.end,
        "store": fragment.backing_store,
        "stored_at": fragment.mod_time,
        "codec": CompressionCodec(fragment.compression_codec).name,
        "path": fragment.path_postfix,
    }


def covered_bytes(spans: Sequence[tuple[int, int]]) -> int:
    """Add up half-open spans in the order of their begins. Bytes of several spans count once.

    >>> covered_bytes([(0, 10), (5, 12), (20, 21)])
    13
    """
    total = end = 0
    for begin, after in spans:
        total += max(0, after - max(begin, end))
        end = max(end, after)
    return total
