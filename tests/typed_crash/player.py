"""Plays a case: appends, lets lives run and die, maintains, and then lets one settle all."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from gazette_platform import Change
from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.waiting import TooLate, patient, wait_until
from tests.benches.spark_journals import make_again
from tests.harness import reason_of
from tests.lake_crash.pairs import AIMED, Pairs
from tests.typed_crash.life import Life, LifeReport, live
from tests.typed_crash.messages import JournalLog, Writer
from tests.typed_crash.plan import (
    Append,
    Both,
    Case,
    Damage,
    Held,
    Loosen,
    Maintain,
    MakeAgain,
    Outgrow,
    Restart,
    Roll,
    Run,
    Widen,
)
from tests.typed_crash.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lake_crash.forks import Fork, Forks
    from tests.lake_crash.plan import Fault
    from tests.typed_crash.oracle import Expected
    from tests.typed_crash.verdict import Found
    from tests.typed_crash.world import World

__all__ = ["Facts", "Player"]

# Of a machine that is several times slower; all end much sooner.
_LIFE_TIMEOUT_S = 600.0
_SETTLE_TIMEOUT_S = 900.0
_HELD_TIMEOUT_S = 300.0
_LOG_TAIL = 3000
# Of records that lack a required column at times.
_LACKING = 0.3
_COLUMNS = (("n", "bigint"), ("k", "string"), ("at", "timestamptz"))
# What a life may fail by: a neighbour that answers wrongly, or another life that was first.
_EXPECTED = {"TableFenced", "LakeError", "TransportError", "StoreUnavailable"}


@dataclass
class Facts:
    """What exists of a case when its history is over."""

    case: Case
    wanted: dict[str, Expected] = field(default_factory=dict)
    """By journal."""
    found: Found | None = None
    calls: list[str] = field(default_factory=list)
    """What lives did, as `Calls` writes it."""
    outcomes: list[str] = field(default_factory=list)
    """Of lives that ended by themselves."""
    faults: int = 0
    """Inflicted."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Player:
    """Plays one case. Several may play at the same time, except what restarts servers.

    Args:
        world: servers.
        forks: makes processes.
        case: what to play.
        database: of its table; its journals are below that name, too.
        pairs: of calls, of all cases.
        plant: a fault of the lives, see `Life`.
    """

    def __init__(
        self,
        world: World,
        forks: Forks,
        case: Case,
        *,
        database: str,
        pairs: Pairs,
        plant: str = "",
    ) -> None:
        self._world, self._forks, self._case = world, forks, case
        self._pairs, self._plant = pairs, plant
        self._folder = world.folder / "cases" / database / case.name
        self._prefix = f"{database}/{case.name}"
        name = f"{database}.{case.name}"
        self._raw = parse_table_spec(
            f"name: raw_{name}\nselector: 'name:prefix={self._prefix}/'\nformat: json\n"
            "columns: [{name: n, type: bigint}, {name: k, type: string}]\n"
        )
        key = ("k",) if case.is_keyed else ()
        self._spec = TypedSpec(
            name=name,
            source=self._raw.name,
            uuid=("_meta", "uuid"),
            columns=tuple(
                TypedColumn(name=n, type=kind, key=n, required=n in key) for n, kind in _COLUMNS
            ),
            key=key,
            partitions=(parse_partition("day(at)"),) if case.is_parted else (),
        )
        self._has_late = False
        if case.amends:
            self._widen(is_required=True)
        self._tables = Tables(world, name)
        self._draw = Random(case.seed)
        self._logs = {self._journal(n): JournalLog() for n in range(case.journals)}
        self._writers = [
            Writer(Random(f"{case.seed}-{n}"), f"j{n}" if case.is_keyed else "")
            for n in range(case.journals)
        ]
        self._lives = 0
        self.facts = Facts(case)

    def play(self) -> Facts:
        """All of it. Returns: what exists then. Errors are among its problems."""
        began_at = time.monotonic()
        try:
            self._folder.mkdir(parents=True)
            self._create()
            for step in self._case.steps:
                self._do(step)
            self._settle()
            self._collect()
        except Exception as err:  # noqa: BLE001  a case that fails must not end the others
            text = f"{self._case.name}: {type(err).__name__}: {err}"
            self.facts.problems.append(reason_of(err, text))
        self.facts.seconds = time.monotonic() - began_at
        return self.facts

    # ------------------------------------------------------------------ journals

    def _journal(self, number: int) -> str:
        return f"{self._prefix}/part={number}"

    def _create(self) -> None:
        fragment = FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        )
        labels = LabelSet.of(("content-type", "application/x-ndjson"))
        self._world.client.apply(
            [
                Change(JournalSpec(name=name, replication=1, fragment=fragment, labels=labels))
                for name in self._logs
            ]
        )

    def _do(self, step: Any) -> None:
        match step:
            case Append():
                self._append(step)
            case Roll():
                self._world.client.flush(f"name:prefix={self._prefix}/")
            case Run(fault, what, has_engine):
                self._run([(fault, what)], has_engine=has_engine)
            case Both(fault, what, beside):
                self._run([(fault, what), (None, beside)])
            case Held():
                self._hold(step)
            case Maintain(what):
                self._tables.maintain(what)
            case Restart():
                self._restart()
            case _:
                self._change(step)

    def _change(self, step: Any) -> None:
        """Do what an operator does to journals, to the spec, or to the table by hand."""
        match step:
            case Widen():
                self._widen()
            case Loosen():
                self._loosen()
            case Damage():
                self._tables.damage(self._draw)
            case MakeAgain(journal):
                self._make_again(journal)
            case Outgrow(journal):
                log = self._logs[self._journal(journal)]
                while log.head <= log.former[-1].end:
                    self._append(Append(journal, 1))

    def _widen(self, *, is_required: bool = False) -> None:
        self._has_late = True
        late = TypedColumn(name="late", type="bigint", key="late", required=is_required)
        self._spec = structs.replace(self._spec, columns=(*self._spec.columns, late))

    def _loosen(self) -> None:
        *others, late = self._spec.columns
        late = structs.replace(late, required=False)
        self._spec = structs.replace(self._spec, columns=(*others, late))

    def _make_again(self, journal: int) -> None:
        name = self._journal(journal)
        # So that it follows from what was appended what was read of it.
        self._until("run", lambda report: report.outcome == "idle")
        make_again(self._world.client, SimpleNamespace(fragments=self._world.file_root), name)
        self._logs[name].make_again()

    def _append(self, step: Append) -> None:
        name = self._journal(step.journal)
        for _ in range(step.batches):
            batch = self._writers[step.journal].batch(step.acts)
            log = self._logs[name]
            has_late = self._has_late
            if self._case.amends:
                has_late = self._draw.random() > _LACKING
            begin, content = log.head, log.add(batch, has_late=has_late)
            if content:
                # By offset, so that an append whose answer is lost is not repeated unseen.
                self._world.client.append(name, content, offset=begin)

    # --------------------------------------------------------------------- lives

    def _run(self, lives: list[tuple[Fault | None, str]], *, has_engine: bool = False) -> None:
        """Lives at the same time. One that was killed for its aim lives again.

        Args:
            lives: what goes wrong in each, and what it does.
        """
        while lives:
            begun = [self._begin(fault, what, has_engine=has_engine) for fault, what in lives]
            for life in begun:
                self._end(*life)
            lives = [
                life for life, (_, folder) in zip(lives, begun, strict=True) if _is_aimed_at(folder)
            ]

    def _begin(
        self,
        fault: Fault | None = None,
        what: str = "run",
        *,
        is_aimed: bool = True,
        held: tuple[str, int] | None = None,
        has_engine: bool = False,
        is_all: bool = False,
    ) -> tuple[Fork, Path]:
        self._lives += 1
        folder = self._folder / f"life-{self._lives:03}"
        folder.mkdir()
        world = self._world
        # One that starts a Spark is not aimed: it would take long to live so often.
        is_aimed = is_aimed and self._case.is_aimed and not has_engine
        life = Life(
            folder=folder,
            spec=self._spec,
            raw=self._raw,
            broker=world.client.config.address,
            file_root=world.file_root,
            settings=world.settings_of(has_engine=has_engine),
            java=world.java,
            what=what,
            ranges=self._ranges(is_all=is_all) if what == "backfill" else {},
            fault=fault,
            spared=frozenset(self._pairs.wrong) if is_aimed else None,
            held=held,
            plant=self._plant,
        )
        return self._forks.begin(live, life, name=folder.name), folder

    def _ranges(self, *, is_all: bool) -> dict[str, list[tuple[int, int]]]:
        """Offsets to be backfilled of all journals, or of some that have a row or a record for sure."""
        read = self._tables.offsets()
        if is_all:
            return {name: [(0, end)] for name, end in read.items() if end}
        name = self._draw.choice(sorted(name for name, end in read.items() if end))
        begin = self._draw.randrange(read[name])
        return {name: [(begin, self._draw.randint(begin + 1, read[name]))]}

    def _end(self, process: Fork, folder: Path) -> LifeReport | None:
        """Wait until it has ended. Returns: what it says of itself, if it was not killed."""
        limit_s = patient(_LIFE_TIMEOUT_S)
        code = process.end(limit_s)
        if code is None:
            raise TooLate(f"{folder}: a life did not end in {limit_s:g} s")
        calls = _calls_of(folder)
        self._pairs.note(calls)
        self.facts.calls += [*calls, ""]
        self.facts.faults += any(name.startswith("! ") for name in calls)
        if code not in (0, -signal.SIGKILL):
            log = (folder / "log").read_text("utf-8", "replace")[-_LOG_TAIL:]
            raise LakeError(f"{folder}: a life ended with {code}:\n{log}")
        path = folder / "report.json"
        if not path.exists():
            return None
        report = LifeReport(*json.loads(path.read_text()))
        self.facts.outcomes.append(report.outcome)
        if report.outcome not in _EXPECTED | {"published", "idle"}:
            self.facts.problems.append(
                f"{folder}: a life failed by {report.outcome}: {report.text}"
            )
        return report

    def _hold(self, step: Held) -> None:
        """Have a life wait before a call while other things happen, and then go on."""
        held = step.call, step.at
        process, folder = self._begin(what=step.what, is_aimed=False, held=held)
        self.facts.faults += self._is_held(process, folder, step.call)
        for one in step.between:
            self._do(one)
        (folder / "go").touch()
        self._end(process, folder)

    def _is_held(self, process: Fork, folder: Path, where: str) -> bool:
        """Wait until a life is held, or has ended. Returns: whether it is held."""
        held = folder / "held"
        wait_until(
            lambda: held.exists() or process.has_ended(),
            timeout_s=_HELD_TIMEOUT_S,
            what=f"{folder}: never came to {where}",
        )
        return held.exists()

    def _restart(self) -> None:
        """A metastore that is away for a moment while a life runs."""
        process, folder = self._begin(is_aimed=False, held=("metastore alter", 1))
        self.facts.faults += self._is_held(process, folder, "its commit")
        restarting = threading.Thread(target=self._world.metastore.restart)
        restarting.start()
        (folder / "go").touch()
        self._end(process, folder)
        restarting.join()

    def _settle(self) -> None:
        """Runs without faults, until there is nothing to do; and what else is done when a history is over."""
        self._until("run", lambda report: report.outcome == "idle")
        if self._case.amends == "backfill":
            self._until("backfill", lambda report: report.outcome == "published")
        elif self._case.amends:
            self._until("reprocess", lambda report: report.outcome == "idle")

    def _until(self, what: str, is_done: Callable[[LifeReport], bool]) -> None:
        deadline = time.monotonic() + patient(_SETTLE_TIMEOUT_S)
        while True:
            report = self._end(*self._begin(what=what, is_aimed=False, is_all=True))
            if report is not None and is_done(report) and report.is_whole:
                return
            if time.monotonic() > deadline:
                said = f"{report.outcome}: {report.text}" if report is not None else "it was killed"
                raise TooLate(f"{self._case.name} does not come to rest by {what}: {said}")

    def _collect(self) -> None:
        self.facts.wanted = {journal: log.expected() for journal, log in self._logs.items()}
        self.facts.found = self._tables.found(
            has_late=self._has_late, is_parted=self._case.is_parted
        )


def _calls_of(folder: Path) -> list[str]:
    """What a life has left behind, as `Calls` writes it."""
    trace = folder / "trace"
    return trace.read_text().splitlines() if trace.exists() else []


def _is_aimed_at(folder: Path) -> bool:
    """Whether it was killed for that, rather than by what was planned for it."""
    return any(line.startswith(AIMED) for line in _calls_of(folder)[-1:])
