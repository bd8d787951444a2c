"""Download one file of known length and digest, resuming what a former try left."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, final

from gazette_platform.embedded.progress import Step, quiet_step
from gazette_platform.errors import SetupError
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Download", "sha256_of"]

_BLOCK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 60.0
_TRIES_MAX = 6
_HTTP_PARTIAL = 206
_HTTP_RANGE_NOT_SATISFIABLE = 416


@final
class Download:
    """A file to fetch to `target`.

    What has arrived is kept beside the target as ``<name>.part``: a download that was cut off, by
    the network or by the end of the process, continues there. The target appears only complete
    and with the right digest, by a rename.

    Args:
        target: path of the result.
        sha256: hexadecimal.
        size_bytes: exact length.
    """

    def __init__(
        self,
        target: Path,
        *,
        sha256: str,
        size_bytes: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._sleep = sleep

    def run(self, url: str, step: Step | None = None) -> Path:
        """Fetch from `url` unless the target exists. Blocks.

        Returns: the target.
        Raises: SetupError: the server cannot be reached, refuses, or serves something else.
        """
        if self.target.exists():
            return self.target
        if not url.startswith(("http://", "https://")):
            raise SetupError(f"cannot download {url}: only http and https are supported")
        step = step or quiet_step()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._fetch_all(url, step)
        self._check(url)
        self.part.rename(self.target)
        return self.target

    def _fetch_all(self, url: str, step: Step) -> None:
        failure: Exception | None = None
        for attempt in range(_TRIES_MAX):
            if attempt:
                self._sleep(backoff_s(attempt - 1))
            try:
                self._fetch_rest(url, step)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500 and error.code != _HTTP_RANGE_NOT_SATISFIABLE:
                    raise SetupError(
                        f"cannot download {url}: the server answered {error.code} {error.reason}"
                    ) from error
                if error.code == _HTTP_RANGE_NOT_SATISFIABLE:
                    self.part.unlink(missing_ok=True)
                failure = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            else:
                if self._part_bytes() >= self._size_bytes:
                    return
                failure = OSError(f"the stream ended at byte {self._part_bytes()}")
        raise SetupError(
            f"cannot download {url}: {failure} (after {_TRIES_MAX} tries; what arrived is kept, "
            "so run the same command again to continue)"
        ) from failure

    def _part_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _fetch_rest(self, url: str, step: Step) -> None:
        begin = self._part_bytes()
        if begin >= self._size_bytes:
            return
        request = urllib.request.Request(url)  # noqa: S310  the scheme was checked
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        with urllib.request.urlopen(request, timeout=_CONNECT_TIMEOUT_S) as response:  # noqa: S310
            if response.status != _HTTP_PARTIAL:
                begin = 0  # this server does not support ranges: it sends all again, so we restart
            self._copy(response, begin, step)

    def _copy(self, response: Any, begin: int, step: Step) -> None:
        with self.part.open("ab" if begin else "wb") as part:
            done = begin
            step.advance_to(done)
            while block := response.read(_BLOCK_BYTES):
                part.write(block)
                done += len(block)
                if done > self._size_bytes:
                    return  # too long to be right: the check says so
                step.advance_to(done)

    def _check(self, url: str) -> None:
        found = sha256_of(self.part)
        if found == self._sha256:
            return
        size = self._part_bytes()
        self.part.unlink()
        raise SetupError(
            f"{url} is not the file expected: SHA-256 is {found} over {size} bytes, should be "
            f"{self._sha256} over {self._size_bytes} (removed; check the repository or proxy that "
            "served it, then run the same command again)"
        )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
