"""Connections of psycopg on which no call waits for ever."""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import override

__all__ = ["bounded_connection"]

# Between two looks whether an interrupt has come: psycopg's default.
_LOOK_S: Final = 0.1


def bounded_connection(answer_s: float) -> Any:
    """A class of connections that are closed once an answer does not come.

    What was begun on one is then rolled back, or was done.

    Args:
        answer_s: seconds to wait for an answer.

    Raises: ImportError: there is no psycopg.
    """
    import psycopg  # noqa: PLC0415  of an extra

    class Bounded(psycopg.Connection[Any]):
        @override
        def wait(self, gen: Any, interval: float = _LOOK_S, timeout: float | None = None) -> Any:
            limit = answer_s if timeout is None else timeout
            try:
                return super().wait(gen, interval, limit)
            except psycopg.OperationalError:
                if self.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    # The answer may come yet: nothing else can be asked here.
                    self.close()
                raise

    return Bounded
