"""Tables shared out to sensors: which one has a table, and since when.

The hash of a table's name decides, so a table that is new has its sensor at once, and no sensor needs to know the others.
What belongs to no table (the folder of table specs, and files in it that name no table) is the first one's.

An *epoch* begins when the number of sensors changes. Each then finds a cursor that its name has left behind long ago, or none.
Offsets in it may be behind, which repeats nothing, since events follow from Dagster's own log. But what it says of
problems and audits *as they were reported* is not true any more: other sensors reported them meanwhile. So a cursor says of which epoch it
is, and Dagster knows the newest one by the event of the folder of table specs, which the first sensor reports. What has to be
passed on is in `gazette_platform.sensors.hand_over`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.assets.raw import SPECS_KEY
from gazette_platform.errors import ValidationError
from gazette_platform.lake import SpecFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import DagsterInstance

SHARDS_MAX: Final = 32
"""Sensors. Each is a thread of Dagster's daemon while it ticks, and all are in one process of its code server."""

_NAME: Final = "fragments"
# Metadata keys of the event of the folder.
_COUNT: Final = "gazette/sensor_shards"
_EPOCH: Final = "gazette/sensor_epoch"


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` sensors, and the tables that it has.

    >>> [Shard(n, 2).owns("shop.orders") for n in range(2)], Shard().name, Shard(1, 2).name
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


def shards(count: int) -> list[Shard]:
    """All of `count` sensors.

    Raises: ValidationError: they are none, or too many.
    """
    if not 1 <= count <= SHARDS_MAX:
        raise ValidationError(
            f"{count} is not between 1 and {SHARDS_MAX}", path="GAZETTE_SENSOR_SHARDS"
        )
    return [Shard(index, count) for index in range(count)]


def epoch_of(instance: DagsterInstance, shard: Shard) -> int:
    """The epoch that a sensor is in; one query. It is a new one as long as Dagster knows another number of them."""
    records = instance.fetch_materializations(SPECS_KEY, limit=1).records
    event = records[0].asset_materialization if records else None
    if event is None:
        return 0
    # Without these keys it is of a release that had one sensor.
    count, epoch = (
        found.value if (found := event.metadata.get(key)) is not None else default
        for key, default in ((_COUNT, 1), (_EPOCH, 0))
    )
    if not isinstance(epoch, int):
        return 0
    return epoch if count == shard.count else epoch + 1


def epoch_metadata(shard: Shard, epoch: int) -> Mapping[str, int]:
    """What the event of the folder says, for `epoch_of`."""
    return {_COUNT: shard.count, _EPOCH: epoch}
