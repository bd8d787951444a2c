"""The file of a backup: gzip, of JSON lines.

The first line says what it is, and the last one what must be in it::

    {
        "gazette_backup": 1,
        "made_at": "2026-11-29T08:00:00Z",
        "revision": 812,
        "scope": ["/"],
        "clusters": [{"prefix": "/gazette/cluster", "history": "5c…", "id": "cdf8…", "base": 0}],
    }
    {"key": "/gazette/cluster/items/a/journal", "base64": "CgEv…", "created": 17, "identity": 17}
    {"key": "/gazette/hints/shard.primary", "text": "{…}", "created": 40}
    {"end": true, "keys": 2, "sha256": "9f…"}

Keys are in order. A value, or a key, that is not printable text is base64 (``base64``, ``key_base64``). ``created`` is the revision that
created the key; clients know a journal by its ``identity``. ``sha256`` is of all bytes before the last
line. A file that was cut off has no last line; one that was altered has another digest.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import DataError, SetupError, ValidationError
from gazette_platform.etcd.wire import decode_key, encode_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION: Final = 1
"""Of the format; a reader refuses others."""

# A value of etcd has 1.5 MB at most, and a third more as base64. So no line is longer.
_LINE_BYTES_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of brokers in a backup, and how its clients and spools know it; see `ClusterIdentity`."""

    prefix: str
    history: str
    id: str
    base: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a backup is of."""

    made_at: str
    revision: int
    scope: tuple[str, ...]
    clusters: tuple[Cluster, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A key in a backup."""

    key: str
    value: bytes
    created: int
    identity: int = 0
    """The create revision that clients keep for the journal; 0: the key is not one of a journal."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a backup holds."""

    header: Header
    keys: int
    sha256: str
    kinds: Counter[str] = field(default_factory=Counter)
    """Keys by what they are, as in ``journals``."""


@final
class BackupWriter:
    """Writes a backup beside its place, and puts it there when it is whole; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._digest = hashlib.sha256()
        self.keys = 0

    @contextmanager
    def opened(self, header: Header) -> Iterator[BackupWriter]:
        """Begin the file. Raises: SetupError: it exists, or cannot be written; then nothing is left."""
        if self._path.exists():
            raise SetupError(f"{self._path} exists (choose another name, or remove it)")
        try:
            # Only its owner may read it: specs name stores, and hints whatever an application put there.
            fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as raw:  # noqa: PTH123  of a descriptor
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as self._file:
                    self._line(_header_to_json(header))
                    yield self
                    end = {"end": True, "keys": self.keys, "sha256": self.sha256}
                    self._file.write(_dumped(end))
                raw.flush()
                os.fsync(raw.fileno())
            self._partial.rename(self._path)
        except OSError as err:
            raise SetupError(f"cannot write {self._path}: {err}") from err
        finally:
            with suppress(OSError):
                self._partial.unlink()

    @property
    def sha256(self) -> str:
        """Of all lines so far."""
        return self._digest.hexdigest()

    def add(self, record: Record) -> None:
        """Write one key. Raises: OSError."""
        said: dict[str, Any] = _text_or_base64("key", "key_base64", encode_key(record.key))
        said |= _text_or_base64("text", "base64", record.value)
        said["created"] = record.created
        if record.identity:
            said["identity"] = record.identity
        self._line(said)
        self.keys += 1

    def _line(self, said: dict[str, Any]) -> None:
        line = _dumped(said)
        self._digest.update(line)
        self._file.write(line)


@final
class BackupFile:
    """Reads a backup, as often as needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def verify(self) -> Summary:
        """Read all of it, and check that it is whole and unaltered.

        Raises: DataError: it is not; ValidationError: it is not a backup, or of another version; SetupError: it cannot
            be read.
        """
        digest, keys, last = hashlib.sha256(), 0, ""
        kinds: Counter[str] = Counter()
        lines = self._lines()
        first = next(lines, b"")
        header = self._header(first)
        digest.update(first)
        for line in lines:
            said = self._parsed(line, keys + 2)
            if said.get("end") is True:
                if said.get("keys") != keys or said.get("sha256") != digest.hexdigest():
                    raise DataError(
                        f"{self.path} was altered: its last line does not match the others"
                    )
                if next(lines, None) is not None:
                    raise DataError(f"{self.path} was altered: lines follow the last one")
                return Summary(header, keys, digest.hexdigest(), kinds)
            record = self._record(said, keys + 2)
            if record.key <= last:
                raise DataError(f"{self.path} was altered: key {record.key} is not in order")
            digest.update(line)
            keys, last = keys + 1, record.key
            kinds[kind_of(record.key, header.clusters)] += 1
        raise DataError(f"{self.path} was cut off after {keys} keys (use another backup)")

    def records(self) -> Iterator[Record]:
        """All keys, in order, of a file that was verified. Raises: as `verify`."""
        lines = self._lines()
        next(lines, None)
        for number, line in enumerate(lines):
            said = self._parsed(line, number + 2)
            if said.get("end") is True:
                return
            yield self._record(said, number + 2)

    def _lines(self) -> Iterator[bytes]:
        try:
            with gzip.open(self.path, "rb") as file:
                while line := file.readline(_LINE_BYTES_MAX):
                    yield line
        except (EOFError, zlib.error) as err:
            raise DataError(
                f"{self.path} was cut off or altered: {err} (use another backup)"
            ) from err
        except gzip.BadGzipFile as err:
            raise DataError(f"{self.path} is not a backup, or was altered: {err}") from err
        except OSError as err:
            raise SetupError(f"cannot read {self.path}: {err}") from err

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise DataError(f"{self.path} was altered: line {number}: {err}") from err
        if not isinstance(said, dict):
            raise DataError(f"{self.path} was altered: line {number} is not an object")
        return said

    def _header(self, line: bytes) -> Header:
        said = self._parsed(line or b"{}", 1)
        version = said.get("gazette_backup")
        if version is None:
            raise ValidationError(f"{self.path} is not a backup of `gazette backup`")
        if version != VERSION:
            raise ValidationError(
                f"{self.path} has format {version}; this release reads format {VERSION} (use the release that wrote it)"
            )
        try:
            clusters = tuple(
                Cluster(str(c["prefix"]), str(c["history"]), str(c["id"]), int(c["base"]))
                for c in said["clusters"]
            )
            scope = tuple(map(str, said["scope"]))
            return Header(str(said["made_at"]), int(said["revision"]), scope, clusters)
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f"{self.path} was altered: its first line: {err!r}") from err

    def _record(self, said: dict[str, Any], number: int) -> Record:
        try:
            key = decode_key(_bytes_of(said, "key", "key_base64"))
            value = _bytes_of(said, "text", "base64")
            return Record(key, value, int(said["created"]), int(said.get("identity", 0)))
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f"{self.path} was altered: line {number}: {err!r}") from err


def journal_of(key: str, clusters: tuple[Cluster, ...]) -> tuple[Cluster, str] | None:
    """The journal whose spec a key holds, and its cluster; None: it holds something else."""
    for cluster in clusters:
        items = f"{cluster.prefix}/items/"
        if key.startswith(items):
            return cluster, key.removeprefix(items)
    return None


def kind_of(key: str, clusters: tuple[Cluster, ...]) -> str:
    """What a key holds, for people.

    >>> (
    ...     kind_of("/.gazette-platform/savepoints/p/monday", ()),
    ...     kind_of("/gazette/consumers/app/items/x", ()),
    ... )
    ('savepoints', 'shards')
    """
    if journal_of(key, clusters):
        return "journals"
    if key.startswith("/.gazette-platform/"):
        kind = key.split("/")[2]
        return {"savepoints": kind, "epochs": kind}.get(kind, "notes of brokers")
    return "shards" if "/items/" in key else "hints and others"


def _header_to_json(header: Header) -> dict[str, Any]:
    return {
        "gazette_backup": VERSION,
        "made_at": header.made_at,
        "revision": header.revision,
        "scope": list(header.scope),
        "clusters": [
            {"prefix": c.prefix, "history": c.history, "id": c.id, "base": c.base}
            for c in header.clusters
        ],
    }


def _dumped(said: dict[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text_or_base64(text: str, encoded: str, value: bytes) -> dict[str, str]:
    with suppress(UnicodeDecodeError):
        said = value.decode()
        if all(each.isprintable() or each in "\n\t" for each in said):
            return {text: said}
    return {encoded: base64.b64encode(value).decode()}


def _bytes_of(said: dict[str, Any], text: str, encoded: str) -> bytes:
    if text in said:
        return str(said[text]).encode()
    return base64.b64decode(said[encoded], validate=True)
