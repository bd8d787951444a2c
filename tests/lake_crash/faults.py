"""Calls of a registrar to its neighbours, numbered; one of them goes wrong.

Brokers, metastore, files and Dagster's store are neighbours. What is killed is this process, by SIGKILL:
nothing of it runs any further, and its connections break. An answer that is lost is one whose
connection is closed here after the server has done what it was asked for; one that comes late does so
on another connection, after this process went on.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thrift.transport.TTransport import TTransportException

from gazette_platform.errors import StoreUnavailable, TransportError
from gazette_platform.lake.reading.storage import StoreFiles
from gazette_platform.testing.waiting import block_for
from tests.lake_crash.pairs import AIMED, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gazette_platform.hive import MetastoreClient, MetastoreSession
    from tests.lake_crash.plan import Fault

__all__ = ["Calls", "FaultyBrokers", "FaultyMetastore", "faulty_files"]

_LATE_S = 0.3
# Calls that change the metastore, or a store.
_WRITES = ("add_", "alter_", "create_", "drop_", "lock", "unlock")
_FILE_CALLS = ("take", "copy", "move", "remove")


class Calls:
    """Counts calls, writes their names down, and spoils the one that is due.

    Args:
        fault: what goes wrong; None: nothing.
        trace: file of names; a line says `name` before the call, and `name.` when it took effect.
        spared: between these the process is not killed, and between any others it is; None: between none.
    """

    def __init__(
        self, fault: Fault | None, trace: Path, spared: frozenset[Pair] | None = None
    ) -> None:
        self._at = fault.at if fault is not None and fault.mode != "struck" else 0
        self._mode = fault.mode if fault is not None else ""
        self._name = fault.call if fault is not None else ""
        self._count = 0
        self._spared, self._before = spared, ""
        # Unbuffered, so that what was written outlives this process.
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.late: list[threading.Thread] = []

    def call(
        self,
        name: str,
        effect: Callable[[], Any],
        broken: Callable[[], BaseException] | None = None,
        late: Callable[[], None] | None = None,
    ) -> Any:
        """Do `effect`, unless this is the call that goes wrong.

        Args:
            broken: makes the error of a call that fails; None: without a report, the process ends.
            late: has the effect later; None: it has none.
        """
        self._count += name.startswith(self._name)
        self._note(name)
        if self._spared is not None and Pair(self._before, name) not in self._spared:
            self._note(f"{AIMED} before {name}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._count != self._at or not name.startswith(self._name):
            found = effect()
            self._note(f"{name}.")
            self._before = name
            return found
        if self._mode.startswith("killed") or broken is None:
            if self._mode.endswith("after"):
                effect()
            self._note(f"! {self._mode} {name}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._mode.endswith("after"):
            effect()
        self._note(f"! {self._mode} {name}")
        assert broken is not None
        error = broken()
        if self._mode == "late" and late is not None:
            thread = threading.Thread(target=late, name="late")
            thread.start()
            self.late.append(thread)
        raise error

    def finish(self) -> None:
        """Wait for what takes effect late."""
        for thread in self.late:
            thread.join()

    def _note(self, text: str) -> None:
        os.write(self._trace, f"{text}\n".encode())


class FaultyBrokers:
    """A FragmentSource whose calls count."""

    def __init__(self, source: Any, calls: Calls) -> None:
        self._source, self._calls = source, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._source, name)

        def call(*args: Any) -> Any:
            return self._calls.call(
                f"broker {name}",
                lambda: method(*args),
                lambda: TransportError("cut off on purpose"),
            )

        return call


class FaultyMetastore:
    """Opens sessions whose calls count."""

    def __init__(self, metastore: MetastoreClient, calls: Calls) -> None:
        self._metastore, self._calls = metastore, calls

    @contextmanager
    def connect(self) -> Iterator[MetastoreSession]:
        """As that of the client."""
        with self._metastore.connect() as session:
            session._client = _FaultyThrift(session._client, self._metastore, self._calls)
            yield session


class _FaultyThrift:
    def __init__(self, client: Any, metastore: MetastoreClient, calls: Calls) -> None:
        self._client, self._metastore, self._calls = client, metastore, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def broken() -> BaseException:
            self._client._iprot.trans.close()
            return TTransportException(message="cut off on purpose")

        def call(*args: Any) -> Any:
            def late() -> None:
                with self._metastore.connect() as session:
                    block_for(_LATE_S)
                    getattr(session._client, name)(*args)

            is_write = name.startswith(_WRITES)
            return self._calls.call(
                f"metastore {name}", lambda: method(*args), broken, late if is_write else None
            )

        return call


def faulty_files(calls: Calls) -> None:
    """Count all calls of this process that change files."""
    for name in _FILE_CALLS:
        _count_files(name, getattr(StoreFiles, name), calls)


def _count_files(name: str, method: Any, calls: Calls) -> None:
    def call(self: StoreFiles, *args: Any) -> Any:
        return calls.call(
            f"file {name}",
            lambda: method(self, *args),
            lambda: StoreUnavailable("cut off on purpose"),
        )

    setattr(StoreFiles, name, call)
