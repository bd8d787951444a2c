"""What obstore leaves to us: the meaning of errors, and credentials that are renewed before they end.

obstore says little by the types of its errors (a missing bucket looks like a missing object), and has the store's
answer only as text. So status and code are taken from that text, in the forms in which S3, GCS and Azure write them.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from gazette_platform.errors import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

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


T = TypeVar("T")

# After a renewal that failed, while the present value is still good.
_RETRY_AFTER: Final = timedelta(minutes=1)


@final
class Renewed(Generic[T]):
    """A value with an end, which is renewed when half of its life is over. Used from several threads.

    Drivers renew credentials *before* an operation. obstore asks for them in the middle of one, too, in
    threads of its own, where there is no event loop, and where all its operations wait for the answer.
    """

    def __init__(
        self, fetch: Callable[[], tuple[T, datetime]], now: Callable[[], datetime]
    ) -> None:
        """Without a value.

        Args:
            fetch: gets a value, and when it ends; blocks, and may raise a `StoreError`.
            now: aware, as the ends of values.
        """
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._attempts = 0  # that ended
        self._error: StoreError | None = None
        self._held: tuple[T, datetime] | None = None
        self._due_at = datetime.min.replace(tzinfo=UTC)

    def is_due(self) -> bool:
        """Whether `current` would fetch a value."""
        return self._now() >= self._due_at

    def current(self) -> tuple[T, datetime]:
        """The value, and when it ends. If it is due, this fetches one, or waits until another thread did.

        A value that cannot be renewed serves on to its end.

        Raises: StoreError: there is none.
        """
        attempts = self._attempts
        with self._lock:
            if self._attempts != attempts and self._error is not None:
                raise self._error  # of the attempt that this one waited for
            if self.is_due():
                self._renew()
            assert self._held is not None
            return self._held

    def held(self) -> tuple[T, datetime]:
        """The value as it is, unless it has ended; then as `current`."""
        held = self._held
        return held if held is not None and self._now() < held[1] else self.current()

    def _renew(self) -> None:
        began = self._now()
        try:
            value, ends_at = self._fetch()
        except StoreError as err:
            self._attempts += 1
            if self._held is None or self._now() >= self._held[1]:
                self._error = err
                raise
            self._due_at = min(began + _RETRY_AFTER, self._held[1])
            return
        self._attempts += 1
        self._error = None
        self._held = value, ends_at
        self._due_at = began + (ends_at - began) / 2
