"""The shares of tables that several sensors `fragments` have: which sensor has a table, and since when.

The hash of a table's name decides, so a new table has its sensor at once, and no sensor needs to know the others.
What belongs to no table (the folder of table specs, and files in it that name no table) is the first one's.

An *epoch* begins when the number of sensors changes. Each sensor then finds a cursor that its name has left long ago, or
none. Old offsets in it repeat nothing, since events follow from Dagster's own log. But problems and audits *as they were
reported* do not hold any more: other sensors reported them meanwhile. So a cursor names its epoch, and the event of the
folder of table specs, which the first sensor reports, names the newest one.

One thing is passed on to the sensors of a new epoch: that brokers once listed nothing of a journal any more. Only cursors
know it. If it were lost while a store is away, rows of that store might be taken for pruned.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.assets.raw import SPECS_KEY
from gazette_platform.errors import ValidationError
from gazette_platform.lake import SpecFolder
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.prunes import RetentionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dagster import DagsterInstance, SensorEvaluationContext

SENSORS_MAX: Final = 32
"""Sensors. Each is a thread of Dagster's daemon while it ticks, and all are in one process of its code server."""

_NAME: Final = "fragments"
# Metadata keys of the event of the folder.
_COUNT: Final = "gazette/fragment_sensors"
_EPOCH: Final = "gazette/sensor_epoch"


@final
@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` sensors, and the tables that it has.

    >>> [Share(n, 2).owns("shop.orders") for n in range(2)], Share().name, Share(1, 2).name
    ([False, True], 'fragments', 'fragments_1')
    """

    index: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Of its sensor; of one that is alone as it was before there were several."""
        return _NAME if self.count == 1 else f"{_NAME}_{self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it has what belongs to no table."""
        return self.index == 0

    def owns(self, table: str) -> bool:
        """Whether it has the table ``schema.table``, or for "" what belongs to no table."""
        if not table:
            return self.is_first
        # Python's own hash differs from process to process.
        digest = hashlib.sha256(table.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index

    def part_of(self, folder: SpecFolder) -> SpecFolder:
        """What of a folder it has."""
        if self.count == 1:
            return folder
        specs = {table: spec for table, spec in folder.specs.items() if self.owns(table)}
        return SpecFolder(
            specs,
            {table: file for table, file in folder.files.items() if table in specs},
            {file: bad for file, bad in folder.refused.items() if self.owns(bad.table)},
        )


def shares(count: int) -> list[Share]:
    """All of `count` sensors.

    Raises: ValidationError: they are none, or too many.
    """
    if not 1 <= count <= SENSORS_MAX:
        raise ValidationError(
            f"{count} is not between 1 and {SENSORS_MAX}", path="GAZETTE_FRAGMENT_SENSORS"
        )
    return [Share(index, count) for index in range(count)]


def epoch_of(instance: DagsterInstance, share: Share) -> int:
    """The epoch that a sensor is in; one query. It is a new one as long as Dagster knows another number of them."""
    records = instance.fetch_materializations(SPECS_KEY, limit=1).records
    event = records[0].asset_materialization if records else None
    if event is None:
        return 0
    values = {key: value.value for key, value in event.metadata.items()}
    count, epoch = values.get(_COUNT, 1), values.get(_EPOCH)
    if not isinstance(epoch, int):
        return 0  # a person reported it, in the UI
    return epoch if count == share.count else epoch + 1


def epoch_metadata(share: Share, epoch: int) -> Mapping[str, int]:
    """What the event of the folder says, for `epoch_of`."""
    return {_COUNT: share.count, _EPOCH: epoch}


_SENSOR_NAMES: Final = re.compile(r"fragments(_\d+)?")


def former_cursors(context: SensorEvaluationContext) -> Iterator[SensorCursor]:
    """Cursors of all sensors of this kind that this code location has, or once had; one query."""
    origin = context.code_location_origin
    for state in context.instance.all_instigator_state():
        data = state.sensor_instigator_data
        if data is None or not data.cursor or not _SENSOR_NAMES.fullmatch(state.instigator_name):
            continue
        if origin and state.repository_selector.location_name != origin.location_name:
            continue
        try:
            yield SensorCursor.parse(data.cursor)
        except ValidationError:
            continue  # of another release, or edited by hand; its own sensor would say so


def former_retention(cursors: Iterable[SensorCursor]) -> RetentionState:
    """What those of the last epoch know of breaks, of all tables."""
    found = list(cursors)
    last = max((cursor.epoch for cursor in found), default=0)
    state = RetentionState()
    for cursor in found:
        if cursor.epoch == last:
            for table, broken in cursor.retention.broken.items():
                state = state.with_broken(table, broken)
    return state
