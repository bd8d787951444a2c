"""Specifications of journals, and the URLs of stores in them: what users write, etcd holds and brokers obey."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import (
    HOUR_NS,
    MINUTE_NS,
    SECOND_NS,
    duration_from_pb,
    duration_into_pb,
    format_duration,
)
from gazette_platform.protocol.enums import CompressionCodec, JournalFlag, SuspendLevel
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSet
from gazette_platform.protocol.names import check_field, validate_journal_name
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

STORE_URL_LENGTH_MAX: Final = 2048
"""Characters; a path of a file system has 4096 bytes, which hold a journal's name, too."""

_BUCKET_SCHEMES = frozenset({"s3", "gs", "azure"})
STORE_SCHEMES = _BUCKET_SCHEMES | {"azure-ad", "file", "hdfs"}
"""Those of Gazette, and ``hdfs``, which its brokers refuse."""

# What the host of a URL names, where it is not a bucket.
_HOSTS = {"azure-ad": "tenant", "hdfs": "namenode"}

# Control characters, surrogates, and separators of lines and paragraphs.
_CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})

# azure-ad://tenant/account/container/ has two segments at least.
_AZURE_AD_SEGMENTS_MIN = 2


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's URL in parts."""

    scheme: str
    host: str
    """Bucket, container, tenant or NameNode; empty for ``file``."""
    path: str
    """Begins and ends with a slash."""
    args: Mapping[str, str] = field(hash=False)
    """Settings of the driver, as written; what they mean is up to the driver."""
    text: str = field(compare=False)
    """The whole URL as given, which is the identity of a store."""

    @property
    def prefix(self) -> str:
        """Prefix of object keys: the path without its leading slash."""
        return self.path.removeprefix("/")


@lru_cache(1024)
def parse_store_url(url: str) -> StoreUrl:
    """Parse and validate the URL of a fragment store.

    Raises: ValidationError: says what is wrong with which URL.
    """
    if len(url) > STORE_URL_LENGTH_MAX:
        raise ValidationError(
            f"URL of {len(url)} characters is too long (at most {STORE_URL_LENGTH_MAX})"
        )
    try:
        parts = urlsplit(url)
        args = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as err:
        raise ValidationError(f'parse "{url}": {err}') from None
    if " " in url or not is_nameable(url):
        raise ValidationError(f'parse "{url}": invalid blank or control character in URL')
    if not parts.scheme:
        raise ValidationError(f"not absolute ({url})")
    path = unquote(parts.path)
    if not path.endswith("/"):
        raise ValidationError(f"path component doesn't end in '/' ({url})")
    if ".." in path.split("/"):
        raise ValidationError(f"path must not have a '..' segment ({url})")
    if not is_nameable(path) or not all(is_nameable(name + value) for name, value in args):
        raise ValidationError(f"encoded control character in URL ({url})")
    if parts.scheme not in STORE_SCHEMES:
        raise ValidationError(f"invalid scheme ({parts.scheme})")
    _validate_location(url, parts.scheme, parts.netloc, path)
    settings: dict[str, str] = {}
    for name, value in args:
        if name in settings:
            raise ValidationError(f"query argument {name} is given twice ({url})")
        settings[name] = value
    return StoreUrl(parts.scheme, parts.netloc, path, MappingProxyType(settings), url)


def is_nameable(text: str) -> bool:
    """Whether every character may be in a name that people and systems see.

    Control characters and halves of surrogate pairs may not: systems refuse some of them, and the
    others break lines of logs.
    """
    return text.isprintable() or not any(unicodedata.category(c) in _CONTROLS for c in text)


def _validate_location(url: str, scheme: str, host: str, path: str) -> None:
    if scheme == "file":
        if host:
            raise ValidationError(f"file scheme cannot have host ({url})")
    elif not host:
        missing = _HOSTS.get(scheme, "bucket")
        raise ValidationError(f"missing {missing} ({url})")
    elif scheme == "azure-ad" and len(path.strip("/").split("/")) < _AZURE_AD_SEGMENTS_MIN:
        raise ValidationError(f"missing account or container ({url})")


def validate_store_url(url: str) -> None:
    """Check the URL of a fragment store.

    Raises: ValidationError.
    """
    parse_store_url(url)


REPLICATION_MAX: Final = 5

_LENGTH_MIN = 1 << 10
_LENGTH_MAX = 1 << 34
_REFRESH_INTERVAL_MIN_NS = SECOND_NS
_REFRESH_INTERVAL_MAX_NS = 24 * HOUR_NS
_FLUSH_INTERVAL_MIN_NS = MINUTE_NS

_INT64_MAX = (1 << 63) - 1

_CONTENT_TYPE = "content-type"
_MESSAGE_TYPE = "app.gazette.dev/message-type"
_MESSAGE_SUBTYPE = "app.gazette.dev/message-subtype"

_SINGLE_VALUE_LABELS = frozenset(
    {
        _CONTENT_TYPE,
        _MESSAGE_TYPE,
        _MESSAGE_SUBTYPE,
        "app.gazette.dev/instance",
        "app.gazette.dev/managed-by",
        "app.gazette.dev/region",
    }
)

# Names with a meaning in list selectors, so that a label of that name could never be selected.
_META_LABELS = ("name", "prefix")

# Label values hold neither blanks nor `;`, so a media type here has no parameters.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class SuspendSpec:
    """The broker-managed suspension of a journal; appliers pass it through unchanged."""

    level: SuspendLevel = SuspendLevel.NONE
    offset: int = 0
    """Least offset of the next append once the journal is resumed."""

    @classmethod
    def from_pb(cls, message: pb.JournalSpec.Suspend) -> Self:
        """The suspension of a message, not validated."""
        return cls(SuspendLevel.from_wire(message.level), message.offset)

    def to_pb(self) -> pb.JournalSpec.Suspend:
        """The suspension as a message."""
        return pb.JournalSpec.Suspend(level=self.level.value, offset=self.offset)  # type: ignore[arg-type]

    def validate(self) -> None:
        """Check level and offset.

        Raises: ValidationError.
        """
        check_field("Level", self.level.require_known)
        if self.offset < 0:
            raise ValidationError(f"invalid Offset ({self.offset}; expected >= 0)")


@dataclass(frozen=True, slots=True)
class FragmentSpec:
    """How the content of a journal is cut, compressed and stored."""

    length: int = 0
    """Target length of fragments, in uncompressed bytes."""
    codec: CompressionCodec = CompressionCodec.INVALID
    stores: tuple[str, ...] = ()
    """Store URLs. Fragments are written to the first and listed in all; empty persists nothing."""
    refresh_interval_ns: int = 0
    """Time between listings of the stores."""
    retention_ns: int = 0
    """Age at which tools may delete fragments; brokers never do. Zero or less keeps for ever."""
    flush_interval_ns: int = 0
    """Fragments end at multiples of it in UTC; zero to end by length only."""
    path_postfix_template: str = ""

    @classmethod
    def from_pb(cls, message: pb.JournalSpec.Fragment) -> Self:
        """The settings of a message, not validated."""
        return cls(
            message.length,
            CompressionCodec.from_wire(message.compression_codec),
            tuple(message.stores),
            duration_from_pb(message.refresh_interval),
            duration_from_pb(message.retention),
            duration_from_pb(message.flush_interval),
            message.path_postfix_template,
        )

    def to_pb(self) -> pb.JournalSpec.Fragment:
        """The settings as a message, with the bytes that Gazette gives it."""
        message = pb.JournalSpec.Fragment()
        self.into_pb(message)
        return message

    def into_pb(self, message: pb.JournalSpec.Fragment) -> None:
        """Fill an empty message, durations present even if zero."""
        message.length = self.length
        message.compression_codec = self.codec.value  # type: ignore[assignment]
        message.stores.extend(self.stores)
        duration_into_pb(self.refresh_interval_ns, message.refresh_interval)
        duration_into_pb(self.retention_ns, message.retention)
        duration_into_pb(self.flush_interval_ns, message.flush_interval)
        message.path_postfix_template = self.path_postfix_template
        message.SetInParent()

    def validate(self) -> None:
        """Check all settings, in the order of fields.

        Raises: ValidationError.
        """
        if not _LENGTH_MIN <= self.length <= _LENGTH_MAX:
            raise ValidationError(
                f"invalid Length ({self.length}; expected {_LENGTH_MIN} <= length <= {_LENGTH_MAX})"
            )
        check_field("CompressionCodec", self.codec.validate)
        self._validate_stores()
        if not _REFRESH_INTERVAL_MIN_NS <= self.refresh_interval_ns <= _REFRESH_INTERVAL_MAX_NS:
            raise ValidationError(
                f"invalid RefreshInterval ({format_duration(self.refresh_interval_ns)}; "
                f"expected {format_duration(_REFRESH_INTERVAL_MIN_NS)} <= interval <= "
                f"{format_duration(_REFRESH_INTERVAL_MAX_NS)})"
            )
        for name, duration_ns in (
            ("Retention", self.retention_ns),
            ("FlushInterval", self.flush_interval_ns),
        ):
            if not -_INT64_MAX <= duration_ns <= _INT64_MAX:  # which Gazette cannot read either
                raise ValidationError(f"invalid {name} (expected nanoseconds within 64 bits)")
        if self.flush_interval_ns != 0 and self.flush_interval_ns < _FLUSH_INTERVAL_MIN_NS:
            raise ValidationError(
                f"invalid FlushInterval ({format_duration(self.flush_interval_ns)}; "
                f"expected 0 or >= {format_duration(_FLUSH_INTERVAL_MIN_NS)})"
            )
        from gazette_platform.protocol.path_postfix import validate_path_postfix_template  # noqa: PLC0415  slow to import

        check_field(
            "PathPostfixTemplate", validate_path_postfix_template, self.path_postfix_template
        )

    def _validate_stores(self) -> None:
        for index, store in enumerate(self.stores):
            try:
                url = parse_store_url(store)
            except ValidationError as err:
                raise err.within(f"Stores[{index}]") from None
            # A file store cannot decompress on behalf of its readers.
            if (
                index == 0
                and url.scheme == "file"
                and self.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
            ):
                raise ValidationError(
                    "GZIP_OFFLOAD_DECOMPRESSION is incompatible with file:// stores "
                    f"({store}; use GZIP)",
                    path=f"Stores[{index}]",
                )


@dataclass(frozen=True, slots=True)
class JournalSpec:
    """A journal."""

    name: str
    replication: int = 0
    """Brokers that hold each byte before it is acknowledged."""
    labels: LabelSet = EMPTY_LABELS
    fragment: FragmentSpec = FragmentSpec()
    flags: JournalFlag = JournalFlag.NOT_SPECIFIED
    max_append_rate: int = 0
    """Bytes per second; zero is unlimited."""
    suspend: SuspendSpec | None = None

    def label_set_with_name(self) -> LabelSet:
        """The labels plus the implicit label ``name``, as selectors match them."""
        return self.labels.with_value("name", self.name)

    @property
    def suspend_level(self) -> SuspendLevel:
        """How far the journal is suspended."""
        return self.suspend.level if self.suspend is not None else SuspendLevel.NONE

    @property
    def is_fully_suspended(self) -> bool:
        """Whether no broker serves the journal, as nothing of it is stored."""
        return self.suspend_level is SuspendLevel.FULL

    def desired_replication(self, max_replication: int = 9) -> int:
        """Replicas to have, given the suspension and a broker's upper bound."""
        replication = self.replication
        if self.suspend_level is SuspendLevel.PARTIAL:
            replication = 1
        elif self.suspend_level is SuspendLevel.FULL:
            replication = 0
        return min(replication, max_replication)

    def to_pb(self) -> pb.JournalSpec:
        """The spec as a message, with the bytes that Gazette gives it."""
        message = pb.JournalSpec(
            name=self.name,
            replication=self.replication,
            flags=self.flags.value,
            max_append_rate=self.max_append_rate,
        )
        self.labels.into_pb(message.labels)
        self.fragment.into_pb(message.fragment)
        if self.suspend is not None:
            message.suspend.CopyFrom(self.suspend.to_pb())
        return message

    @classmethod
    def from_pb(cls, message: pb.JournalSpec) -> Self:
        """The spec of a message, not validated."""
        return cls(
            message.name,
            message.replication,
            LabelSet.from_pb(message.labels),
            FragmentSpec.from_pb(message.fragment),
            JournalFlag.from_wire(message.flags),
            message.max_append_rate,
            SuspendSpec.from_pb(message.suspend) if message.HasField("suspend") else None,
        )

    def validate(self) -> None:
        """Check everything, in the order of fields.

        Raises: ValidationError.
        """
        check_field("Name", validate_journal_name, self.name)
        if not 1 <= self.replication <= REPLICATION_MAX:
            raise ValidationError(
                f"invalid Replication ({self.replication}; "
                f"expected 1 <= Replication <= {REPLICATION_MAX})"
            )
        check_field("Labels", _validate_journal_labels, self.labels)
        check_field("Fragment", self.fragment.validate)
        check_field("Flags", self.flags.validate)
        if self.max_append_rate < 0:
            raise ValidationError(f"invalid MaxAppendRate ({self.max_append_rate}; expected >= 0)")
        if self.suspend is not None:
            check_field("Suspend", self.suspend.validate)


def validate_single_values(labels: LabelSet) -> None:
    """Refuse several values of a label that has one meaning, such as ``content-type``.

    Raises: ValidationError.
    """
    previous = ""
    for index, label in enumerate(labels):
        if label.name == previous and label.name in _SINGLE_VALUE_LABELS:
            raise ValidationError(
                "expected single-value Label has multiple values "
                f"(index {index}; label {label.name} value {label.value})"
            )
        previous = label.name


def _validate_journal_labels(labels: LabelSet) -> None:
    labels.validate()
    for name in _META_LABELS:
        if labels.values_of(name):
            raise ValidationError(f'cannot include label "{name}"')
    validate_single_values(labels)
    names = labels.names()
    if _CONTENT_TYPE in names:
        content_type = labels.value_of(_CONTENT_TYPE)
        if _MEDIA_TYPE.fullmatch(content_type) is None:
            raise ValidationError(f"parsing content-type: not a media type ({content_type})")
    for name, needed in ((_MESSAGE_TYPE, _CONTENT_TYPE), (_MESSAGE_SUBTYPE, _MESSAGE_TYPE)):
        if name in names and needed not in names:
            raise ValidationError(f"expected label {needed} alongside {name}")


@dataclass(frozen=True, slots=True)
class JournalChange:
    """What to do with one journal: set it to `spec`, or delete it."""

    spec: JournalSpec | None
    delete: str = ""
    """Name of the journal to delete, if `spec` is None."""
    revision: int = 0
    """Revision that the journal must be at: 0 is not to exist, -1 is any."""

    @property
    def name(self) -> str:
        """Name of the journal."""
        return self.delete if self.spec is None else self.spec.name
