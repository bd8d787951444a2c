"""How many bytes a second a caller may produce and fetch: Kafka's quotas. Pure.

Answers say how long the client has to wait (``throttle_time_ms``), and its connection is not served for that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from gazette_platform.kafka.gateway import KafkaMetrics
    from gazette_platform.kafka.wire import Call

_BURST_S: Final = 1.0
"""What a caller that was quiet may send at once, as time at its rate."""
_CALLERS_MAX: Final = 4096
# Keys of calls.
_PRODUCE: Final = 0
_FETCH: Final = 1


@final
class Quota:
    """The same rate for each caller.

    Attributes:
        limit: bytes a second; 0: none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # By caller: when it has waited for all that it took.
        self._paid_at: dict[str, float] = {}

    def take(self, caller: str, size: int, now: float) -> float:
        """Count bytes. Returns: how long the caller has to wait from now on, in seconds."""
        if not self.limit:
            return 0.0
        paid_at = max(self._paid_at.pop(caller, 0.0), now - _BURST_S) + size / self.limit
        if len(self._paid_at) >= _CALLERS_MAX:
            self._forget(now)
        self._paid_at[caller] = paid_at
        return max(0.0, paid_at - now)

    def _forget(self, now: float) -> None:
        """Forget callers that were quiet; if there is none, the one that came longest ago."""
        quiet = [caller for caller, at in self._paid_at.items() if at <= now - _BURST_S]
        for caller in quiet or [next(iter(self._paid_at))]:
            del self._paid_at[caller]


@final
class Quotas:
    """What callers may produce and fetch, of all connections.

    A caller is the subject of the token, or the client id if the token has none.
    """

    def __init__(self, produce: int, fetch: int) -> None:
        self._of = {_PRODUCE: ("in", Quota(produce)), _FETCH: ("out", Quota(fetch))}

    def take(self, call: Call, size: int, answer: Any, metrics: KafkaMetrics, now: float) -> float:
        """Count a call. Returns: how long the client has to wait before its next one, in seconds.

        Args:
            size: of the request.
            now: of a clock that never goes back, in seconds.
        """
        direction, quota = self._of.get(call.api.key, ("", None))
        if quota is None or not quota.limit:
            return 0.0
        if call.api.key == _FETCH:
            size = sum(
                len(part.records or b"") for topic in answer.responses for part in topic.partitions
            )
        subject = call.peer.access.subject
        caller = f"subject {subject}" if subject else f"client {call.client_id}"
        wait_s = quota.take(caller, size, now)
        # Answers have whole milliseconds.
        wait_s = int(wait_s * 1000) / 1000
        metrics.throttled_s[direction] += wait_s
        return wait_s
