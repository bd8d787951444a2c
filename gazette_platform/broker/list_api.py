"""Serves List, once or as a watch, and Apply."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, Operation, Put
from gazette_platform.keyspace import item_key
from gazette_platform.protocol import (
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    Route,
    Status,
    conflicting_prefix,
    validate_apply_request,
    validate_list_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS, Forbidden
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.resolver import Resolver
    from gazette_platform.protocol.auth import Claims

__all__ = ["ListApi"]

# Gazette's clients pool buffers of 32 KiB, which 25 journals fit.
_JOURNALS_PER_MESSAGE = 25


@final
class ListApi:
    """List and Apply RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver) -> None:
        self._context = context
        self._resolver = resolver
        self._state = context.space.state
        self._changed = asyncio.Event()
        self._is_stopping = False
        context.space.observe(self._wake)

    def stop_watches(self) -> None:
        """End open watches, cleanly: their clients look for another broker."""
        self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---------------------------------------------------------------------------------- List
    async def list_journals(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> AsyncGenerator[bytes]:
        """Serve one List: of what both the request and the claims of its caller select.

        Yields: ListResponses: the first of a snapshot with status and header. A watch ends each
            snapshot with an empty one, and yields another when the selected specs changed.
        Raises: RpcFailed: a malformed request. Cancellation: safe.
        """
        request = pb.ListRequest.FromString(raw)
        try:
            validate_list_request(request)
        except ValidationError as err:
            raise RpcFailed(Code.UNKNOWN, str(err)) from err
        space = self._context.space
        if request.watch and request.HasField("watch_resume"):
            await space.wait_for_revision(request.watch_resume.etcd.revision + 1)
        selector = _with_prefix_by_name(LabelSelector.from_pb(request.selector))
        # Clients sign the selector that they ask with, legacy label and all.
        allowed = _with_prefix_by_name(claims.selector)
        last: tuple[int, int] | None = None
        while True:
            changed = self._changed
            names = self._matching(selector, allowed)
            newest = max((self._state.items[n].mod_revision for n in names), default=0)
            if last != (len(names), newest):
                last = (len(names), newest)
                for message in self._snapshot(names):
                    yield message
                if request.watch:
                    yield pb.ListResponse().SerializeToString()
            if not request.watch:
                return
            await changed.wait()
            if self._is_stopping:
                return

    def _matching(self, *selectors: LabelSelector) -> list[str]:
        names, items = list(self._state.journals), self._state.items
        for selector in dict.fromkeys(s for s in selectors if s.include or s.exclude):
            matches = selector.matches
            names = [n for n in names if matches(items[n].spec.label_set_with_name())]
        return names

    def _snapshot(self, names: list[str]) -> list[bytes]:
        """Messages of one snapshot, built in one go: all of one revision."""
        first = pb.ListResponse()
        Header(self._resolver.process_id, Route(), self._context.space.header).into_pb(first.header)
        message = first
        messages = [first]
        for count, name in enumerate(names):
            if count and count % _JOURNALS_PER_MESSAGE == 0:
                message = pb.ListResponse()
                messages.append(message)
            item = self._state.items[name]
            listed = message.journals.add(
                mod_revision=item.mod_revision, create_revision=item.create_revision
            )
            listed.spec.CopyFrom(item.spec.to_pb())
            self._state.route_of(name).into_pb(listed.route)
        return [m.SerializeToString() for m in messages]

    # --------------------------------------------------------------------------------- Apply
    async def apply(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one Apply: all changes in one etcd transaction.

        Returns: the status, and the ApplyResponse that says so; once our mirror has the change.
        Raises: RpcFailed: a malformed request. Forbidden: a change is beyond the claims.
            EtcdError: etcd did not answer.
        Cancellation: leaves open whether it was applied.
        """
        request = pb.ApplyRequest.FromString(raw)
        try:
            validate_apply_request(request)
            self._refuse_nested(request)
        except ValidationError as err:
            raise RpcFailed(Code.UNKNOWN, str(err)) from err
        _authorize(request, claims)
        compares: list[Compare] = []
        operations: list[Operation] = []
        for change in request.changes:
            name = change.upsert.name or change.delete
            key = item_key(self._context.config.etcd_prefix, name)
            if change.expect_mod_revision != -1:
                compares.append(Compare.mod(key, change.expect_mod_revision))
            if change.HasField("upsert"):
                value = JournalSpec.from_pb(change.upsert).to_pb()
                operations.append(Put(key, value.SerializeToString(deterministic=True)))
            else:
                operations.append(Delete(key))
        result = await self._context.etcd.txn(compares, operations)
        status = Status.OK if result.succeeded else Status.ETCD_TRANSACTION_FAILED
        if result.succeeded and await self._changed_anything(request):
            await self._context.space.wait_for_revision(result.header.revision)
        header = self._context.space.header
        etcd = type(header)(
            header.cluster_id, header.member_id, result.header.revision, header.raft_term
        )
        response = pb.ApplyResponse(status=status.value)  # type: ignore[arg-type]
        Header(self._resolver.process_id, Route(), etcd).into_pb(response.header)
        return status, response.SerializeToString()

    async def _changed_anything(self, request: pb.ApplyRequest) -> bool:
        """Whether a transaction that succeeded has a revision of its own to wait for.

        One without changes has none, nor one that only deletes, unchecked, what is not there.
        """
        if any(c.HasField("upsert") or c.expect_mod_revision > 0 for c in request.changes):
            return True
        return any(c.delete in self._state.items for c in request.changes)

    def _refuse_nested(self, request: pb.ApplyRequest) -> None:
        """Refuse a journal whose name is a directory of another's: their files would mix."""
        upserts = {c.upsert.name for c in request.changes if c.HasField("upsert")}
        deletes = {c.delete for c in request.changes if c.delete}
        fresh = [name for name in upserts if name not in self._state.items]
        if not fresh:
            return
        names = (set(self._state.items) - deletes) | upserts
        found = conflicting_prefix(names)
        if found is not None:
            shorter, longer = found
            raise ValidationError(
                f"journal {shorter} would be a directory of journal {longer}, whose fragments it "
                "would list as its own; name them so that neither is a prefix of the other at a /"
            )


def _authorize(request: pb.ApplyRequest, claims: Claims) -> None:
    """Refuse what is beyond the claims: a spec by all its labels, a deletion by the name alone."""
    for change in request.changes:
        if change.HasField("upsert"):
            spec = JournalSpec.from_pb(change.upsert)
            name, labels = spec.name, spec.label_set_with_name()
        else:
            name, labels = change.delete, LabelSet.of(name=change.delete)
        if not claims.match(labels):
            raise Forbidden(f"not authorized to {name}")


def _with_prefix_by_name(selector: LabelSelector) -> LabelSelector:
    """Rewrite the legacy label ``prefix`` to ``name:prefix``."""

    def rewrite(labels: LabelSet) -> LabelSet:
        return LabelSet(
            tuple(
                sorted(
                    Label("name", label.value, prefix=True) if label.name == "prefix" else label
                    for label in labels
                )
            )
        )

    return LabelSelector(rewrite(selector.include), rewrite(selector.exclude))
