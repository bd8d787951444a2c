"""The two tasks of a replica, and what they ask of the process around it, its *host*.

A standby plays the recovery log until the log is handed over. Then the primary opens the store on the played files,
restores the checkpoint, and runs transactions (`run`) until the replica stops or fails.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, final

from gazette_platform.consumer.application import TransactionPublisher
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus
from gazette_platform.consumer.recoverylog import (
    CONTENT_TYPE,
    Player,
    Recorder,
    new_author,
    pick_hints,
)
from gazette_platform.consumer.runtime.run import Run
from gazette_platform.consumer.runtime.sources import ReadBudget
from gazette_platform.consumer.runtime.status import done, step
from gazette_platform.consumer.store import ShardStore
from gazette_platform.consumer.transaction import BATCH_SIZE
from gazette_platform.errors import ApplicationFailed, EtcdError, ValidationError
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.consumer.application import Application, Shard
    from gazette_platform.consumer.assignments import ShardAssignment
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.recoverylog import FsmHints, Played
    from gazette_platform.consumer.runtime.status import Readiness
    from gazette_platform.message import AckIntent, SequencerCounts
    from gazette_platform.ops.clock import Clock

HINTS_INTERVAL_S: Final = 300.0
"""How old the primary's hints become: whoever recovers plays at least what was recorded since."""


class ShardHost(Protocol):
    """Keeps what is in etcd about one replica. Each call has a deadline of its own."""

    def promoted(self, assignment: ShardAssignment) -> None:
        """The replica goes on under another assignment, of a lower slot."""
        ...

    async def confirm(self) -> None:
        """Wait until it is certain that the assignment exists at this moment.

        Asked before a log, or what a remote store has, is taken from whoever had it.

        Raises: GazetteError: it is gone, or that will never be known.
        """
        ...

    async def fetch_hints(self) -> Sequence[FsmHints | None]:
        """Hints of the shard: the primary's, then backups, newest first; None where there are none.

        Raises: GazetteError: they cannot be read, or are of another log.
        """
        ...

    async def require_log(self, log: str, created: int) -> None:
        """Check that the recovery log still is the journal that the shard had first, and note it then.

        Args:
            log: its name.
            created: which journal has this name now (`protocol.offsets`); 0: unknown.

        Raises: JournalReplaced. GazetteError: that will never be known.
        """
        ...

    async def set_status(self, status: ReplicaStatus) -> None:
        """Fold a status into that of the assignment, while there is one; tried until it is done.

        Raises: GazetteError: it never will be.
        """
        ...

    async def put_hints(self, hints: FsmHints) -> None:
        """Keep hints of the recorder that is at work.

        Raises: EtcdError: retriable if etcd does not answer now, which does no harm.
        """
        ...

    async def put_backup_hints(self, hints: FsmHints) -> None:
        """Keep hints of a recovery that succeeded, before older ones; tried until it is done.

        Raises: GazetteError: it never will be.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """How replicas run."""

    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where each replica makes a directory for its files."""

    hints_interval_s: float = HINTS_INTERVAL_S
    """Seconds after which a primary keeps hints again, at the end of a transaction."""

    batch_size: int = BATCH_SIZE
    """About how many messages are consumed at a time."""

    lease_s: float = 20.0
    """Seconds after which shards of this process get other owners if it hangs."""

    budget: ReadBudget = field(default_factory=ReadBudget)
    """Of what is read and not consumed; one for all replicas of a process."""


# ------------------------------------------------------------------ the standby's task

_LABEL: Final = "content-type"

# Bytes of a shard's ID in the name of its directory. An ID has up to 512, and the name of a file 255.
_NAME_BYTES_MAX: Final = 200


@final
class Recovery:
    """Plays a recovery log. `play` it, and at any time `take_over`.

    Args:
        client: reads the log.
        host: has the hints, and receives the status.
        shard: its ID.
        log: its recovery log.
        parent: where to make a directory for the files.
        dice: draws the directory's name, and an author.
    """

    def __init__(
        self,
        client: AsyncClient,
        host: ShardHost,
        shard: str,
        log: str,
        *,
        parent: Path,
        dice: Random,
    ) -> None:
        self._client = client
        self._host = host
        self._log = log
        readable = shard.replace("/", "_").encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
        name = f"{readable}-{dice.getrandbits(64):016x}"
        # A name that was never used: files of an earlier replica of the shard may still be going away.
        self._directory = parent / name
        self._dice = dice
        self._player: asyncio.Future[Player] = asyncio.get_running_loop().create_future()
        self._played: asyncio.Future[Played] = asyncio.get_running_loop().create_future()

    async def play(self) -> None:
        """Play, and follow the log until it is taken over.

        Raises: StepFailed. Cancellation: deletes the files.
        """
        try:
            with step("beginRecovery"):
                await self._host.set_status(ReplicaStatus(ReplicaCode.BACKFILL))
                player = await self._begin()
            self._player.set_result(player)
            with step("player.Play"):
                played = await player.play()
        except Exception as err:
            for future in (self._player, self._played):
                if not future.done():
                    future.set_exception(err)
                    future.exception()  # looked at: perhaps no process takes over
            raise
        self._played.set_result(played)

    async def tell_standby(self) -> None:
        """Say STANDBY once the player has come to the head of the log. Cancellation: safe."""
        await asyncio.wait([self._player])
        if self._player.exception() is not None:
            return  # `play` reports it
        await self._player.result().tailing.wait()
        await self._host.set_status(ReplicaStatus(ReplicaCode.STANDBY))

    async def take_over(self) -> tuple[Played, int]:
        """Take the log over, as soon as the host confirms that it is ours. Once.

        Returns: the files, and the author that the log is of now.
        Raises: what `play` raises. Cancellation: safe, but no other caller can take over.
        """
        player = await asyncio.shield(self._player)
        author = new_author(self._dice)
        player.inject_handoff(author, confirm=self._host.confirm)
        return await asyncio.shield(self._played), author

    async def _begin(self) -> Player:
        with step("fetching hints"):
            hints = pick_hints(await self._host.fetch_hints(), self._log)
        with step("fetching log spec"):
            journal = await self._client.get(hints.log)
        found = journal.spec.labels.value_of(_LABEL)
        if found != CONTENT_TYPE:
            raise ValidationError(
                f"expected label {_LABEL} value {CONTENT_TYPE} (got {found}; journal {hints.log}: is it "
                "a recovery log?)"
            )
        with step("checking the log's identity"):
            await self._host.require_log(hints.log, journal.created)
        return Player(self._client, hints, self._directory, created=journal.created)


async def discard(directory: Path) -> None:
    """Delete files that no store will."""
    with ThreadPoolExecutor(1, "discard files") as disk:
        await run_in(disk, shutil.rmtree, directory, ignore_errors=True)


# ------------------------------------------------------------------ the primary's task

StoreT = TypeVar("StoreT", bound=ShardStore)
M = TypeVar("M")

_log = logging.getLogger(__name__)


@final
class Primary(Generic[StoreT, M]):
    """What a replica in slot 0 does, once.

    Attributes:
        store: None until the application has opened it.

    Args:
        shard: which one.
        application: consumes.
        host: keeps hints, and receives the status.
        readiness: receives readiness and progress.
        recovery: plays the log; None: there is none.
        log: the recovery log, as of when the replica was made.
        log_appends: appends to it alone, so that no room is waited for which only a commit makes.
        settings: how to run.
        clock: gives the time.
        counts: is to count what becomes of messages.
    """

    def __init__(
        self,
        shard: Shard,
        application: Application[StoreT, M],
        host: ShardHost,
        readiness: Readiness,
        *,
        recovery: Recovery | None,
        log: str,
        log_appends: AppendService,
        settings: ReplicaSettings,
        clock: Clock,
        counts: SequencerCounts | None = None,
    ) -> None:
        self.store: StoreT | None = None
        self._shard = shard
        self._application = application
        self._host = host
        self._recovery = recovery
        self._log = log
        self._log_appends = log_appends
        self._readiness = readiness
        self._settings = settings
        self._clock = clock
        self._counts = counts
        self._recorder: Recorder | None = None
        self._run: Run[StoreT, M] | None = None
        self._hints_at = 0.0

    async def work(self) -> None:
        """Consume for ever.

        Raises: StepFailed: the replica has failed. Cancellation: the open transaction is given up.
        """
        with step("completeRecovery"):
            store, checkpoint = await self._open()
            self._readiness.ready(checkpoint)
            await self._host.set_status(ReplicaStatus(ReplicaCode.PRIMARY))
        self._hints_at = self._clock.monotonic() + self._settings.hints_interval_s
        shard = self._shard
        publisher = TransactionPublisher(shard.client, shard.appends, self._clock)
        acknowledged: tuple[AckIntent, ...] = ()
        with step("runTransactions"):
            while True:
                self._run = Run(
                    shard,
                    self._application,
                    store,
                    publisher=publisher,
                    checkpoint=checkpoint,
                    readiness=self._readiness,
                    between=self._keep_hints,
                    clock=self._clock,
                    batch_size=self._settings.batch_size,
                    counts=self._counts,
                    acknowledged=acknowledged,
                    budget=self._settings.budget,
                )
                # A run ends when there is nothing more to read. The producer lives on, so ACKs that it has
                # appended must not come a second time.
                await self._run.run()
                acknowledged = self._run.acks
                checkpoint = await self._restore(store)
                self._readiness.ready(checkpoint)

    def abandon(self) -> None:
        """Let no append wait any longer for a commit; when it is not at work any more."""
        if self._run is not None:
            self._run.abandon()

    async def roll_back(self) -> None:
        """Have the store drop what is not committed; after a failure. Never raises."""
        if self.store is None:
            return
        try:
            await self.store.roll_back()
        except Exception as err:  # noqa: BLE001  what it failed with counts
            _log.warning(
                "shard %s: its open transaction is not rolled back: %s", self._shard.id, err
            )

    async def _open(self) -> tuple[StoreT, Checkpoint]:
        """The store, and where it goes on."""
        shard = self._shard
        if self._recovery is not None:
            await self._take_over(self._recovery)
        try:
            # Behind the takeover: until then the former owner may record more, and files are not final.
            with step("app.NewStore"):
                store = await done(self._application.new_store(shard, self._recorder))
                _check_store(store, self._recorder)
        except BaseException:
            if self._recorder is not None:
                await discard(Path(self._recorder.directory))
            raise
        self.store = store
        store.follow_lease(self._settings.lease_s)
        checkpoint = await self._restore(store)
        # Only now: what cannot be opened must not take the place of hints that are good.
        hints = shard.recovered_hints
        if hints is not None and hints.log == self._log:
            with step("storeRecoveredHints"):
                await self._host.put_backup_hints(hints)
        return store, checkpoint

    async def _restore(self, store: StoreT) -> Checkpoint:
        """The store's checkpoint. A remote store fences whoever restored before.

        The host confirms first that we are to do so. That leaves a window of one call of the store, in
        which another process may come to own the shard: it is fenced by us then, and is to begin again.
        A log has no such window; see `recoverylog.player.take_over`.
        """
        if self._recorder is None:
            with step("confirming the assignment"):
                await self._host.confirm()
        with step("store.RestoreCheckpoint"):
            return await store.restore_checkpoint()

    async def _take_over(self, recovery: Recovery) -> None:
        played, author = await recovery.take_over()
        try:
            # As played, without what the recorder adds: these hints have proven that they can be recovered.
            self._shard.recovered_hints = played.fsm.build_hints(played.log)
            with step("Recorder.start"):
                self._recorder = await Recorder.start(
                    self._shard.client,
                    self._log_appends,
                    played,
                    author,
                    log=self._log,
                    confirm=self._host.confirm,
                )
        except BaseException:
            await discard(played.directory)
            raise

    async def _keep_hints(self) -> None:
        """Have the host keep hints, if it is time."""
        now_s = self._clock.monotonic()
        if self._recorder is None or now_s < self._hints_at:
            return
        with step("storeRecordedHints"):
            hints = await self._recorder.build_hints()
            try:
                hints.validate()
            except ValidationError as err:
                # The files came from another log, and nothing of them was written to this one yet.
                _log.info("shard %s: hints are kept later: %s", self._shard.id, err)
                return
            self._hints_at = now_s + self._settings.hints_interval_s
            try:
                await self._host.put_hints(hints)
            except EtcdError as err:
                if not err.retriable:
                    raise
                _log.warning(
                    "shard %s: its hints are not kept now, but with a later transaction: %s",
                    self._shard.id,
                    err,
                )


def _check_store(store: object, recorder: Recorder | None) -> None:
    """Raises: ApplicationFailed: it is not one, as of an application without type checks, or not of that log."""
    if not isinstance(store, ShardStore):
        raise ApplicationFailed(
            f"new_store returned {store!r:.80}, and no store: return a SQLiteStore, or another subclass of "
            "ShardStore"
        )
    if recorder is not None and recorder.has_files and not store.keeps_files:
        raise ApplicationFailed(
            f"{recorder.log} has files of a store, and a {type(store).__name__} keeps none in a log: the shard would begin "
            "with empty state, and publish everything again. Open the store that wrote them; or take the recovery_log_prefix "
            "and hint_prefix out of the shard's spec to restart it"
        )
