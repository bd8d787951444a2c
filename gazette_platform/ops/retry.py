"""Back-off between attempts."""

from __future__ import annotations

__all__ = ["backoff_s"]

# Gazette's clients use these steps for all retries; ours keep them so that mixed fleets behave alike.
_STEPS_S = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0)
_LAST_S = 5.0


def backoff_s(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt`, where the first retry is 0.

    >>> [backoff_s(n) for n in (-1, 0, 1, 2, 4, 6, 99)]
    [0.0, 0.05, 0.05, 0.1, 1.0, 5.0, 5.0]
    """
    if attempt < 0:
        return 0.0
    return _STEPS_S[attempt] if attempt < len(_STEPS_S) else _LAST_S
