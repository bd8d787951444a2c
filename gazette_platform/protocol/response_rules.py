"""Rules of responses, which a client checks before it believes one.

Departs from Gazette where its rules refuse what its own brokers send: a replica's first response
has a header with OK, and an append that suspends its journal answers SUSPENDED with a commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.enums import Status
from gazette_platform.protocol.field_context import check_field
from gazette_platform.protocol.fragments import Fragment
from gazette_platform.protocol.labels import LabelSet
from gazette_platform.protocol.routing import Route, validate_header

if TYPE_CHECKING:
    from gazette_platform.protocol.pb import protocol_pb2 as pb

__all__ = [
    "validate_append_response",
    "validate_apply_response",
    "validate_fragments_response",
    "validate_health_response",
    "validate_list_response",
    "validate_read_response",
    "validate_replicate_response",
]


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
