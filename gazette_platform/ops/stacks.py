"""Where threads and the tasks of an event loop are, for the log of a process that does not end."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["describe_tasks", "describe_threads"]

_DEPTH_MAX = 30
_TASKS_MAX = 200


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """The tasks that wait, each with the source lines where it and what it awaits stand, outermost first.

    May be called from another thread: what changes meanwhile is described as it was before or after.
    """
    lines: list[str] = []
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in tasks[:_TASKS_MAX]:
        lines.append(f"{task.get_name()}:")
        lines += [f"  {_place(frame)}" for frame in _frames(task.get_coro())]
    if len(tasks) > _TASKS_MAX:
        lines.append(f"and {len(tasks) - _TASKS_MAX} more")
    return "\n".join(lines)


def describe_threads() -> str:
    """The threads that run Python, each with the lines at which it stands, outermost first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, innermost in sys._current_frames().items():  # noqa: SLF001  there is no other way
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < _DEPTH_MAX:
            frames.append(frame)
            frame = frame.f_back
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [f"  {_place(frame)}" for frame in reversed(frames)]
    return "\n".join(lines)


def _frames(awaited: Any) -> list[FrameType]:
    """Those of a coroutine and of what it awaits; futures and C code have none."""
    frames: list[FrameType] = []
    while awaited is not None and len(frames) < _DEPTH_MAX:
        frame = _first(awaited, "cr_frame", "ag_frame", "gi_frame")
        if frame is None:
            break
        frames.append(frame)
        awaited = _first(awaited, "cr_await", "ag_await", "gi_yieldfrom")
    return frames


def _first(thing: Any, *names: str) -> Any:
    return next(
        (found for name in names if (found := getattr(thing, name, None)) is not None), None
    )


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
