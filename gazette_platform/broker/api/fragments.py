"""Serves ListFragments, FragmentStoreHealth and CheckStores."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.broker.api.prologue import decode, find_readable
from gazette_platform.broker.journal.known import check_fence, wait_known
from gazette_platform.broker.journal.resolver import Stopped
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops.durations import SECOND_NS, duration_from_pb
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import (
    Fragment,
    Header,
    Route,
    Status,
    validate_fragments_request,
    validate_health_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS, Capability, Forbidden
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.stores import delete_probe, health_check, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.api.proxy import Proxy
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.stores import FragmentStore

__all__ = ["FragmentsApi"]

_PAGE_LIMIT = 1000

# Clients refuse messages beyond 4 MiB.
_PAGE_BYTES_MAX = 2 << 20

# Of one CheckStores. A store costs memory, and some of a millisecond, until it was looked at.
_STORES_MAX = 256


@final
class FragmentsApi:
    """ListFragments, FragmentStoreHealth and CheckStores RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica], proxy: Proxy) -> None:
        self._context = context
        self._resolver = resolver
        self._proxy = proxy

    async def list_fragments(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one page of ListFragments, once the stores were listed.

        Returns: the status, and the FragmentsResponse that says so.
        Raises: RpcFailed: a malformed request, or the replica closed meanwhile.
        Cancellation: safe.
        """
        request = decode(pb.FragmentsRequest, raw, validate_fragments_request)
        found = await find_readable(self._resolver, request, claims)
        header, replica = found.resolution.header, found.replica
        request.page_limit = request.page_limit or _PAGE_LIMIT
        if found.is_remote:
            return await self._proxy.list_fragments(request, header)
        if replica is not None and not request.do_not_proxy:
            better = self._proxy.better_placed(replica, replica.missing_at)
            if better is not None:
                return await self._proxy.list_fragments(request, better.header)
        response = pb.FragmentsResponse(status=found.status.value)  # type: ignore[arg-type]
        header.into_pb(response.header)
        if replica is not None:
            await wait_known(replica, timeout_s=self._context.config.append_wait_s)
            if (
                replica.is_primary
            ):  # clients go on behind the last one, so none before may be missing
                await replica.wait_filled()
                check_fence(replica)
            fragments = await replica.index.inspect()
            if fragments is None:
                raise Stopped
            await self._fill(response, request, replica, list(fragments))
        return found.status, response.SerializeToString()

    async def _fill(
        self,
        response: pb.FragmentsResponse,
        request: pb.FragmentsRequest,
        replica: Replica,
        fragments: Iterable[Fragment],
    ) -> None:
        ttl_s = (
            duration_from_pb(request.signatureTTL) / SECOND_NS
            if request.HasField("signatureTTL")
            else 0.0
        )
        size, turns = 0, Turns()
        for fragment in fragments:
            if fragment.begin < request.next_page_token or not _is_within(request, fragment):
                continue
            await turns.take()
            if len(response.fragments) == request.page_limit or size > _PAGE_BYTES_MAX:
                response.next_page_token = fragment.begin
                return
            summed = await replica.summed(fragment)
            if summed is None:
                raise Stopped
            listed = response.fragments.add()
            summed.into_pb(listed.spec)
            if ttl_s > 0 and summed.backing_store:
                store = self._context.stores.get(summed.backing_store)
                listed.signed_url = await store.sign_get(summed.content_path, ttl_s)
            size += listed.ByteSize()

    async def fragment_store_health(
        self, raw: bytes, claims: Claims = ALL_CLAIMS
    ) -> tuple[Status, bytes]:
        """Serve one FragmentStoreHealth: the store's own checks, and a delete probe if asked.

        A check writes to the store. So a journal within `claims` must name the store, unless the
        caller may apply specs that name any store.

        Returns: the status, and the FragmentStoreHealthResponse that says so.
        Raises: RpcFailed: a malformed request. Forbidden: the store is beyond the claims.
        Cancellation: safe.
        """
        request = decode(pb.FragmentStoreHealthRequest, raw, validate_health_request)
        is_in_use = self._authorize(request, claims)
        problem = ""
        try:
            await self._check_store(request, is_in_use=is_in_use)
        except GazetteError as err:
            problem = str(err)
        status = Status.FRAGMENT_STORE_UNHEALTHY if problem else Status.OK
        response = pb.FragmentStoreHealthResponse(
            status=status.value,  # type: ignore[arg-type]
            store_health_error=problem,
        )
        header = Header(self._resolver.process_id, Route(), self._context.space.header)
        header.into_pb(response.header)
        return status, response.SerializeToString()

    async def check_stores(
        self,
        raw: bytes,
        claims: Claims = ALL_CLAIMS,  # noqa: ARG002  who may apply specs may name any store
    ) -> tuple[Status, bytes]:
        """Serve one CheckStores. No store is asked for anything.

        Returns: OK, and the CheckStoresResponse.
        Raises: RpcFailed: more stores than are checked at a time. Cancellation: safe.
        """
        request = decode(admin_pb.CheckStoresRequest, raw, _validate_stores)
        response = admin_pb.CheckStoresResponse()
        Header(self._resolver.process_id, Route(), self._context.space.header).into_pb(
            response.header
        )
        turns = Turns()
        for url in request.stores:
            await turns.take()
            try:
                self._context.guard.check_allowed(url)
                _ = self._open(url)
            except GazetteError as err:
                response.refused.add(store=url, reason=str(err))
        return Status.OK, response.SerializeToString()

    def _open(self, url: str) -> FragmentStore:
        """A store of its own: callers could otherwise fill this broker with stores and their checks.

        Raises: GazetteError: it can never be used.
        """
        root, file_only = self._context.config.file_root, self._context.config.file_only
        return open_store(url, file_root=root, file_only=file_only, makes_folder=False)

    def _authorize(self, request: pb.FragmentStoreHealthRequest, claims: Claims) -> bool:
        """Refuse a store, or a folder of one, that the caller has no business with.

        Returns: whether journals name the store.
        Raises: Forbidden.
        """
        url, guard = request.fragment_store, self._context.guard
        is_limited = bool(claims.selector.include or claims.selector.exclude)
        if not is_limited and claims.capability & Capability.APPLY:
            return any(True for _ in guard.journals_with(url, claims))
        own = guard.journals_with(url, claims)
        folder = request.check_delete_prefix
        if not any(folder.startswith(f"{name}/") or not folder for name in own):
            raise Forbidden(
                f"not authorized to {folder or 'any journal'} in {url} (only a token with APPLY for "
                "all journals checks what no journal of its bearer's names)"
            )
        return True

    async def _check_store(
        self, request: pb.FragmentStoreHealthRequest, *, is_in_use: bool
    ) -> None:
        """Raises: GazetteError: the store is unhealthy, not allowed, or not there."""
        url, context = request.fragment_store, self._context
        context.guard.check_allowed(url)
        store: FragmentStore
        if is_in_use:
            store = active = context.stores.get(url)
            health = active.health
            while not health.checks:
                health = await active.wait_health_change(health)
            if health.error is not None:
                raise health.error
        else:
            store = self._open(url)
            await health_check(store)
        if request.check_delete:
            await delete_probe(store, prefix=request.check_delete_prefix)


def _validate_stores(request: admin_pb.CheckStoresRequest) -> None:
    if len(request.stores) > _STORES_MAX:
        raise ValidationError(
            f"too many Stores ({len(request.stores)}; at most {_STORES_MAX} at a time)"
        )


def _is_within(request: pb.FragmentsRequest, fragment: Fragment) -> bool:
    """Whether a fragment was stored within the window that the request asks for.

    Source: Gazette. Local fragments have no time yet: the lower bound lets them pass, and an upper
    bound drops them. The upper bound is inclusive, although Gazette's documentation says otherwise.
    """
    stored_at = fragment.mod_time
    if stored_at != 0 and stored_at < request.begin_mod_time:
        return False
    end = request.end_mod_time
    return end == 0 or (stored_at != 0 and stored_at <= end)
