"""Copies of files that outlast who began them: a tick waits a little, and a later one finds them done.

A copy within an object store does not report its progress, and one between stores may be of gigabytes. So it
runs on a thread of its own, with a deadline of its own; who asks for the same copy meanwhile waits for that one.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["copy_within"]

# Each may hold a file of temporary content.
_COPIES_MAX: Final = 4

_lock = threading.Lock()
_running: dict[tuple[str, str], concurrent.futures.Future[None]] = {}


def copy_within(key: tuple[str, str], work: Callable[[], None], seconds: float) -> None:
    """Have `work` done, or begun.

    Args:
        key: store and path of the target: of the same one there is only one copy at a time.
        work: the copy; it ends by a deadline of its own.
        seconds: to wait for it.

    Raises: StoreUnavailable: it is not done yet, and goes on; or too many are. What `work` raises.
    """
    with _lock:
        future = _running.get(key)
        if future is None:
            if len(_running) >= _COPIES_MAX:
                raise StoreUnavailable(
                    f"{key[1]} is not copied yet, because {_COPIES_MAX} other files are being copied; it is "
                    "tried again"
                )
            future = _running[key] = concurrent.futures.Future()
            # Of no worth without its process: a copy in part is seen by its size.
            threading.Thread(
                target=_run, args=(key, work, future), name="gazette-copy", daemon=True
            ).start()
    try:
        future.result(seconds)
    except concurrent.futures.TimeoutError as err:
        if future.done():
            raise  # it is that of `work`
        raise StoreUnavailable(
            f"{key[1]} is still being copied after {seconds:.0f} s, which goes on; it is looked at again"
        ) from err


def _run(
    key: tuple[str, str], work: Callable[[], None], future: concurrent.futures.Future[None]
) -> None:
    error: BaseException | None = None
    try:
        work()
    except BaseException as err:  # noqa: BLE001  whoever waits is to get it
        error = err
    with _lock:
        _running.pop(key, None)
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
