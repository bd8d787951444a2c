"""Defaults of new journals: replication from the zones of the cluster, and the store from neighbours."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gazette_platform.cli.instants import seconds_of
from gazette_platform.errors import ValidationError
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.protocol import BrokerSpec

__all__ = [
    "Codec",
    "PartitionBy",
    "default_replication",
    "default_stores",
    "flush_interval_ns",
    "labels_of",
    "new_journal",
    "zones_of",
]

# Two replicas survive the loss of one zone, and three that of one while another is being replaced.
_REPLICATION_MAX: Final = 3

# Of content before compression. As the guides have it: large enough for engines, small enough to lose little
# time when a reader begins amid one.
_FRAGMENT_BYTES: Final = 64 << 20
_REFRESH_NS: Final = 60 * SECOND_NS

FILE_STORE: Final = "file:///"


class Codec(enum.StrEnum):
    """Codecs by the names that people give them."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    SNAPPY = "snappy"


_CODECS: Final = {
    Codec.NONE: CompressionCodec.NONE,
    Codec.GZIP: CompressionCodec.GZIP,
    Codec.ZSTD: CompressionCodec.ZSTANDARD,
    Codec.SNAPPY: CompressionCodec.SNAPPY,
}


class PartitionBy(enum.StrEnum):
    """Hive partitions that fragments lie in, by the time of their first append."""

    DATE = "date"
    HOUR = "hour"
    NONE = "none"


_DATE: Final = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
_POSTFIXES: Final = {
    PartitionBy.DATE: _DATE,
    PartitionBy.HOUR: _DATE + '/hour={{ .Spool.FirstAppendTime.Format "15" }}',
    PartitionBy.NONE: "",
}


def zones_of(brokers: Iterable[BrokerSpec]) -> set[str]:
    """Return the zones whose brokers can take journals: those that leave, or take none, do not count."""
    return {each.id.zone for each in brokers if each.journal_limit > 0 and not each.exiting}


def default_replication(zones: Iterable[str]) -> int:
    """Return one replica a zone, three at most.

    >>> default_replication(["a", "b", "c", "d"]), default_replication(["local"])
    (3, 1)
    """
    return min(_REPLICATION_MAX, max(1, len(set(zones))))


def default_stores(
    name: str, journals: Mapping[str, Sequence[str]], endpoints: Iterable[str]
) -> tuple[str, ...]:
    """Return the stores that a journal's neighbours use: those in the deepest directory that it shares with any.

    Without journals, the only guess is the file root of brokers that are all on one machine.

    Args:
        name: of the new journal.
        journals: stores of the journals of the cluster, by name.
        endpoints: URLs of its brokers.

    Raises: ValidationError: neighbours use different stores, or brokers are on several machines. Names the choices.
    """
    directory = name
    while directory:
        directory = directory[: directory[:-1].rfind("/") + 1]
        found = {tuple(stores) for near, stores in journals.items() if near.startswith(directory)}
        found.discard(())
        if len(found) == 1:
            return found.pop()
        if found:
            choices = ", ".join(sorted({stores[0] for stores in found})[:_CHOICES_MAX])
            where = f"below {directory}" if directory else "here"
            raise ValidationError(
                f"journals {where} use different stores ({choices}); say which one {name} uses",
                path="--store",
            )
    hosts = {urlsplit(each).hostname for each in endpoints}
    if len(hosts) > 1:
        raise ValidationError(
            f"there are no journals yet to take the store from, and brokers are on {len(hosts)} machines, which "
            "share no folder as far as is known; name a store, as in --store s3://bucket/prefix/",
            path="--store",
        )
    return (FILE_STORE,)


_CHOICES_MAX = 4


def labels_of(texts: Iterable[str]) -> LabelSet:
    """Parse labels that are given as ``NAME=VALUE``.

    Raises: ValidationError: one is not, or breaks a rule of labels.

    >>> labels_of(["env=test", "a=b"]).values_of("env")
    ('test',)
    """
    labels = LabelSet()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValidationError(f"is not NAME=VALUE ({text})", path="--label")
        labels = labels.with_added(name, value)
    try:
        labels.validate()
    except ValidationError as err:
        raise err.within("--label") from err
    return labels


def flush_interval_ns(text: str) -> int:
    """Parse ``--flush``. Raises: ValidationError: it is not a duration, or one that brokers refuse.

    >>> flush_interval_ns("5m"), flush_interval_ns("0s")
    (300000000000, 0)
    """
    nanoseconds = int(seconds_of(text, "--flush") * SECOND_NS)
    if nanoseconds and nanoseconds < 60 * SECOND_NS:
        raise ValidationError(
            f"brokers take no less than 1m, or 0s for no limit of time ({text}); `gazctl journals flush` stores "
            "content at once",
            path="--flush",
        )
    return nanoseconds


def new_journal(
    name: str,
    *,
    replication: int,
    stores: tuple[str, ...],
    codec: Codec = Codec.GZIP,
    partition_by: PartitionBy = PartitionBy.DATE,
    flush_ns: int = 60 * SECOND_NS,
    labels: LabelSet | None = None,
) -> JournalSpec:
    """Return the spec of a new journal.

    Raises: ValidationError: a value breaks a rule of specs.
    """
    if name.endswith("/"):
        raise ValidationError(
            f"{name} names a directory (give the name of a journal in it, as {name}part=0)",
            path="NAME",
        )
    spec = JournalSpec(
        name,
        replication,
        labels=labels or LabelSet(),
        fragment=FragmentSpec(
            length=_FRAGMENT_BYTES,
            codec=_CODECS[codec],
            stores=stores,
            refresh_interval_ns=_REFRESH_NS,
            flush_interval_ns=flush_ns,
            path_postfix_template=_POSTFIXES[partition_by],
        ),
    )
    try:
        spec.validate()
    except ValidationError as err:
        raise ValidationError(str(err), path=name) from err
    return spec
