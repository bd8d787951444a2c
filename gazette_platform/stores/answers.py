"""Answers of object stores: read those to LIST, refuse what is not a listing, and classify errors. Pure.

A library that reads an error, a page for people or half an answer as a listing of nothing makes indexes forget what a
bucket holds. So an answer counts only if it says that it is a listing, of what was asked, and does not contradict itself.

obstore says little by the types of its errors (a missing bucket looks like a missing object), and has the store's answer
only as text. So status and code are taken from that text, in the forms in which S3, GCS and Azure write them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from gazette_platform.errors import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable
from gazette_platform.stores.interface import StoredObject

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_LENGTH: Final = 80


class OddAnswer(Exception):
    """An answer that is not the listing that was asked for."""

    def __init__(self, why: str, answer: bytes = b"") -> None:
        """Say why, and how the answer begins."""
        begins = " ".join(answer[: 4 * _SHOWN_LENGTH].decode("utf-8", "replace").split())
        shown = f", which begins with {begins[:_SHOWN_LENGTH]!r}" if begins else ""
        super().__init__(f"the answer is not a listing: {why}{shown}")


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the objects of a listing, by their whole keys."""

    objects: list[StoredObject]
    more: str
    """The token that gives the next page; empty: this is the last one."""


def s3_page(body: bytes, bucket: str, prefix: str) -> Page:
    """Read an answer to ListObjectsV2. Raises: OddAnswer."""
    root = _root(body, "ListBucketResult")
    _same(body, bucket=(_text(root, "Name"), bucket), prefix=(_text(root, "Prefix"), prefix))
    contents = [*_children(root, "Contents")]
    count = _text(root, "KeyCount")
    if count is not None and count.strip() != str(len(contents)):
        raise OddAnswer(f"it counts {count} keys and has {len(contents)}", body)
    is_cut = (_text(root, "IsTruncated") or "").strip()
    more = _text(root, "NextContinuationToken") or ""
    if is_cut not in ("true", "false"):
        raise OddAnswer("it does not say whether more follows", body)
    if is_cut == "true" and not more:
        raise OddAnswer("it is cut and does not say how to go on (ListObjectsV2 does)", body)
    with _fields(body):
        return Page(
            [
                StoredObject(
                    _needed(item, "Key"),
                    int(datetime.fromisoformat(_needed(item, "LastModified")).timestamp()),
                    int(_needed(item, "Size")),
                )
                for item in contents
            ],
            more if is_cut == "true" else "",
        )


def azure_page(body: bytes, container: str, prefix: str) -> Page:
    """Read an answer to List Blobs. Raises: OddAnswer."""
    root = _root(body, "EnumerationResults")
    named = root.get("ContainerName")
    # Older versions give the URL of the container.
    named = None if named is None else named.rstrip("/").rpartition("/")[2]
    _same(body, container=(named, container), prefix=(_text(root, "Prefix"), prefix))
    blobs = next(_children(root, "Blobs"), None)
    more = _text(root, "NextMarker")
    if blobs is None or more is None:
        raise OddAnswer("it has no blobs, or does not say whether more follows", body)
    with _fields(body):
        return Page([_blob(item) for item in _children(blobs, "Blob")], more)


def _blob(item: ET.Element) -> StoredObject:
    name = next(_children(item, "Name"))
    key = name.text or ""
    properties = next(_children(item, "Properties"))
    return StoredObject(
        unquote(key) if name.get("Encoded") == "true" else key,
        int(parsedate_to_datetime(_needed(properties, "Last-Modified")).timestamp()),
        int(_needed(properties, "Content-Length")),
    )


def gcs_page(body: bytes) -> Page:
    """Read an answer to the JSON API's ``objects.list``. Raises: OddAnswer."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise OddAnswer("it is not JSON", body) from err
    if not isinstance(answer, dict) or answer.get("kind") != "storage#objects":
        raise OddAnswer("its kind is not storage#objects", body)
    items, more = answer.get("items", []), answer.get("nextPageToken", "")
    if not isinstance(items, list) or not isinstance(more, str):
        raise OddAnswer("its items or its token have another form", body)
    with _fields(body):
        return Page(
            [
                StoredObject(
                    str(item["name"]),
                    int(datetime.fromisoformat(item["updated"]).timestamp()),
                    int(item["size"]),
                )
                for item in items
            ],
            more,
        )


def next_token(page: Page, asked_with: str) -> str:
    """Return the token of the next page. Raises: OddAnswer: it gives this page again."""
    if page.more and page.more == asked_with:
        raise OddAnswer(f"it has the token {page.more[:_SHOWN_LENGTH]!r}, which led to it")
    return page.more


def seen_below(folder: str, page: Page) -> Iterator[StoredObject]:
    """Yield what a listing shows of a page: paths below `folder`, which is empty or ends in a slash.

    Empty objects are left out: those are folders that other programs made, and no fragment is empty.
    Names that begin with a dot are of brokers' own files.

    Raises: OddAnswer: a key is not below the folder, or is one that no broker writes.
    """
    for item in page.objects:
        if not item.path.startswith(folder):
            raise OddAnswer(f"it has {item.path!r}, which is not below {folder!r}")
        parts = item.path[len(folder) :].split("/")
        if not item.size or any(part.startswith(".") for part in parts):
            continue
        if "" in parts:
            raise OddAnswer(f"{item.path!r} has an empty segment (no broker wrote it: remove it)")
        yield StoredObject(item.path[len(folder) :], item.mod_time, item.size)


def _root(body: bytes, name: str) -> ET.Element:
    # No listing has a document type, which could make a small answer large.
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise OddAnswer("it has a document type", body)
    try:
        root = ET.fromstring(body)  # noqa: S314  without a document type it has no entities
    except (ET.ParseError, ValueError, LookupError) as err:
        raise OddAnswer("it is not XML", body) from err
    if _local(root) != name:
        raise OddAnswer(f"it is {_local(root)}, and not {name}", body)
    return root


def _same(body: bytes, **pairs: tuple[str | None, str]) -> None:
    """Refuse an answer to another question; not all servers repeat what they were asked."""
    for what, (said, asked) in pairs.items():
        if said and said != asked:
            raise OddAnswer(f"its {what} is {said!r}, and {asked!r} was asked for", body)


class _fields:  # noqa: N801  a context manager
    """Turns what a missing or wrong field raises into an `OddAnswer`."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        wrong = (ValueError, TypeError, KeyError, OverflowError, StopIteration)
        if isinstance(error, wrong):
            raise OddAnswer("an object has no key, size or time", self._body) from error


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]  # without the namespace


def _children(element: ET.Element, name: str) -> Iterator[ET.Element]:
    return (child for child in element if _local(child) == name)


def _text(element: ET.Element, name: str) -> str | None:
    found = next(_children(element, name), None)
    return None if found is None else found.text or ""


def _needed(element: ET.Element, name: str) -> str:
    text = _text(element, name)
    if not text:
        raise ValueError(name)
    return text


_STATUS: Final = re.compile(r"status code: (\d{3})")
# XML of S3 and Azure, and of GCS' XML interface; JSON of GCS and of token servers.
_CODE: Final = re.compile(r"<Code>\s*([\w.-]+)\s*</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)|\"message\"\s*:\s*\"([^\"]*)")
# obstore appends its own structures, which have the same once more.
_DEBUG: Final = "\n\nDebug source:"
_TEXT_LENGTH_MAX: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCodes:
    """Codes with which a kind of store says more than by the HTTP status."""

    gone: frozenset[str]
    """The bucket, container or account is missing, or disabled."""
    bad_credentials: frozenset[str]
    """It does not know us, rather than refuse us: another store would not either."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store said of why it failed."""

    status: int
    """Of HTTP; 0 if there was no answer."""
    code: str
    """The store's own word for it; "" if it gave none, as answers to HEAD cannot."""
    text: str
    """For people: one line without the body of the answer, which may be long, and name keys."""


def answer_of(error: BaseException) -> Answer:
    """What is known of an error of obstore.

    >>> answer_of(
    ...     OSError("GET x: status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>")
    ... )
    Answer(status=404, code='NoSuchKey', text='GET x: status code: 404 Not Found: NoSuchKey')
    """
    full = str(error).partition(_DEBUG)[0]
    status = _STATUS.search(full)
    code = _CODE.search(full)
    message = _MESSAGE.search(full)
    text = re.split(r"<\?xml|<Error>|<!DOCTYPE|<html|\{", full, maxsplit=1)[0]
    if code is not None:
        text += code[1]
    if message is not None:
        text += f": {message[1] or message[2] or ''}"
    text = " ".join(text.split())
    return Answer(int(status[1]) if status else 0, code[1] if code else "", text[:_TEXT_LENGTH_MAX])


def store_error(
    error: Exception, codes: ErrorCodes, what: str, *, may_be_missing: bool = True
) -> StoreError:
    """The error of a store for one of obstore's, or of whatever failed below it.

    Args:
        what: the operation that failed, on what.
        may_be_missing: whether it is about an object, which may not exist.

    Source: Gazette's IsAuthError of S3, GCS and Azure; departs: a 403 that is about our key is none.
    """
    answer = answer_of(error)
    kind = type(error).__name__
    text = f"{what}: {answer.text or kind}"
    if answer.code in codes.gone:
        return AccessDenied(f"{text} (create it, or correct the URL)")
    if answer.code in codes.bad_credentials or answer.status == 401 or kind == _NO_CREDENTIALS:
        return StoreUnavailable(f"{text} (check the credentials of this process, and its clock)")
    if answer.status == 403 or kind == _REFUSED:
        return AccessDenied(f"{text} (allow it to the credentials of this process)")
    if isinstance(error, FileNotFoundError) and may_be_missing:
        return ObjectNotFound(text)
    if isinstance(error, ValueError):  # a name that cannot be one
        return StoreError(text)
    return StoreUnavailable(text)


# Names of obstore's errors, which cannot be imported without it.
_NO_CREDENTIALS: Final = "UnauthenticatedError"
_REFUSED: Final = "PermissionDeniedError"
