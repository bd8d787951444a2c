"""Producers, group and transforms: started, killed, paused, asked to leave, and started again."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, final

from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.benches.kafka_servers import Program
from tests.kafka_chaos.check import PRODUCER, SESSION, TRANSACTIONAL, Line
from tests.kafka_chaos.verifiable import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GROUP, TRANSFORMS, COPIERS, VERIFIERS = "watchers", "transforms", "copiers", "verifiers"
SOURCE, TARGET, COPY, VERIFIED = "source", "target", "copy", "verified"
_POLL_S = 0.2
# Records of a transform's transaction, so that it keeps up with producers.
_BATCH = "100"
_LEAVE_S = 60.0
# Between two faults; and how long they last: the longer ones beyond the session and the transaction's time-out.
_CALM_S = (0.5, 4.0)
_AWAY_S = (0.2, 5.0)
_PAUSED_S = (2.0, 16.0)
_TRACEBACKS = ("Traceback (most recent call last)", "Exception in thread")


class Role(StrEnum):
    """What a program is."""

    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"
    MEMBER = "member"
    TRANSFORM = "transform"
    COPIER = "copier"
    """This one and the next two are Kafka's own, in Java."""
    VERIFIABLE_PRODUCER = "verifiable-producer"
    """Fills `verified`."""
    VERIFIABLE_CONSUMER = "verifiable-consumer"
    """Of the group that reads it."""

    @property
    def produces(self) -> bool:
        """Whether it fills `source` or `verified`."""
        return self in (Role.IDEMPOTENT, Role.TRANSACTIONAL, Role.VERIFIABLE_PRODUCER)

    @property
    def is_verifiable(self) -> bool:
        """Whether what it says is to be translated."""
        return self in (Role.VERIFIABLE_PRODUCER, Role.VERIFIABLE_CONSUMER)


class Harm(StrEnum):
    """What is done to a program."""

    KILL = "kill"
    """SIGKILL, and started again."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT."""
    LEAVE = "leave"
    """SIGTERM, and started again."""


COUNTS = {Role.IDEMPOTENT: 2, Role.TRANSACTIONAL: 2, Role.MEMBER: 3, Role.TRANSFORM: 2}
WITH_JAVA = COUNTS | {
    Role.COPIER: 1,
    Role.VERIFIABLE_PRODUCER: 1,
    Role.VERIFIABLE_CONSUMER: 2,
}


@final
class _Client:
    """One program, and all that its runs wrote."""

    def __init__(
        self, role: Role, number: int, folder: Path, servers: str, partitions: int
    ) -> None:
        self.name = f"{role}-{number}"
        self.role = role
        self.lines: list[Line] = []
        self.is_wanted = True
        self.is_harmed = False
        self._file = folder / f"{self.name}.log"
        self._number = number
        self._servers = servers
        self._partitions = partitions
        self._runs = 0
        self._read_to = 0
        self._process: Program | None = None

    def start(self) -> None:
        """Run it, once more."""
        if self._process is not None:
            self._process.kill()  # it has ended; this closes its file
        self._runs += 1
        match self.role:
            case Role.MEMBER:
                script, arguments = "kafka_member.py", ["confluent", self._servers, GROUP, SOURCE]
                arguments.append(str(self._file))
            case Role.TRANSFORM:
                script = "kafka_transform.py"
                arguments = [self._servers, TRANSFORMS, SOURCE, TARGET, self.name, str(self._file)]
                arguments.append(_BATCH)
            case Role.COPIER:
                script, arguments = "kafka_java.py", ["copier", self._servers, str(self._file)]
                arguments += [COPIERS, SOURCE, COPY, self.name]
            case Role.VERIFIABLE_PRODUCER:
                script, arguments = "kafka_java.py", ["producer", self._servers, str(self._file)]
                arguments += [VERIFIED, str(self._number * PRODUCER // SESSION + self._runs)]
            case Role.VERIFIABLE_CONSUMER:
                script, arguments = "kafka_java.py", ["consumer", self._servers, str(self._file)]
                arguments += [VERIFIED, VERIFIERS]
            case _:
                is_open = self.role is Role.TRANSACTIONAL
                first = self._number * PRODUCER + self._runs * SESSION + is_open * TRANSACTIONAL
                script, arguments = "kafka_producer.py", [self._servers, SOURCE]
                arguments += [str(self._partitions), str(first), str(self._file)]
                arguments += [self.name] if is_open else []
        self._process = Program(script, self._file, *arguments)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.process.poll()

    @property
    def errors(self) -> str:
        """What its runs wrote to stderr."""
        return "" if self._process is None else self._process.errors

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and not self.has_ended:
            self._process.process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def read(self) -> list[Line]:
        """Return what it wrote since the last time."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        self._read_to += len(content)
        new = [json.loads(line) for line in content.splitlines()]
        if self.role.is_verifiable:
            new = [line for said in new for line in lines_of(said)]
        self.lines += new
        return new


@final
class Clients:
    """All programs of a run. A context manager that kills what is left.

    Args:
        servers: what clients are configured with.
        counts: how many programs have each role.
        say: called with each fault, a line each.

    Attributes:
        harmed: how often what was done, as ``kill member``.
        counts: how many lines each role wrote, by kind.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        *,
        partitions: int,
        say: Callable[[str], None],
        counts: Mapping[Role, int],
    ) -> None:
        self.harmed: Counter[str] = Counter()
        self.counts: Counter[tuple[Role, str]] = Counter()
        self._gave_up: list[str] = []
        self._say = say
        self._all = [
            _Client(role, number, folder, servers, partitions)
            for role, count in counts.items()
            for number in range(count)
        ]

    def __enter__(self) -> Clients:
        for client in self._all:
            client.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self._all:
            client.send(signal.SIGCONT)
            client.kill()
            client.read()

    @property
    def troubles(self) -> list[str]:
        """Programs that ended by what they do not know, or should have gone on."""
        return [
            f"{client.name} failed: {client.errors[client.errors.rfind(begin) :]}"
            for client in self._all
            for begin in _TRACEBACKS
            if begin in client.errors
        ] + self._gave_up

    def lines(self, role: Role) -> dict[str, Sequence[Line]]:
        """What programs wrote so far, by name."""
        return {client.name: client.lines for client in self._all if client.role is role}

    def watch(self) -> None:
        """Note what they wrote, and start those again that ended though they are wanted. Blocks for some ms."""
        for client in self._all:
            self.counts.update((client.role, line.get("what", "")) for line in client.read())
            if client.is_wanted and not client.is_harmed and client.has_ended:
                last = client.lines[-1] if client.lines else {}
                code = client.exit_code
                self._say(f"{client.name} ended with {code}: {last.get('text', last.get('what'))}")
                self.harmed[f"restart {client.role}"] += 1
                if client.role.is_verifiable:  # no error that Kafka knows ends it
                    self._gave_up.append(f"{client.name} gave up, with {code}")
                client.start()

    async def supervise(self) -> None:
        """Do so for ever."""
        while True:
            self.watch()
            await pass_time(_POLL_S)

    async def harm(self, seed: int) -> None:
        """Do something to one program after another, each kind to each role in turn. Cancellation: mends."""
        rng = random.Random(f"clients/{seed}")
        kinds = [*itertools.product(Harm, dict.fromkeys(one.role for one in self._all))]
        while True:
            for kind, role in rng.sample(kinds, len(kinds)):
                await pass_time(rng.uniform(*_CALM_S))
                client = rng.choice([one for one in self._all if one.role is role])
                away_s = rng.uniform(*(_PAUSED_S if kind is Harm.PAUSE else _AWAY_S))
                self._say(f"client: {kind} {client.name} for {away_s:.1f} s")
                self.harmed[f"{kind} {role}"] += 1
                client.is_harmed = True
                try:
                    await self._harm(kind, client, away_s)
                finally:
                    client.send(signal.SIGCONT)
                    client.is_harmed = False

    async def _harm(self, kind: Harm, client: _Client, away_s: float) -> None:
        match kind:
            case Harm.KILL:
                client.kill()
            case Harm.PAUSE:
                client.send(signal.SIGSTOP)
            case Harm.LEAVE:
                client.send(signal.SIGTERM)
                await self._ended([client])
        await pass_time(away_s)
        if client.has_ended:
            client.start()

    async def finish(self, *, is_producers: bool) -> None:
        """Ask producers, or all others, to come to their end. Raises: TooLate: some do not."""
        chosen = [client for client in self._all if client.role.produces == is_producers]
        for client in chosen:
            client.is_wanted = False
            client.send(signal.SIGTERM)
        await self._ended(chosen)

    async def _ended(self, clients: Sequence[_Client]) -> None:
        try:
            async with asyncio.timeout(patient(_LEAVE_S)):
                while any(not client.has_ended for client in clients):
                    await pass_time(_POLL_S)
        except TimeoutError as err:
            names = " ".join(client.name for client in clients if not client.has_ended)
            raise TooLate(
                f"{patient(_LEAVE_S):g} s after they were asked to end, {names} run"
            ) from err
