"""A mirror of a key space of texts, followed while a test looks at it."""

from __future__ import annotations

import contextlib

from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import TaskGroup

__all__ = ["TextView", "watching"]


class TextView:
    """Values are text that must not be "bad"."""

    def __init__(self):
        self.values: dict[str, str] = {}

    def begin(self):
        pass

    def end(self):
        pass

    def put(self, kv):
        if kv.value == b"bad":
            raise ValidationError("bad")
        self.values[kv.key.rpartition("/")[2]] = kv.value.decode()

    def remove(self, key):
        self.values.pop(key.rpartition("/")[2], None)


@contextlib.asynccontextmanager
async def watching(space):
    tasks = TaskGroup("test")
    tasks.spawn(space.watch())
    try:
        yield tasks
        assert tasks.failure is None
    finally:
        await tasks.close()
