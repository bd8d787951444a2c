"""Which errors of servers in a test's own process its test brings about; of any other it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.errors import LeaseLost

if TYPE_CHECKING:
    from gazette_platform.broker.serve import Broker
    from gazette_platform.consumer.process import ConsumerProcess

__all__ = ["ExpectedErrors"]


@final
class ExpectedErrors:
    """The loss of a lease, at first: tests end leases, and a busy machine does. That is no fault of a server."""

    def __init__(self) -> None:
        self._kinds: set[type[BaseException]] = {LeaseLost}

    def add(self, *errors: type[BaseException]) -> None:
        """A test brings these about, too."""
        self._kinds.update(errors)

    def check(self, server: Broker | ConsumerProcess) -> None:
        """Raises: AssertionError: something else went wrong with it."""
        for error in (server.failure, *server.faults.recent):
            if error is not None and not isinstance(error, tuple(self._kinds)):
                raise AssertionError(
                    f"{server.config.flags} {server.config.id}: {type(error).__name__}: {error} (the test "
                    "that brings it about says so by `expect`)"
                ) from error
