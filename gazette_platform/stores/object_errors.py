"""What the errors of object stores mean to brokers: not there, refused for good, or may pass.

obstore says little by the types of its errors (a bucket that is missing looks like an object that
is), and has what the store answered only in their text. So the status and the code of the answer are
taken from there, in the forms in which S3, GCS and Azure write them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gazette_platform.errors import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable

__all__ = ["Answer", "ErrorCodes", "answer_of", "store_error"]

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
