"""Check that the journals that specs of shards name exist, and are of the right kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.recoverylog import CONTENT_TYPE
from gazette_platform.errors import ValidationError
from gazette_platform.message import framing_of_labels
from gazette_platform.protocol import LabelSelector, LabelSet, strip_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.protocol import ShardSpec

__all__ = ["check_references"]

_LABEL: Final = "content-type"
# Journals that are asked for in one listing.
_NAMES_AT_A_TIME: Final = 100


async def check_references(client: AsyncClient, specs: Iterable[ShardSpec]) -> None:
    """Check that sources are journals of messages, and that recovery logs are journals of their type.

    Args:
        client: of the brokers.
        specs: which are valid by themselves.

    Raises: ValidationError: names the first shard and journal that are wrong. TransportError.
    Cancellation: safe.
    """
    wanted = list(specs)
    names = {strip_meta(source.journal) for spec in wanted for source in spec.sources}
    names |= {spec.recovery_log for spec in wanted if spec.recovery_log}
    labels = await _labels_of(client, sorted(names))
    for spec in wanted:
        path = f"Shard[{spec.id}]"
        for source in spec.sources:
            at = f"{path}.Sources[{source.journal}]"
            _check(labels, strip_meta(source.journal), framing_of_labels, at)
        if spec.recovery_log:
            _check(labels, spec.recovery_log, _check_is_log, f"{path}.RecoveryLog")


async def _labels_of(client: AsyncClient, names: list[str]) -> dict[str, LabelSet]:
    """Labels of the existing journals."""
    found: dict[str, LabelSet] = {}
    for begin in range(0, len(names), _NAMES_AT_A_TIME):
        labels = LabelSet()
        for name in names[begin : begin + _NAMES_AT_A_TIME]:
            labels = labels.with_added("name", name)
        for journal in await client.list(LabelSelector(include=labels)):
            found[journal.name] = journal.spec.labels
    return found


def _check(
    labels: Mapping[str, LabelSet], name: str, rule: Callable[[LabelSet], object], path: str
) -> None:
    found = labels.get(name)
    if found is None:
        raise ValidationError(
            f"named journal does not exist ({name}; make it by `gazctl journals apply`)", path=path
        )
    try:
        rule(found)
    except ValidationError as err:
        raise err.within(path) from err


def _check_is_log(labels: LabelSet) -> None:
    values = labels.values_of(_LABEL)
    if values != (CONTENT_TYPE,):
        raise ValidationError(
            f"expected label {_LABEL} to be {CONTENT_TYPE} (has {', '.join(values) or 'none'})"
        )
