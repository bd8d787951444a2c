"""Rules of requests and responses, checked on messages, the most important fields first.

A server checks each request with these before anything else, and a client each response before it believes one. Texts
are Gazette's. Headers are checked only if present: they come from brokers that proxy.

Departs from Gazette where its rules refuse what its own brokers send: a replica's first response has a header with OK,
and an append that suspends its journal answers SUSPENDED with a commit.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import duration_from_pb, format_duration
from gazette_platform.protocol.enums import AppendSuspend, CompressionCodec, Status
from gazette_platform.protocol.fragments import Fragment
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSelector, LabelSet
from gazette_platform.protocol.names import (
    check_field,
    validate_journal_name,
    validate_path_component,
)
from gazette_platform.protocol.routing import Route, validate_header
from gazette_platform.protocol.specs import JournalSpec, validate_store_url

if TYPE_CHECKING:
    from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb

PAGE_LIMIT_MAX: Final = 10_000

SELECTOR_LABELS_MAX: Final = 8192
"""Labels of a list's selector, included and excluded together: 50 ms to check."""

REGISTER_LABELS_MAX: Final = 4096
"""Labels with which an append checks and changes registers."""

SPEC_BYTES_MAX: Final = 256 * 1024
SPEC_LABELS_MAX: Final = 1024
SPEC_STORES_MAX: Final = 32

OFFSET_MAX: Final = 1 << 62
"""Least offset of a journal's next append: as many bytes again fit after it."""

_DELETE_PREFIX_LENGTH_MAX = 512

_SAMPLE_TIME = datetime(2006, 1, 2, 15, 4, 5, tzinfo=UTC)


def _check_header(
    request: pb.ReadRequest
    | pb.AppendRequest
    | pb.FragmentsRequest
    | admin_pb.FlushRequest
    | admin_pb.ResetHeadRequest,
) -> None:
    if request.HasField("header"):
        check_field("Header", validate_header, request.header)


def validate_read_request(request: pb.ReadRequest) -> None:
    """Check a request to read.

    Raises: ValidationError.
    """
    _check_header(request)
    check_field("Journal", validate_journal_name, request.journal, meta=True)
    if request.offset < -1:
        raise ValidationError(f"invalid Offset ({request.offset}; expected >= -1)")
    if request.end_offset != 0 and request.end_offset < request.offset:
        raise ValidationError(
            f"invalid EndOffset ({request.end_offset}; expected 0 or >= {request.offset})"
        )
    if request.end_offset < 0:
        raise ValidationError(f"invalid EndOffset ({request.end_offset}; expected >= 0)")
    if request.begin_mod_time < 0:
        raise ValidationError(f"invalid BeginModTime ({request.begin_mod_time}; expected >= 0)")
    _check_min_revision(request.min_etcd_revision)


def _check_min_revision(revision: int) -> None:
    if revision < 0:
        raise ValidationError(f"invalid MinEtcdRevision ({revision}; expected >= 0)")


def validate_append_request(request: pb.AppendRequest) -> None:
    """Check the first message of an append.

    Raises: ValidationError.
    """
    _check_header(request)
    check_field("Journal", validate_journal_name, request.journal, meta=True)
    if request.content:
        raise ValidationError("unexpected Content")
    if request.offset < 0:
        raise ValidationError(f"invalid Offset ({request.offset}; expected >= 0)")
    _check_register_count(request)
    if request.HasField("check_registers"):
        selector = LabelSelector.from_pb(request.check_registers)
        check_field("CheckRegisters", selector.validate)
    if request.HasField("union_registers"):
        check_field("UnionRegisters", LabelSet.from_pb(request.union_registers).validate)
    if request.HasField("subtract_registers"):
        check_field("SubtractRegisters", LabelSet.from_pb(request.subtract_registers).validate)
    if request.suspend:
        check_field("Suspend", AppendSuspend.from_wire(request.suspend).require_known)
    _check_min_revision(request.min_etcd_revision)


def validate_journal_request(request: admin_pb.FlushRequest | admin_pb.ResetHeadRequest) -> None:
    """Check a request of our own service that is about one journal.

    Raises: ValidationError.
    """
    _check_header(request)
    check_field("Journal", validate_journal_name, request.journal, meta=True)
    _check_min_revision(request.min_etcd_revision)


def _check_register_count(request: pb.AppendRequest) -> None:
    """Before they are looked at: registers are sent to each replica with every append."""
    count = (
        len(request.check_registers.include.labels)
        + len(request.check_registers.exclude.labels)
        + len(request.union_registers.labels)
        + len(request.subtract_registers.labels)
    )
    if count > REGISTER_LABELS_MAX:
        raise ValidationError(
            f"invalid number of labels of registers ({count}; expected <= {REGISTER_LABELS_MAX})"
        )


def validate_append_chunk(request: pb.AppendRequest) -> None:
    """Check a later message of an append: only `content`, whose absence is the commit marker.

    Raises: ValidationError.
    """
    if request.journal:
        validate_append_request(request)
        raise ValidationError("expected Content chunk")
    if request.HasField("header"):
        raise ValidationError("unexpected Header")
    if request.do_not_proxy:
        raise ValidationError("unexpected DoNotProxy")
    if request.offset:
        raise ValidationError("unexpected Offset")
    if request.HasField("check_registers"):
        raise ValidationError("unexpected CheckRegisters")
    if request.HasField("union_registers"):
        raise ValidationError("unexpected UnionRegisters")
    if request.HasField("subtract_registers"):
        raise ValidationError("unexpected SubtractRegisters")
    if request.suspend:
        raise ValidationError("unexpected Suspend")
    if request.min_etcd_revision:
        raise ValidationError("unexpected MinEtcdRevision")


def validate_replicate_request(request: pb.ReplicateRequest) -> None:
    """Check a message from a primary to its replica: either a proposal or content.

    Raises: ValidationError.
    """
    if request.HasField("proposal"):
        _validate_proposal(request)
        return
    if request.deprecated_journal:
        raise ValidationError("unexpected DeprecatedJournal without Proposal")
    if request.HasField("header"):
        raise ValidationError("unexpected Header without Proposal")
    if request.HasField("registers"):
        raise ValidationError("unexpected Registers without Proposal")
    if request.acknowledge:
        raise ValidationError("unexpected Acknowledge without Proposal")
    if not request.content:
        raise ValidationError("expected Content or Proposal")
    if request.content_delta < 0:
        raise ValidationError(f"invalid ContentDelta ({request.content_delta}; expected >= 0)")


def _validate_proposal(request: pb.ReplicateRequest) -> None:
    if request.HasField("header"):
        check_field("Header", validate_header, request.header)
        if not request.acknowledge:
            raise ValidationError("expected Acknowledge with Header")
    check_field("Proposal", Fragment.from_pb(request.proposal).validate)
    journal = request.proposal.journal
    if request.deprecated_journal and request.deprecated_journal != journal:
        raise ValidationError(
            "DeprecatedJournal and Proposal.Journal mismatch "
            f"({request.deprecated_journal} vs {journal})"
        )
    # Absent registers are read as empty ones.
    check_field("Registers", LabelSet.from_pb(request.registers).validate)
    if request.content:
        raise ValidationError(f"unexpected Content with Proposal (len {len(request.content)})")
    if request.content_delta:
        raise ValidationError(f"unexpected ContentDelta with Proposal ({request.content_delta})")


def validate_list_request(request: pb.ListRequest) -> None:
    """Check a request to list journals.

    Raises: ValidationError.
    """
    count = len(request.selector.include.labels) + len(request.selector.exclude.labels)
    if count > SELECTOR_LABELS_MAX:
        raise ValidationError(
            f"invalid number of labels ({count}; expected <= {SELECTOR_LABELS_MAX}; "
            "list in parts, or select by prefix)",
            path="Selector",
        )
    selector = LabelSelector.from_pb(request.selector)
    check_field("Selector", selector.validate)
    for context, labels in (("Include", selector.include), ("Exclude", selector.exclude)):
        for value in labels.values_of("prefix"):
            if not value.endswith("/"):
                raise ValidationError(
                    f"expected trailing '/' ({value})",
                    path=f'Selector.{context}.Labels["prefix"]',
                )
    if request.HasField("watch_resume"):
        check_field("WatchResume", validate_header, request.watch_resume)


def validate_apply_request(request: pb.ApplyRequest) -> None:
    """Check a request to change journals.

    Raises: ValidationError.
    """
    for index, change in enumerate(request.changes):
        validate_apply_change(index, change)


def validate_apply_change(index: int, change: pb.ApplyRequest.Change) -> None:
    """Check one change of a request; all of them may take long.

    Raises: ValidationError.
    """
    check_field(f"Changes[{index}]", _validate_change, change)


def _validate_bounds(spec: pb.JournalSpec) -> None:
    """Refuse a spec that is so large that it cannot be meant.

    Each broker holds all specs in memory and sends them in lists, so a size that etcd can bear may be
    too much for brokers. Only specs that are applied are checked: journals that have such a spec
    already, from Gazette's brokers, keep it.
    """
    size = spec.ByteSize()
    if size > SPEC_BYTES_MAX:
        raise ValidationError(f"invalid size ({size} bytes; expected <= {SPEC_BYTES_MAX})")
    labels, stores = len(spec.labels.labels), len(spec.fragment.stores)
    if labels > SPEC_LABELS_MAX:
        raise ValidationError(f"invalid number of Labels ({labels}; expected <= {SPEC_LABELS_MAX})")
    if stores > SPEC_STORES_MAX:
        raise ValidationError(
            f"invalid number of Stores ({stores}; expected <= {SPEC_STORES_MAX})", path="Fragment"
        )
    if spec.suspend.offset > OFFSET_MAX:
        raise ValidationError(
            f"invalid Offset ({spec.suspend.offset}; expected <= {OFFSET_MAX})", path="Suspend"
        )


def _validate_postfix(spec: JournalSpec) -> None:
    """Refuse a template with which the journal's first fragment could not be persisted.

    Only specs that are applied are checked, as with their size.
    """
    from gazette_platform.protocol.path_postfix import PathPostfixTemplate  # noqa: PLC0415  slow to import

    sample = Fragment(spec.name, 0, 1, codec=CompressionCodec.NONE)
    template = PathPostfixTemplate(spec.fragment.path_postfix_template)
    postfix = template.evaluate(sample, _SAMPLE_TIME, EMPTY_LABELS, spec)
    replace(sample, path_postfix=postfix).validate()


def _validate_change(change: pb.ApplyRequest.Change) -> None:
    revision = change.expect_mod_revision
    if change.HasField("upsert"):
        if change.delete:
            raise ValidationError("both Upsert and Delete are set (expected exactly one)")
        check_field("Upsert", _validate_bounds, change.upsert)
        spec = JournalSpec.from_pb(change.upsert)
        check_field("Upsert", spec.validate)
        check_field("Upsert.Fragment.PathPostfixTemplate", _validate_postfix, spec)
        if revision < -1:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected >= 0 or -1)")
    elif change.delete:
        check_field("Delete", validate_journal_name, change.delete)
        if revision <= 0 and revision != -1:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected > 0 or -1)")
    else:
        raise ValidationError("neither Upsert nor Delete are set (expected exactly one)")


def validate_fragments_request(request: pb.FragmentsRequest) -> None:
    """Check a request to list fragments.

    Raises: ValidationError.
    """
    _check_header(request)
    check_field("Journal", validate_journal_name, request.journal, meta=True)
    begin, end = request.begin_mod_time, request.end_mod_time
    if begin < 0:
        raise ValidationError(f"invalid BeginModTime ({begin}; expected >= 0)")
    if end != 0 and end < begin:
        raise ValidationError(f"invalid EndModTime ({end} must be after {begin})")
    if request.next_page_token < 0:
        raise ValidationError(f"invalid NextPageToken ({request.next_page_token}; expected >= 0)")
    if not 0 <= request.page_limit <= PAGE_LIMIT_MAX:
        raise ValidationError(
            f"invalid PageLimit ({request.page_limit}; expected 0 <= PageLimit <= {PAGE_LIMIT_MAX})"
        )
    if request.HasField("signatureTTL"):
        ttl_ns = duration_from_pb(request.signatureTTL)
        if ttl_ns <= 0:
            raise ValidationError(
                f"invalid SignatureTTL ({format_duration(ttl_ns)}; expected > 0s)"
            )


def validate_health_request(request: pb.FragmentStoreHealthRequest) -> None:
    """Check a request for the health of a fragment store.

    Raises: ValidationError.
    """
    check_field("FragmentStore", validate_store_url, request.fragment_store)
    prefix = request.check_delete_prefix
    if not prefix:
        return
    if not request.check_delete:
        raise ValidationError("unexpected CheckDeletePrefix without CheckDelete")
    if not prefix.endswith("/"):
        raise ValidationError(f"expected trailing '/' ({prefix})", path="CheckDeletePrefix")
    check_field(
        "CheckDeletePrefix", validate_path_component, prefix[:-1], 1, _DELETE_PREFIX_LENGTH_MAX
    )


def _checked_status(number: int) -> Status:
    status = Status.from_wire(number)
    check_field("Status", status.require_known)
    return status


def _check_url(context: str, url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise ValidationError(f'parse "{url}": {err}', path=context) from None
    if not parts.scheme:
        raise ValidationError(f"not absolute ({url})", path=context)


def validate_read_response(response: pb.ReadResponse) -> None:
    """Check a message of a read: either metadata, or content of the fragment announced before.

    Raises: ValidationError.
    """
    status = _checked_status(response.status)
    if response.HasField("header"):
        check_field("Header", validate_header, response.header)
    if response.offset < 0:
        raise ValidationError(f"invalid Offset ({response.offset}; expected >= 0)")
    if response.content:
        _validate_read_content(status, response)
    else:
        _validate_read_metadata(response)


def _validate_read_content(status: Status, response: pb.ReadResponse) -> None:
    if status is not Status.OK:
        raise ValidationError(f"unexpected Status with Content ({status.name})")
    if response.HasField("header"):
        raise ValidationError("unexpected Header with Content")
    if response.write_head:
        raise ValidationError(f"unexpected WriteHead with Content ({response.write_head})")
    if response.HasField("fragment"):
        raise ValidationError("unexpected Fragment with Content")
    if response.fragment_url:
        raise ValidationError(f"unexpected FragmentUrl with Content ({response.fragment_url})")


def _validate_read_metadata(response: pb.ReadResponse) -> None:
    if response.write_head < 0:
        raise ValidationError(f"invalid WriteHead ({response.write_head}; expected >= 0)")
    if not response.HasField("fragment"):
        if response.fragment_url:
            raise ValidationError(
                f"unexpected FragmentUrl without Fragment ({response.fragment_url})"
            )
        return
    fragment = Fragment.from_pb(response.fragment)
    check_field("Fragment", fragment.validate)
    if not fragment.begin <= response.offset < fragment.end:
        raise ValidationError(
            f"invalid Offset ({response.offset}; "
            f"expected {fragment.begin} <= offset < {fragment.end})"
        )
    if response.write_head < fragment.end:
        raise ValidationError(
            f"invalid WriteHead ({response.write_head}; expected >= {fragment.end})"
        )
    if response.fragment_url:
        _check_url("FragmentUrl", response.fragment_url)


def validate_append_response(response: pb.AppendResponse) -> None:
    """Check the outcome of an append.

    Raises: ValidationError.
    """
    status = _checked_status(response.status)
    check_field("Header", validate_header, response.header)
    if response.HasField("commit"):
        check_field("Commit", Fragment.from_pb(response.commit).validate)
    elif status is Status.OK:
        raise ValidationError("expected Commit")
    if response.HasField("registers"):
        check_field("Registers", LabelSet.from_pb(response.registers).validate)
    elif status in (Status.OK, Status.REGISTER_MISMATCH):
        raise ValidationError("expected Registers")
    if response.total_chunks < 0:
        raise ValidationError(f"invalid TotalChunks ({response.total_chunks}; expected >= 0)")
    if not 0 <= response.delayed_chunks <= response.total_chunks:
        raise ValidationError(
            f"invalid DelayedChunks ({response.delayed_chunks}; "
            f"expected 0 <= DelayedChunks <= {response.total_chunks})"
        )


def validate_replicate_response(response: pb.ReplicateResponse) -> None:
    """Check a replica's answer.

    Raises: ValidationError.
    """
    status = _checked_status(response.status)
    if response.HasField("header"):
        check_field("Header", validate_header, response.header)
    elif status is Status.WRONG_ROUTE:
        raise ValidationError("expected Header")
    if status is Status.PROPOSAL_MISMATCH:
        if not response.HasField("fragment"):
            raise ValidationError("expected Fragment")
        if not response.HasField("registers"):
            raise ValidationError("expected Registers")
        check_field("Fragment", Fragment.from_pb(response.fragment).validate)
        check_field("Registers", LabelSet.from_pb(response.registers).validate)
        return
    if response.HasField("fragment"):
        raise ValidationError("unexpected Fragment")
    if response.HasField("registers"):
        raise ValidationError("unexpected Registers")


def validate_list_response(response: pb.ListResponse, *, continuation: bool = False) -> None:
    """Check a message of a listing.

    Args:
        continuation: whether it follows the first message of a snapshot, and so has no header.

    Raises: ValidationError.
    """
    _checked_status(response.status)
    if not continuation:
        check_field("Header", validate_header, response.header)
    elif response.header.etcd.revision:
        # Go also writes headers that are present but empty: these are not errors.
        raise ValidationError("unexpected Header in a continuation")
    for index, journal in enumerate(response.journals):
        check_field(f"Journals[{index}]", _validate_listed_journal, journal)


def _validate_listed_journal(journal: pb.ListResponse.Journal) -> None:
    # The spec is not held against its rules: those of the brokers may be others (Gazette's, or those
    # of a later version), and one journal must not hide all others from who could mend it.
    if journal.mod_revision <= 0:
        raise ValidationError(f"invalid ModRevision ({journal.mod_revision}; expected > 0)")
    if journal.create_revision < 0:
        raise ValidationError(f"invalid CreateRevision ({journal.create_revision}; expected >= 0)")
    check_field("Route", Route.from_pb(journal.route).validate)


def validate_apply_response(response: pb.ApplyResponse) -> None:
    """Check the outcome of a change of journals.

    Raises: ValidationError.
    """
    _checked_status(response.status)
    check_field("Header", validate_header, response.header)


def validate_fragments_response(response: pb.FragmentsResponse) -> None:
    """Check a page of fragments.

    Raises: ValidationError.
    """
    _checked_status(response.status)
    check_field("Header", validate_header, response.header)
    for index, listed in enumerate(response.fragments):
        check_field(f"Fragments[{index}]", _validate_listed_fragment, listed)
    if response.next_page_token < 0:
        raise ValidationError(f"invalid NextPageToken ({response.next_page_token}; expected >= 0)")


def _validate_listed_fragment(listed: pb.FragmentsResponse._Fragment) -> None:
    check_field("Spec", Fragment.from_pb(listed.spec).validate)
    if listed.signed_url:
        _check_url("SignedUrl", listed.signed_url)


def validate_health_response(response: pb.FragmentStoreHealthResponse) -> None:
    """Check a report of the health of a fragment store.

    Raises: ValidationError.
    """
    status = _checked_status(response.status)
    check_field("Header", validate_header, response.header)
    if response.store_health_error and status is Status.OK:
        raise ValidationError(
            f"unexpected StoreHealthError with OK ({response.store_health_error})"
        )
