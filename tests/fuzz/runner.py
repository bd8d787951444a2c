"""One run from its first process to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

import grpc

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import pass_time, patient
from tests.fuzz.arena import PROBES, Arena
from tests.fuzz.cases import Case, save_cases
from tests.fuzz.corpus import append, corpus, get, rpc
from tests.fuzz.driver import METHODS, Driver
from tests.fuzz.generators import make_case
from tests.fuzz.oracle import GROWTH_MB_MAX, LogWatch, Memory, judge
from tests.harness import Late, State, judge as judge_reasons, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Finding", "FuzzConfig", "FuzzResult", "run_fuzz"]

_ROUND_S = 8.0
_WARM_S = 4.0
# Faults may show late, so the cases of the last seconds are suspects, too.
_SUSPECT_S = 6.0
_SUSPECTS_MAX = 40
_ISOLATE_S = 90.0
_LINGER_S = 2.5
# Seconds for brokers to give back freed memory, which they do once they have little to do.
_SETTLE_S = 60.0
# A case with a step that is repeated so often is heavy, and runs alone.
_HEAVY_TIMES = 30
_DEATH_S = (
    0.5  # sockets of a broker that dies close before it has ended, which is what is to be reported
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzConfig:
    """What a run does."""

    etcd_binary: Path
    seed: int = 7
    duration_s: float = 600.0
    """Seconds of cases: first those of the corpus, then generated ones, for half of the time at least."""
    rate_per_s: float = 200.0
    """How many cases per second at most."""
    workers: int = 4
    kinds: tuple[str, ...] = ()
    """Of `generators.KINDS`; none: all."""
    has_corpus: bool = True
    replay: tuple[Case, ...] = ()
    """Cases to run in place of the corpus and generated ones."""
    folder: Path | None = None
    """Where to keep logs; None: a temporary folder, removed if all is well."""
    keeps_going: bool = False
    """Whether to go on, with new brokers, after a finding."""
    growth_mb_max: float = GROWTH_MB_MAX
    """How many MB more a broker may hold at the end."""
    isolates: bool = True
    """Whether to look for the one case that shows a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not happen."""

    problem: str
    suspects: list[Case]
    """Cases that may have caused it, the likeliest last."""


@dataclass(kw_only=True, slots=True)
class FuzzResult:
    """How a run went."""

    seed: int
    inputs: int = 0
    deaths: int = 0
    tracebacks: int = 0
    rss_growth_mb: float = 0.0
    rss_peak_mb: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    case_files: list[Path] = field(default_factory=list)
    starved_by: str = ""
    """What starved the run, see `starvation.starved_by`; empty: nothing did."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        found = [finding.problem for finding in self.findings]
        return judge_reasons(
            found or ([] if self.inputs else [Late("no case was run")]), self.starved_by
        )

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found, and something was tried."""
        return not self.findings and self.inputs > 0

    @property
    def summary(self) -> str:
        """The last line of the run."""
        line = (
            f"fuzz: {self.state} seed={self.seed} inputs={self.inputs} "
            f"deaths={self.deaths} tracebacks={self.tracebacks} "
            f"rss_growth_mb={max(0.0, self.rss_growth_mb):.1f}"
        )
        if self.state is State.STARVED:
            first_line = self.findings[0].problem.splitlines()[0][:200] if self.findings else ""
            return f"{line}: {first_line or 'no case was run'}; {self.starved_by}"
        if self.findings:
            first = self.findings[0]
            name = first.suspects[-1].name if first.suspects else "no input"
            line += f": {first.problem.splitlines()[0][:200]}, after {name}"
            if self.case_files:
                line += f"; make fuzz REPLAY={self.case_files[0]}"
        return line


class _Found(Exception):
    def __init__(self, problem: str, case: Case | None = None) -> None:
        super().__init__(problem)
        self.problem, self.case = problem, case


async def run_fuzz(
    config: FuzzConfig,
    *,
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda _: None,
    starved_by: Callable[[], str] = lambda: "",
) -> FuzzResult:
    """Run the fuzzer once.

    Args:
        config: what to do.
        say: called with each event, one line at a time.
        show: called with the progress, several times a second.
        starved_by: says what starved the run so far, see `MachineWatch.cause`.

    Cancellation: stops every process; the folder stays.
    """
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-fuzz-"))
    result = FuzzResult(seed=config.seed)
    numbers = itertools.count()
    cases = _cases(config)
    began = time.monotonic()
    while True:
        run = _Run(config, folder / f"run-{next(numbers)}", result, say, show)
        finding = await run.play(cases)
        if finding is None:
            break
        if config.isolates and not config.keeps_going and len(finding.suspects) > 1:
            finding = await _isolated(config, finding, folder, numbers, say)
        _keep(result, finding, folder, say)
        if not config.keeps_going or time.monotonic() - began > config.duration_s + 300.0:
            break
    result.starved_by = starved_by()
    if result.is_ok and config.folder is None:
        shutil.rmtree(folder)
    return result


def _keep(result: FuzzResult, finding: Finding, folder: Path, say: Callable[[str], None]) -> None:
    result.findings.append(finding)
    file = folder / f"case-{len(result.findings)}.json"
    save_cases(file, finding.suspects, found=finding.problem)
    result.case_files.append(file)
    names = ", ".join(case.name for case in finding.suspects[-8:])
    say(f"FOUND {finding.problem}\n  by {names}; replay: {file}")


def _gist(log: str) -> str:
    """The line of a traceback that says what went wrong."""
    lines = [
        line
        for line in log.splitlines()
        if re.match(
            r"[\w.]+(Error|Exception|Exists|Failed|Status\w*|BadHttp\w*|Denied|Interrupt)\b", line
        )
    ]
    return lines[0] if lines else log.partition("\n")[0]


@dataclass(slots=True)
class _Cases:
    """The cases of a run, which go on when brokers are replaced."""

    first: deque[Case]
    generated: Iterator[Case]
    until: float | None
    """Monotonic; None: not yet known."""
    began: float | None = None
    """Monotonic."""


def _cases(config: FuzzConfig) -> _Cases:
    if config.replay:
        return _Cases(deque(config.replay), iter(()), 0.0)
    # Heavy cases run first, and again at the end, to see whether what they leave behind adds up.
    known = sorted(corpus(), key=lambda c: not _is_heavy(c)) if config.has_corpus else ()
    generated = (make_case(config.seed, n, kinds=config.kinds) for n in itertools.count())
    return _Cases(deque(known), generated, None)


def _is_heavy(case: Case) -> bool:
    return any(step.get("times", 1) >= _HEAVY_TIMES for step in case.steps)


async def _isolated(
    config: FuzzConfig,
    finding: Finding,
    folder: Path,
    numbers: Iterator[int],
    say: Callable[[str], None],
) -> Finding:
    """The same finding from a single case, if one suffices. Each is tried on brokers of its own."""
    deadline = time.monotonic() + patient(_ISOLATE_S)
    for case in reversed(finding.suspects):
        if time.monotonic() > deadline:
            break
        say(f"does {case.name} do it alone?")
        run = _Run(config, folder / f"run-{next(numbers)}", FuzzResult(seed=config.seed), say)
        again = await run.play(_Cases(deque([case]), iter(()), 0.0), is_quick=True)
        if again is not None:
            return Finding(again.problem, [case])
    return finding


@final
class _Run:
    """One arena, used until something is found or no case is left."""

    def __init__(
        self,
        config: FuzzConfig,
        folder: Path,
        result: FuzzResult,
        say: Callable[[str], None],
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._result = result
        self._say = say
        self._show = show
        self._began = time.monotonic()
        self._tasks = TaskGroup("fuzz")
        self._recent: deque[tuple[float, Case]] = deque(maxlen=2000)
        self._running: list[Case] = []
        self._problems: asyncio.Queue[str] = asyncio.Queue(maxsize=1000)
        self._beats = 0
        self._kinds: set[str] = set()
        self._tick_at = 0.0

    async def play(self, cases: _Cases, *, is_quick: bool = False) -> Finding | None:
        """Returns: what was found."""
        try:
            async with Arena(self._folder, self._config.etcd_binary) as arena:
                self._arena = arena
                self._logs = [LogWatch(broker.log) for broker in arena.brokers]
                self._memory = [Memory(broker.pid) for broker in arena.brokers]
                self._driver = Driver(arena, await arena.header())
                async with _pulse(arena) as pulse:
                    self._tasks.spawn(self._listen(pulse), name="pulse")
                    try:
                        await self._play(cases, is_quick=is_quick)
                    finally:
                        await self._tasks.close()
                        await self._driver.close()
        except _Found as found:
            return Finding(found.problem, self._suspects(found.case))
        return None

    async def _play(self, cases: _Cases, *, is_quick: bool) -> None:
        await self._warm_up(is_quick=is_quick)
        if cases.began is None:
            cases.began = time.monotonic()
        while cases.first:
            await self._round(_take(cases), until=time.monotonic() + _ROUND_S)
            if is_quick or self._config.replay:
                continue
            await self._renew()
        if cases.until is None:
            duration_s = self._config.duration_s
            cases.until = max(cases.began + duration_s, time.monotonic() + duration_s / 2)
            self._say(f"{self._result.inputs} cases of the corpus were run; now those of the seed")
        while time.monotonic() < cases.until:
            until = min(cases.until, time.monotonic() + _ROUND_S)
            await self._round(cases.generated, until=until)
            await self._renew()
        await self._linger(_LINGER_S)
        await self._end(is_quick=is_quick)

    async def _round(self, cases: Iterator[Case], *, until: float) -> None:
        """Let workers perform cases until it is time, or none is left."""
        cases = iter(cases)
        first = next(cases, None)
        if first is None:
            return
        is_alone = _is_heavy(first) or self._config.replay
        feed = itertools.chain([first], cases)
        try:
            async with asyncio.TaskGroup() as group:
                workers = [
                    group.create_task(self._work(feed, until))
                    for _ in range(1 if is_alone else self._config.workers)
                ]
                group.create_task(self._watch(workers))
        except ExceptionGroup as errors:
            found = [err for err in errors.exceptions if isinstance(err, _Found)]
            if len(found) < len(errors.exceptions):
                raise
            # A finding that names its case says more than one that was seen at the same time.
            raise min(found, key=lambda err: err.case is None) from None

    async def _work(self, cases: Iterator[Case], until: float) -> None:
        while time.monotonic() < until or self._config.replay:
            case = next(cases, None)
            if case is None:
                return
            self._tick_at = max(self._tick_at + 1 / self._config.rate_per_s, time.monotonic())
            await pass_time(self._tick_at - time.monotonic())
            await self._perform(case)

    async def _perform(self, case: Case) -> None:
        self._running.append(case)
        try:
            async for answer in self._driver.perform(case):
                self._result.inputs += 1
                problem = judge(answer)
                if problem:
                    self._report(problem, case)
        finally:
            self._running.remove(case)
            self._recent.append((time.monotonic(), case))
        self._check()
        if _is_heavy(case):
            await self._linger(0.5)
            await self._driver.release()

    async def _watch(self, workers: Sequence[asyncio.Task[None]]) -> None:
        while not all(worker.done() for worker in workers):
            self._check()
            self._progress()
            await pass_time(0.1)

    def _progress(self) -> None:
        names = ", ".join(case.name for case in self._running[:3])
        self._show(
            f"{time.monotonic() - self._began:4.0f} s  {self._result.inputs} inputs  peak "
            f"+{self._result.rss_peak_mb:.0f} MB  {names}"
        )

    async def _linger(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check()
            await pass_time(0.1)

    # ------------------------------------------------------------------ what must hold

    def _check(self) -> None:
        """Raises: _Found: something is wrong with a broker."""
        for broker, log in zip(self._arena.brokers, self._logs, strict=True):
            is_dead = broker.has_ended
            problem = log.problem()
            if is_dead:
                self._result.deaths += 1
                raise _Found(f"{broker.id} ended; its log ends:\n{broker.log_tail()[-3000:]}")
            if problem:
                self._result.tracebacks += log.tracebacks
                self._report(f"the log of {broker.id} has: {_gist(problem)}\n{problem}")
        for broker, memory in zip(self._arena.brokers, self._memory, strict=True):
            problem = memory.problem()
            self._result.rss_peak_mb = max(self._result.rss_peak_mb, memory.peak_mb)
            if problem:
                raise _Found(f"{broker.id}: {problem}")
        while not self._problems.empty():
            self._report(self._problems.get_nowait())

    def _report(self, problem: str, case: Case | None = None) -> None:
        """Raises: _Found, unless the run is to go on and these brokers still can."""
        if not self._config.keeps_going:
            raise _Found(problem, case)
        kind = re.sub(r"[\d.]+|'[^']*'|\"[^\"]*\"|\(.*", "", problem.partition("\n")[0])[:120]
        if kind not in self._kinds:
            self._kinds.add(kind)
            _keep(
                self._result, Finding(problem, self._suspects(case)), self._folder.parent, self._say
            )

    async def _end(self, *, is_quick: bool) -> None:
        """Check that memory comes back, the pulse kept beating, and nothing forbidden was touched."""
        if self._config.has_corpus and not (is_quick or self._config.replay):
            again = iter([case for case in corpus() if _is_heavy(case)])
            await self._round(again, until=time.monotonic() + 60.0)
        await self._driver.release()
        if not is_quick and self._beats < 10:
            raise _Found(Late("the pulse did not beat: brokers were not watched"))
        problem = await self._arena.touched()
        if problem:
            raise _Found(problem)
        if not is_quick:
            await self._renew()
        for broker, memory in zip(self._arena.brokers, self._memory, strict=True):
            growth = await asyncio.to_thread(memory.settle, timeout_s=patient(_SETTLE_S))
            self._result.rss_growth_mb = max(self._result.rss_growth_mb, growth)
            if growth >= self._config.growth_mb_max:
                raise _Found(f"{broker.id} keeps {growth:.0f} MB more than once warm")
        self._check()

    async def _renew(self) -> None:
        await self._driver.release()
        try:
            async with asyncio.timeout(patient(60.0)):
                problem = await self._arena.touched()
                await self._arena.renew()
        except (AssertionError, TimeoutError, grpc.RpcError) as err:
            self._check()
            text = f"journals cannot be created again: {type(err).__name__} {err}"
            raise _Found(reason_of(err, text)) from err
        if problem:
            raise _Found(problem)
        self._check()

    def _suspects(self, case: Case | None) -> list[Case]:
        if case is not None:
            return [case]
        since = time.monotonic() - _SUSPECT_S
        recent = [
            c for at, c in self._recent if at > since and any(s["do"] != "parse" for s in c.steps)
        ]
        return [*recent, *self._running][-_SUSPECTS_MAX:]

    # ------------------------------------------------------------------ beside the cases

    async def _warm_up(self, *, is_quick: bool) -> None:
        """Use everything once, in good order, so that growth counts from there."""
        until = time.monotonic() + (0.0 if is_quick else _WARM_S)
        line = b"x" * (1 << 20)
        for turn in itertools.count():
            who = {"token": "all", "broker": turn % 2, "timeout_s": 5.0}
            steps = [append(j, line, **who) for j in ("fuzz/a", "mine/two")]
            steps += [rpc(m, METHODS[m].request(), **who) for m in METHODS if "Replicate" not in m]
            steps += [
                get("/mine/two?offset=0", timeout_s=5.0),
                get("/mine/two", b"Accept: text/event-stream"),
            ]
            async for answer in self._driver.perform(Case("warm-up", steps)):
                if answer.code in {"INTERNAL", "500"}:
                    raise _Found(f"while warming up: {answer.text}")
            if time.monotonic() > until:
                break
        if not is_quick:
            await self._renew()
        for memory in self._memory:
            memory.warm()

    async def _listen(self, pulse: asyncio.subprocess.Process) -> None:
        assert pulse.stdout is not None
        loop = asyncio.get_running_loop()
        async for line in pulse.stdout:
            event = json.loads(line)
            self._beats += event.get("beats", 0)
            if "problem" in event:
                who = event.get("journal") or self._arena.brokers[event["broker"]].id
                text = f"{who}: {event['problem']}"
                loop.call_later(_DEATH_S, self._take_note, Late(text) if event["late"] else text)

    def _take_note(self, problem: str) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._problems.put_nowait(problem)


def _take(cases: _Cases) -> Iterator[Case]:
    """The first cases, as long as they are asked for; heavy ones come alone."""
    heavy = bool(cases.first) and _is_heavy(cases.first[0])
    while cases.first and _is_heavy(cases.first[0]) == heavy:
        yield cases.first.popleft()


@contextlib.asynccontextmanager
async def _pulse(arena: Arena) -> Iterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("pulse.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        wanted = {
            "ports": [broker.http_port for broker in arena.brokers],
            "http2_ports": [broker.port for broker in arena.brokers if arena.wire == "h2"],
            "pids": [broker.pid for broker in arena.brokers],
            "journals": PROBES,
            "token": arena.token("all"),
        }
        process.stdin.write(json.dumps(wanted).encode() + b"\n")
        await process.stdin.drain()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
