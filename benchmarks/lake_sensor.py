"""Ticks of the fragment sensor: those of a platform, as they happen, and those that are run here.

What is run here is stored as Dagster's daemon stores it; so what a tick takes is all of it, either way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, final

from dagster import DeleteDynamicPartitionsRequest, SensorResult, build_sensor_context

from gazette_platform.errors import LakeError
from gazette_platform.resources import platform_resources
from gazette_platform.sensors import fragments_sensor
from gazette_platform.sensors.cursor import SensorCursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import DagsterInstance

    from gazette_platform.lake.raw.planning import JournalCursor
    from gazette_platform.lake.settings import LakeSettings
    from gazette_platform.ops.clock import Clock

__all__ = ["OwnTick", "PlatformTicks", "SensorTicks", "Tick", "Ticks"]

_RESOURCES = ("broker", "metastore", "lake")
_POLL_S = 0.1
_TICK_TIMEOUT_S = 180.0
# Ticks that end between two looks.
_TICKS_MAX = 100


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick took, its storing included."""

    elapsed_s: float


@dataclass(frozen=True, slots=True)
class OwnTick(Tick):
    """The same of a tick that was run here."""

    cpu_s: float
    """Of this process, all its threads."""
    events: int


class Ticks(Protocol):
    """Ticks, one after the other, each from the cursor of the one before."""

    @property
    def instance(self) -> DagsterInstance:
        """The Dagster that gets events."""
        ...

    def tick(self) -> Tick:
        """The next tick, from its begin to its end. Raises: GazetteError: it failed."""
        ...

    def registered(self, table: str) -> Mapping[str, JournalCursor]:
        """By journal, how far the table is registered, as the cursor says."""
        ...


@final
class PlatformTicks:
    """Ticks that the daemon of a platform does by itself.

    Args:
        instance: the platform's; ticks count from now on.
        clock: gives the time.
    """

    def __init__(self, instance: DagsterInstance, clock: Clock) -> None:
        self._clock = clock
        self._after_s = clock.unix_s()
        self._ended: list[tuple[float, float]] = []
        self.instance = instance

    def tick(self) -> Tick:
        """Wait for the next tick that ends. Raises: LakeError: it failed, or there is none."""
        deadline = self._clock.monotonic() + _TICK_TIMEOUT_S
        while not self._ended:
            if self._clock.monotonic() > deadline:
                raise LakeError(f"no tick of the sensor has ended for {_TICK_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
            self._look()
        begun_s, ended_s = self._ended.pop(0)
        return Tick(ended_s - begun_s)

    def _look(self) -> None:
        """Take ticks that have ended since the last one, oldest first."""
        for state in self._states():
            found = self.instance.get_ticks(
                state.instigator_origin_id,
                state.selector_id,
                after=self._after_s,
                limit=_TICKS_MAX,
            )
            for tick in sorted(found, key=lambda tick: tick.timestamp):
                if tick.end_timestamp is None:
                    break  # it runs, and so is the last one
                if tick.is_failure:
                    raise LakeError(f"a tick of the sensor failed: {tick.error}")
                self._ended.append((tick.timestamp, tick.end_timestamp))
                self._after_s = tick.timestamp

    def registered(self, table: str) -> Mapping[str, JournalCursor]:
        """By journal, how far the table is registered, as the cursor says."""
        for state in self._states():
            data = state.sensor_instigator_data
            cursor = SensorCursor.parse(data.cursor if data is not None else None)
            return cursor.registered.tables.get(table, {})
        return {}

    def _states(self) -> list[Any]:
        """Of the sensor: one, or none before its first tick."""
        states = self.instance.all_instigator_state()
        return [state for state in states if state.instigator_name == fragments_sensor.name]


@final
class SensorTicks:
    """Ticks that are run here, whenever they are asked for.

    Args:
        resources: ``broker``, ``metastore`` and ``lake``, as the sensor wants them.
        instance: the Dagster that gets events.
        clock: gives the time.
    """

    def __init__(
        self, resources: Mapping[str, object], instance: DagsterInstance, clock: Clock
    ) -> None:
        self._resources = {name: resources[name] for name in _RESOURCES}
        self._clock = clock
        self._cursor: str | None = None
        self.instance = instance

    @classmethod
    def of(cls, settings: LakeSettings, instance: DagsterInstance, clock: Clock) -> Self:
        """Ticks over real servers."""
        return cls(platform_resources(settings), instance, clock)

    def tick(self) -> OwnTick:
        """Run one tick, and store its report: events, then partitions, then the cursor."""
        begun, cpu = self._clock.monotonic(), time.process_time()
        with build_sensor_context(
            instance=self.instance, cursor=self._cursor, resources=self._resources
        ) as context:
            result = fragments_sensor(context)
        assert isinstance(result, SensorResult)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            name, keys = request.partitions_def_name, request.partition_keys
            if isinstance(request, DeleteDynamicPartitionsRequest):
                for key in keys:
                    self.instance.delete_dynamic_partition(name, key)
            else:
                self.instance.add_dynamic_partitions(name, keys)
        self._cursor = result.cursor
        return OwnTick(
            self._clock.monotonic() - begun, time.process_time() - cpu, len(result.asset_events)
        )

    def registered(self, table: str) -> Mapping[str, JournalCursor]:
        """By journal, how far the table is registered, as the cursor says."""
        return SensorCursor.parse(self._cursor).registered.tables.get(table, {})
