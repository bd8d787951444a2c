"""`gazctl shards prune`, `recover` and `unassign`: recovery logs, the files that they hold, and another try of a shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import typer

from gazette_platform.cli.gazctl.arguments import Ids, ShardSelection, ShardSelector
from gazette_platform.cli.gazctl.connection import FileRoot, connected_shards, matching_shards
from gazette_platform.cli.gazctl.journals.prune import FragmentRemover, OpenStores, remove_all
from gazette_platform.cli.output import note, print_text
from gazette_platform.consumer.recoverylog import (
    Player,
    Segment,
    ShardHints,
    judge_fragment,
    needs_of,
    pick_hints,
)
from gazette_platform.errors import (
    AccessDenied,
    DataError,
    GazetteError,
    StoreError,
    ValidationError,
)
from gazette_platform.fragment.cover_set import StoredFragment
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import Fragment, SuspendLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
    from gazette_platform.consumer.client import ShardClient, ShardListing

# Shards whose hints are asked for at the same time.
_HINTS_AT_A_TIME: Final = 32


@dataclass(slots=True)
class LogPruning:
    """What came of pruning, in all logs so far."""

    logs: int = 0
    skipped_logs: int = 0
    failed_logs: int = 0
    fragments: int = 0
    removed: int = 0
    """Or would be, in a dry run; likewise below."""
    content_bytes: int = 0
    denied: int = 0
    """That the store does not allow to remove."""
    stores: dict[str, str] = field(default_factory=dict)
    """Why a store is not healthy, by its URL; empty: it is."""


@final
class LogPruner:
    """Prunes the logs of shards, one after the other; a failure in one does not stop the others.

    Args:
        file_root: directory that ``file`` stores are rooted at; None refuses these.
        tell: prints a line for the person at the terminal.
        on_removed: takes each fragment that was removed, or would be in a dry run.
    """

    def __init__(
        self,
        shards: ShardClient,
        client: AsyncClient,
        clock: Clock,
        *,
        file_root: Path | None,
        dry_run: bool,
        tell: Callable[[str], None],
        on_removed: Callable[[Fragment], None],
    ) -> None:
        self.result = LogPruning()
        self._shards = shards
        self._client = client
        self._remover = FragmentRemover(clock, OpenStores(file_root), dry_run=dry_run)
        self._tell = tell
        self._on_removed = on_removed

    async def prune(self, shards: Sequence[ShardListing], foreign: Collection[str]) -> LogPruning:
        """Prune the logs of all these shards, which have to be all that share history in them.

        Args:
            shards: those that were selected.
            foreign: logs of all other shards, which are left alone.

        Raises: GazetteError: the hints of a shard cannot be had, so that nothing is known of what it
            needs. Cancellation: what is removed stays so; the rest stays.
        """
        logged = [each for each in shards if each.spec.recovery_log]
        needs = needs_of(await side_by_side(self._hints, logged, at_a_time=_HINTS_AT_A_TIME))
        for log in needs.skipped:
            self.result.logs += 1
            self.result.skipped_logs += 1
            self._tell(f"{log}: skipped, some hints of its shard are missing, or have no files")
        for log, segments in sorted(needs.segments.items()):
            self.result.logs += 1
            if log in foreign:
                # As they share history: what that shard needs is not known here.
                self.result.skipped_logs += 1
                self._tell(f"{log}: skipped, it is of a shard that is not selected")
                continue
            try:
                failures = await self._prune(log, segments)
            except GazetteError as err:
                self._tell(f"{log}: {err}")
                failures = 1
            self.result.failed_logs += failures > 0
        return self.result

    async def _hints(self, shard: ShardListing) -> ShardHints:
        return ShardHints(shard.spec.recovery_log, (await self._shards.get_hints(shard.id)).slots)

    async def _prune(self, log: str, segments: Sequence[Segment]) -> int:
        """Prune one log. Returns: how many fragments resisted."""
        journal = await self._client.get(log)
        if problem := await self._problem(journal):
            self.result.skipped_logs += 1
            self._tell(f"{log}: skipped, {problem}")
            return 0
        listed = await self._client.fragments(log)
        doomed = [each for each in listed if self._is_doomed(log, segments, each)]
        self.result.fragments += len(listed)
        return await self._remove_all(log, [each.fragment for each in doomed])

    def _is_doomed(self, log: str, segments: Sequence[Segment], listed: FragmentListing) -> bool:
        """Whether a fragment is to go. Raises: DataError: shards are missing from the selection."""
        fragment = listed.fragment
        verdict = judge_fragment(
            segments, begin=fragment.begin, end=fragment.end, is_persisted=listed.is_persisted
        )
        if verdict == "abort":
            raise DataError(
                f"nothing needs its bytes from {fragment.begin} to {fragment.end}, and they are not "
                f"stored yet: another process writes {log} whose shard is not selected (nothing was removed of "
                "it; select all shards that share history)"
            )
        return verdict == "delete"

    async def _problem(self, journal: JournalListing) -> str:
        """Why a log is left alone; empty: it is not."""
        suspend = journal.spec.suspend
        if suspend is not None and suspend.level is not SuspendLevel.NONE:
            return "it is suspended"
        for store in journal.spec.fragment.stores:
            if store not in self.result.stores:
                health = await self._client.store_health(store)
                why = "" if health.is_healthy else health.error or "it does not say why"
                self.result.stores[store] = why
            if why := self.result.stores[store]:
                return f"its store {store} is not healthy: {why}"
        return ""

    async def _remove_all(self, log: str, fragments: Sequence[Fragment]) -> int:
        """Remove them. Returns: how many resisted."""
        denied = 0

        async def remove(stored: StoredFragment) -> None:
            nonlocal denied
            fragment = stored.fragment
            try:
                await self._remover.remove(fragment)
            except AccessDenied as err:
                denied += 1
                if denied == 1:
                    self._tell(f"{fragment.content_path}: {err}")
                return
            self.result.removed += 1
            self.result.content_bytes += fragment.content_length
            self._on_removed(fragment)

        stored = [StoredFragment(each, size=0) for each in fragments]
        failures = await remove_all(log, stored, remove, tell=self._tell)
        if denied:
            self.result.denied += denied
            self._tell(f"{log}: the store does not allow to remove {denied} fragments")
        return failures


def prune(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    dry_run: bool = False,
    file_root: FileRoot = None,
) -> None:
    """Remove fragments of recovery logs that no hints of any selected shard need.

    Of shards that share history in their logs, all have to be selected: what only others need is
    removed else. What is removed is gone.

    Left alone: logs of shards with missing hints, or hints without files; logs that are suspended,
    and those with a store that is not healthy.

    Other logs go on when one fails; then the exit status is 1. Run it again to do the rest.

    **Example**

    gazctl shards prune -l team=search --dry-run

    Options:
        --dry-run: Say what would be removed, and remove nothing.
    """
    selection = ShardSelection.of(ids, selector)
    verb = "would remove" if dry_run else "removed"

    def on_removed(fragment: Fragment) -> None:
        print_text(f"{verb} {fragment.content_path}")

    async def work(shards: ShardClient, client: AsyncClient) -> LogPruning:
        found = await matching_shards(shards, selection)
        selected = {each.id for each in found}
        others = {each.spec.recovery_log for each in await shards.list() if each.id not in selected}
        pruner = LogPruner(
            shards,
            client,
            SystemClock(),
            file_root=file_root,
            dry_run=dry_run,
            tell=note,
            on_removed=on_removed,
        )
        try:
            return await pruner.prune(found, others)
        finally:
            _summarize(pruner.result, dry_run=dry_run)

    result = connected_shards(ctx, work, file_root=file_root)
    if result.failed_logs:
        raise StoreError(
            f"{result.failed_logs} of {result.logs} logs could not be pruned, or not whole, see above "
            "(what is gone stays gone; run it again for the rest)"
        )


def _summarize(result: LogPruning, *, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    note(
        f"{result.removed} of {result.fragments} fragments {verb}, {result.content_bytes} bytes of "
        f"content; {result.skipped_logs} of {result.logs} logs skipped"
    )


def recover(
    ctx: typer.Context, shard: str | None = None, *, shard_id: str | None = None, directory: Path
) -> None:
    """Play the recovery log of a shard to its end, into a directory.

    The files are those of the shard's store as it was last recorded. The shard goes on undisturbed.

    **Example**

    gazctl shards recover shard-000 --dir shard-000.files

    Options:
        ID: The shard.
        --id ID: The shard, as Gazette's tools take it.
        -d, --dir: For its files: a directory that is empty, or not there.
    """
    if (shard is None) == (shard_id is None):
        raise typer.BadParameter("give the ID of one shard, as an argument or by --id")
    chosen = shard or shard_id or ""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValidationError(
            f"{directory} exists and is not an empty directory (its content would be lost)",
            path="--dir",
        )

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        selection = ShardSelection.of([chosen], None)
        (found,) = await matching_shards(shards, selection)
        log = found.spec.recovery_log
        if not log:
            raise ValidationError(f"shard {chosen} has no recovery log", path="--id")
        hints = pick_hints((await shards.get_hints(chosen)).slots, log)
        player = Player(client, hints, directory)
        player.finish_at_write_head()
        played = await player.play()
        files = len(played.fsm.links) + len(played.fsm.properties)
        note(f"recovered {files} files of shard {chosen} from {played.log} into {directory}")

    connected_shards(ctx, work)


def unassign(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    failed: bool = False,
    dry_run: bool = False,
) -> None:
    """Take shards from their primaries, and from replicas that have failed, to assign them again.

    So a shard that failed is tried again. Hot standbys stay.

    **Examples**

    gazctl shards unassign -l team=search --failed

    gazctl shards unassign shard-000

    Options:
        --failed: Only replicas that have failed.
        --dry-run: Say what would be unassigned, and change nothing.
    """
    selection = ShardSelection.of(ids, selector)

    async def work(shards: ShardClient, _: AsyncClient) -> None:
        found = [each.id for each in await shards.list(selection.selector)]
        if selection.names:
            selection.check(found)
        affected = await shards.unassign(found, only_failed=failed, dry_run=dry_run)
        for each in affected:
            print_text(each)
        verb = "would be unassigned" if dry_run else "unassigned"
        note(f"{len(affected)} of {len(found)} shards {verb}")

    connected_shards(ctx, work)
