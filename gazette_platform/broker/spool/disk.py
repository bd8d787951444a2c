"""What appends fail with when the disk of spools is full or broken."""

from __future__ import annotations

from typing import final

from gazette_platform.serving.interface import Code, RpcFailed

__all__ = ["DiskFull", "not_kept"]


@final
class DiskFull(RpcFailed):
    """The disk of spools is full, and a fragment that can be persisted takes up room on it."""

    def __init__(self, journal: str, err: OSError) -> None:
        super().__init__(
            Code.UNAVAILABLE,
            f"{journal}: spool: {err}; what it holds is persisted to make room, append again later "
            "(and give the disk of --broker.spool-dir more room)",
        )


def not_kept(journal: str, err: OSError) -> RpcFailed:
    """What an append ends with whose commit could not be recorded."""
    return RpcFailed(
        Code.UNAVAILABLE,
        f"{journal}: spool: what is appended cannot be recorded: {err} (check --broker.spool-dir and "
        "its disk; if that folder was removed, start the broker again)",
    )
