"""What sensors pass on when their number changes and tables are shared out again.

Nearly nothing has to be: what is registered is in the metastore, and what was reported in Dagster. But that brokers once listed
nothing of a journal any more is known to the cursors alone. Were that lost while a store is away, what is gone with it
might be taken for a prune.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.prunes import RetentionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dagster import SensorEvaluationContext

_NAMES: Final = re.compile(r"fragments(_\d+)?")


def former_cursors(context: SensorEvaluationContext) -> Iterator[SensorCursor]:
    """Cursors of all sensors of this kind that this code location has, or once had; one query."""
    origin = context.code_location_origin
    for state in context.instance.all_instigator_state():
        data = state.sensor_instigator_data
        if data is None or not data.cursor or not _NAMES.fullmatch(state.instigator_name):
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
