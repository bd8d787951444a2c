"""Plays a case: stores fragments, appends, lets registrars live and die, and then lets one settle all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance

from gazette_platform import Change
from gazette_platform.codecs import compressor
from gazette_platform.errors import LakeError, StatusError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import PartitionAccount, StoreRoots
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.reading.storage import Storage, _wait
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    parse_fragment_path,
)
from gazette_platform.testing.waiting import TooLate, patient, wait_until
from tests.harness import Late, reason_of
from tests.lake_crash.dagster_log import DagsterLog, account_of, as_told, read_log
from tests.lake_crash.oracle import RECORD_BYTES, Piece, content, listed, pieces, pruned
from tests.lake_crash.pairs import AIMED, Pairs
from tests.lake_crash.plan import (
    LIVE_HOUR,
    Both,
    Case,
    Cutover,
    Fault,
    Live,
    Lose,
    Prune,
    Seen,
    Store,
    Tick,
)
from tests.lake_crash.registrar import CURSOR, Life, LifeReport, live
from tests.lake_crash.verdict import unrepaired

if TYPE_CHECKING:
    from tests.lake_crash.forks import Fork, Forks
    from tests.lake_crash.verdict import Account
    from tests.lake_crash.world import World

__all__ = ["Facts", "Player"]

# Of a machine that is several times slower; all end much sooner.
_LIFE_TIMEOUT_S = 180.0
_SEEN_TIMEOUT_S = 60.0
# Of each look at what brokers list.
_LIES_SEEN = 2
_ANY = -1
_LOG_TAIL = 2000
_RETENTION_S = 24 * 3600
_COLUMNS = ("part", "hour")
_FILE = "file:///"
# A tick looks at one slice of old fragments: a round over both journals, and once more.
_QUIET_TICKS = 5


@dataclass
class Facts:
    """What exists of a case when its history is over."""

    case: Case
    hours: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Where brokers list a span of a journal."""
    accounts: dict[str, Account] = field(default_factory=dict)
    """By Hive partition."""
    times: dict[str, Account] = field(default_factory=dict)
    """Of all journals together, by Dagster's partition key."""
    log: DagsterLog = DagsterLog({}, frozenset())  # noqa: RUF009
    """What Dagster's events say."""
    calls: list[str] = field(default_factory=list)
    """What lives did, as `Calls` writes it."""
    faults: int = 0
    """Inflicted."""
    pruned: int = 0
    """Records, by the account of `gazctl`."""
    seconds: float = 0.0
    """That it took, beside others."""
    problems: list[str] = field(default_factory=list)


class Player:
    """Plays one case. Several may play at the same time.

    Args:
        world: servers.
        forks: makes processes of registrars.
        case: what to play.
        database: of its table; its journals are below that name, too.
        pairs: of calls, of all cases.
        is_aimed: whether lives are killed between those where nothing went wrong yet.
        plant: a fault of the registrars, see `Life`.
        settle_s: seconds after which registrars must have come to rest.
        settle_ticks: of the lives that settle all.
    """

    def __init__(
        self,
        world: World,
        forks: Forks,
        case: Case,
        *,
        database: str,
        pairs: Pairs,
        is_aimed: bool = True,
        plant: str = "",
        settle_s: float = 180.0,
        settle_ticks: int = 30,
    ) -> None:
        self._world, self._forks, self._case = world, forks, case
        self._database, self._plant = database, plant
        self._pairs, self._is_aimed = pairs, is_aimed
        self._settle_s, self._settle_ticks = settle_s, settle_ticks
        self._folder = world.folder / "cases" / database / case.name
        self._home = self._folder / "home"
        self._stores = [world.store(kind, n) for n, kind in enumerate(case.stores)]
        self._heads = [0] * case.journals
        self._stored: list[Piece] = []
        self._lives = 0
        self._roots = StoreRoots(world.settings.store_roots)
        self.facts = Facts(case)

    def play(self) -> Facts:
        """All of it. Returns: what exists then. Errors are among its problems."""
        began_at = time.monotonic()
        try:
            self._prepare()
            for step in self._case.steps:
                self._do(step)
            self._settle()
            if not {"s3", "lying"}.isdisjoint(self._case.stores):
                # There ticks list no directories: what brokers list no more, and no account
                # counted, is found when a person asks.
                counted = self._accounts()
                self._live([(None, {"role": "repair"})])
                self._settle()
                self.facts.problems += unrepaired(self._case.name, counted, self._accounts())
            self._collect()
            self._count_lies()
        except Exception as err:  # noqa: BLE001  a case that fails must not end the others
            text = f"{self._case.name}: {type(err).__name__}: {err}"
            self.facts.problems.append(reason_of(err, text))
        self.facts.seconds = time.monotonic() - began_at
        return self.facts

    # ------------------------------------------------------------------ journals

    def _prepare(self) -> None:
        (self._folder / "tables").mkdir(parents=True)
        name, prefix = f"{self._database}.{self._case.name}", self._prefix
        (self._folder / "tables" / "table.yaml").write_text(
            f"name: {name}\nselector: 'name:prefix={prefix}/'\nformat: json\n"
            "columns: [{name: id, type: bigint}]\n"
        )
        shutil.copytree(self._world.home, self._home)
        self._apply(self._stores)

    @property
    def _prefix(self) -> str:
        return f"{self._database}-{self._case.name}"

    def _journal(self, number: int) -> str:
        return f"{self._prefix}/part={number}"

    def _apply(self, stores: list[str]) -> None:
        fragment = FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=tuple(stores),
            refresh_interval_ns=SECOND_NS,
            path_postfix_template=f"hour={LIVE_HOUR}",
            retention_ns=_RETENTION_S * SECOND_NS,
        )
        specs = [
            JournalSpec(name=self._journal(n), replication=1, fragment=fragment)
            for n in range(self._case.journals)
        ]
        self._world.client.apply([Change(spec, revision=_ANY) for spec in specs])

    def _do(self, step: Any) -> None:
        match step:
            case Store():
                self._store(step)
            case Live(journal, count):
                self._append(journal, count)
            case Seen():
                self._see()
            case Cutover(store):
                first = self._stores[store]
                self._apply([first, *(s for s in self._stores if s != first)])
            case Tick(ticks, fault):
                self._live([(fault, {"ticks": ticks})])
            case Both(fault, other):
                self._live([(fault, {"ticks": 2}), (other, {"role": "flush"})])
            case Lose(what):
                self._lose(what)
            case Prune():
                self._prune(step)

    def _store(self, step: Store) -> None:
        """Write a fragment as a broker writes it: whole, under its name."""
        raw = content(step.begin, step.end)
        fragment = Fragment(
            self._journal(step.journal),
            step.begin * RECORD_BYTES,
            step.end * RECORD_BYTES,
            hashlib.sha1(raw, usedforsecurity=False).digest(),
            CompressionCodec.GZIP,
            backing_store=self._stores[step.store],
            path_postfix=f"hour={step.hour}",
        )
        codec = compressor(fragment.codec)
        files = Storage(self._roots).files(fragment.backing_store)
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(codec.compress(raw) + codec.finish())
            place = files._place(fragment.content_path)
            _wait(files._driver.put(place, file.fileno(), file.tell()))
        self._stored.append(Piece(step.journal, step.begin, step.end, step.hour))
        self._heads[step.journal] = max(self._heads[step.journal], step.end)

    def _append(self, journal: int, count: int) -> None:
        """Records at the head, once the broker knows where that is; and flush them."""
        begin = self._heads[journal]
        raw = content(begin, begin + count)
        name, offset = self._journal(journal), begin * RECORD_BYTES

        def is_appended() -> bool:
            try:
                result = self._world.client.append(name, raw, offset=offset)
            except StatusError:
                return False  # its listing is older than what was stored
            return bool(result.begin == offset)

        wait_until(
            is_appended, timeout_s=_SEEN_TIMEOUT_S, what=f"{name} takes no append at {offset}"
        )
        self._world.client.flush(f"name={name}")
        self._stored.append(Piece(journal, begin, begin + count, LIVE_HOUR))
        self._heads[journal] += count

    def _prune(self, step: Prune) -> None:
        """Let time pass over files, and have `gazctl` remove what it is to, and nothing else."""
        wanted = pruned(self._stored, step)
        is_middle = step.begin > 0
        if is_middle or step.is_by_age:
            for piece, path in self._files(step.journal).items():
                # Reads jump to what is old; and by age only what is old goes.
                is_old = is_middle or piece in wanted
                at = SystemClock().unix_s() - (2 * _RETENTION_S if is_old else 0)
                os.utime(path, (at, at))
        begin, end = (
            (0, 0) if step.is_by_age else (step.begin * RECORD_BYTES, step.end * RECORD_BYTES)
        )
        journal = self._journal(step.journal)
        removed = []
        for path in self._world.prune(journal, begin, end):
            fragment = parse_fragment_path(journal, path.removeprefix(f"{journal}/"))
            removed.append(_piece(step.journal, fragment))
        assert sorted(removed) == sorted(wanted), f"removed {removed}, where {wanted} were to go"
        self._stored = [piece for piece in self._stored if piece not in wanted]
        self.facts.pruned += sum(piece.end - piece.begin for piece in wanted)

    def _files(self, journal: int) -> dict[Piece, Path]:
        """Files of what is listed of a journal in stores that are folders."""
        root = Path(self._world.settings.store_roots[_FILE].removeprefix("file://"))
        return {
            _piece(journal, listing.fragment): root
            / listing.fragment.backing_store.removeprefix(_FILE)
            / listing.fragment.content_path
            for listing in self._world.client.fragments(self._journal(journal))
            if listing.fragment.backing_store.startswith(_FILE)
        }

    def _listing(self) -> dict[tuple[int, int, int], str]:
        found: dict[tuple[int, int, int], str] = {}
        for number in range(self._case.journals):
            for listing in self._world.client.fragments(self._journal(number)):
                if listing.fragment.backing_store:
                    *span, hour = _piece(number, listing.fragment)
                    found[tuple(span)] = hour
        return found

    def _see(self) -> None:
        wanted = listed(self._stored)
        wait_until(
            lambda: set(self._listing()) == wanted,
            timeout_s=_SEEN_TIMEOUT_S,
            what=f"{self._case.name}: brokers do not list what is stored",
        )
        if "lying" in self._case.stores:
            self._see_through_lies(wanted)

    def _see_through_lies(self, wanted: set[tuple[int, int, int]]) -> None:
        """Require that brokers go on listing what is stored, while listings of the store are answered wrongly."""
        lies = self._world.lies(self._prefix)

        def is_over() -> bool:
            found = set(self._listing())
            assert found == wanted, f"after a lie brokers list {found}, where {wanted} are stored"
            return self._world.lies(self._prefix) >= lies + _LIES_SEEN

        wait_until(is_over, timeout_s=_SEEN_TIMEOUT_S, what="the store answers no listing wrongly")

    # --------------------------------------------------------------------- lives

    def _live(self, wanted: list[tuple[Fault | None, dict[str, Any]]]) -> None:
        """Lives at the same time, each as it is planned. One that was killed for its aim lives again."""
        while wanted:
            begun = [self._begin(fault, **how) for fault, how in wanted]
            for life, (fault, _) in zip(begun, wanted, strict=True):
                self._end(life, fault)
            wanted = [
                how for (_, folder), how in zip(begun, wanted, strict=True) if _is_aimed_at(folder)
            ]

    def _begin(
        self, fault: Fault | None, *, ticks: int = 1, quiet: int = 0, role: str = "sensor"
    ) -> tuple[Fork, Path]:
        self._lives += 1
        folder = self._folder / f"life-{self._lives:03}"
        folder.mkdir()
        settings = self._world.settings
        life = Life(
            folder=folder,
            home=self._home,
            tables=self._folder / "tables",
            broker=settings.broker,
            metastore=settings.metastore,
            store_roots=dict(settings.store_roots),
            role=role,
            ticks=ticks,
            quiet=quiet,
            fault=fault,
            spared=frozenset(self._pairs.wrong) if self._is_aimed else None,
            plant=self._plant,
            keys={name: key for name, key in os.environ.items() if name.startswith("AWS_")},
        )
        return self._forks.begin(live, life, name=folder.name), folder

    def _end(self, begun: tuple[Fork, Path], fault: Fault | None) -> LifeReport | None:
        """Wait until it has ended. Returns: what it says of itself, if it was not killed."""
        process, folder = begun
        trace, is_struck = folder / "trace", False
        if fault is not None and fault.mode == "struck":
            wait_until(
                lambda: process.has_ended() or (trace.exists() and trace.stat().st_size),
                timeout_s=_LIFE_TIMEOUT_S,
                what=f"{folder}: a life does not begin",
            )
            is_struck = not process.has_ended(fault.at / 1000)
            process.kill()
        limit_s = patient(_LIFE_TIMEOUT_S)
        code = process.end(limit_s)
        if code is None:
            raise TooLate(f"{folder}: a life did not end in {limit_s:g} s")
        calls = _calls_of(folder)
        calls += ["! struck"] if is_struck else []
        self._pairs.note(calls)
        self.facts.calls += [*calls, ""]
        self.facts.faults += any(name.startswith("! ") for name in calls)
        if code not in (0, -signal.SIGKILL):
            log = (folder / "log").read_text("utf-8", "replace")[-_LOG_TAIL:]
            raise LakeError(f"{folder}: a life ended with {code}:\n{log}")
        report = folder / "report.json"
        return LifeReport(*json.loads(report.read_text())) if report.exists() else None

    def _lose(self, what: str) -> None:
        if what == "home":
            shutil.rmtree(self._home)
            shutil.copytree(self._world.home, self._home)
            return
        with self._instance() as instance:
            instance.daemon_cursor_storage.set_cursor_values({CURSOR: ""})

    def _instance(self) -> DagsterInstance:
        return DagsterInstance.from_config(str(self._home))

    def _settle(self) -> None:
        """Tick without faults, until a number of ticks report nothing."""
        self._see()
        deadline = time.monotonic() + patient(self._settle_s)
        while True:
            report = self._end(
                self._begin(None, ticks=self._settle_ticks, quiet=_QUIET_TICKS), None
            )
            if report is not None and report.quiet >= _QUIET_TICKS:
                return
            if time.monotonic() > deadline:
                said = report.problems if report is not None else ["it was killed"]
                text = f"{self._case.name} does not come to rest: {said}"
                self.facts.problems.append(Late(text))
                return

    # ------------------------------------------------------------------- outcome

    def _count_lies(self) -> None:
        lies = self._world.lies(self._prefix)
        assert lies or "lying" not in self._case.stores, "no listing was answered with a lie"
        self.facts.faults += lies

    def _collect(self) -> None:
        facts, name = self.facts, self._case.name
        facts.hours = self._listing()
        assert set(facts.hours) == listed(pieces(self._case)), "the plan and its play differ"
        parts = self._parts()
        facts.accounts = {part.key: account_of([part]) for part in parts}
        facts.times = as_told(parts)
        with self._instance() as instance:
            facts.log = read_log(instance, self._database, name)

    def _accounts(self) -> dict[str, Account]:
        return {part.key: account_of([part]) for part in self._parts()}

    def _parts(self) -> list[PartitionAccount]:
        """What the metastore says of the table's Hive partitions."""
        name = self._case.name
        with MetastoreClient(self._world.settings.metastore).connect() as session:
            table = session.table(self._database, name)
            parts: list[PartitionAccount] = []
            for found in session.partitions(table) if table is not None else ():
                state = PartitionState.from_parameters(found.parameters)
                key = "/".join(f"{k}={v}" for k, v in zip(_COLUMNS, found.values, strict=True))
                # Of one that was never filled no journal is known.
                journal = state.journal or f"{self._prefix}/part={found.values[0]}"
                parts.append(
                    PartitionAccount(
                        key=key,
                        values=found.values,
                        location=found.location,
                        journal=journal,
                        state=state,
                    )
                )
        return parts


def _calls_of(folder: Path) -> list[str]:
    """What a life has left behind, as `Calls` writes it."""
    trace = folder / "trace"
    return trace.read_text().splitlines() if trace.exists() else []


def _is_aimed_at(folder: Path) -> bool:
    """Whether it was killed for that, rather than by what was planned for it."""
    return any(line.startswith(AIMED) for line in _calls_of(folder)[-1:])


def _piece(journal: int, fragment: Fragment) -> Piece:
    begin, end = fragment.begin // RECORD_BYTES, fragment.end // RECORD_BYTES
    return Piece(journal, begin, end, fragment.path_postfix.removeprefix("hour="))
