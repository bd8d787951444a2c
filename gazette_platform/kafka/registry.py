"""Schemas of values: the gateways' own registry, which is in etcd, or one of others that speaks Confluent's REST API.

``/.gazette-platform/kafka<prefix>#schemas/ids/<id>``
    The text of a schema. It never changes.
``…#schemas/texts/<digest>``
    The id of a text: the same text has one id, whatever its subjects.
``…#schemas/subjects/<subject>``
    JSON with the ids of its ``versions``, oldest first, and its ``compatibility``.
``…#schemas/last``
    The id that was given last.
``…#schemas/bytes``
    Bytes of all texts and subjects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final
from urllib.parse import quote

import orjson

from gazette_platform.errors import (
    EtcdError,
    StatusError,
    TransportError,
    ValidationError,
)
from gazette_platform.etcd import Compare, Put
from gazette_platform.kafka.records.avro_json import AvroCodec, schema_id_of
from gazette_platform.ops.extras import required
from gazette_platform.ops.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiohttp import ClientSession

    from gazette_platform.etcd import EtcdClient

SCHEMA_BYTES_MAX: Final = 48 << 10
VERSIONS_MAX: Final = 1000
SCHEMAS_MAX: Final = 100_000
TEXTS_BYTES_MAX: Final = 256 << 20
"""Of all schemas: etcd has 2 GiB for all that a cluster keeps."""
_SUBJECT_MAX: Final = 255
_SUBJECT_BYTES: Final = 200  # what a subject takes in etcd beside its name, about
_ATTEMPTS_MAX: Final = 20
_CODECS_MAX: Final = 1000
_BATCH_IDS_MAX: Final = 100
_ANSWER_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_LATEST_S: Final = 10.0
_DEFAULT: Final = "BACKWARD"
LEVELS: Final = (
    "NONE",
    *(f"{kind}{end}" for kind in ("BACKWARD", "FORWARD", "FULL") for end in ("", "_TRANSITIVE")),
)
"""What may be asked of a new version: that it reads earlier ones (BACKWARD), that they read it, or both."""


class Incompatible(ValidationError):
    """A schema does not go with an earlier version of its subject."""


class Version(NamedTuple):
    """One version of a subject."""

    number: int
    id: int
    text: str


class Source(Protocol):
    """Where schemas are."""

    async def text(self, schema_id: int) -> str | None:
        """A schema; None: there is none of this id. Raises: GazetteError."""
        ...

    async def latest(self, subject: str) -> Version | None:
        """The newest version of a subject; None: it has none. Raises: GazetteError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@final
class Schemas:
    """Codecs of the schemas that values have. What it has found is kept, as a schema never changes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._codecs: Lru[int, AvroCodec | ValidationError] = Lru(_CODECS_MAX)
        self._latest: Lru[str, tuple[float, int]] = Lru(_CODECS_MAX)

    async def of_values(self, values: Iterable[bytes | None]) -> dict[int, AvroCodec | str]:
        """The codecs that values of a producer need, by id; or why there is none.

        Raises: TransportError: the registry cannot be asked.
        """
        ids = {schema_id_of(value) for value in values if value is not None}
        return await self.of_ids((found for found in ids if found is not None), most=_BATCH_IDS_MAX)

    async def of_ids(
        self, ids: Iterable[int], *, most: int | None = None
    ) -> dict[int, AvroCodec | str]:
        """The codecs of ids, or why there is none.

        Args:
            most: of them that are looked for; None: all.

        Raises: TransportError: the registry cannot be asked.
        """
        found: dict[int, AvroCodec | str] = {}
        for number, schema_id in enumerate(ids):
            if most is not None and number >= most:
                found[schema_id] = f"a batch has values of more than {most} schemas"
                continue
            codec = self._codecs.get(schema_id) or await self._load(schema_id)
            found[schema_id] = str(codec) if isinstance(codec, ValidationError) else codec
        return found

    async def _load(self, schema_id: int) -> AvroCodec | ValidationError:
        codec: AvroCodec | ValidationError
        try:
            text = await self._ask(self._source.text(schema_id))
            if text is None:
                return ValidationError(f"the registry has no schema {schema_id}")
            codec = await asyncio.to_thread(AvroCodec, schema_id, text)
        except ValidationError as err:
            codec = ValidationError(f"schema {schema_id}: {err}")
        self._codecs.put(schema_id, codec)
        return codec

    async def of_subject(self, subject: str) -> AvroCodec | None:
        """The codec of the newest version of a subject; it may be some seconds old. Raises: TransportError."""
        now = asyncio.get_running_loop().time()
        asked_at, schema_id = self._latest.get(subject) or (-_LATEST_S, 0)
        if asked_at + _LATEST_S < now:
            try:
                version = await self._ask(self._source.latest(subject))
            except ValidationError:
                version = None
            schema_id = 0 if version is None else version.id
            self._latest.put(subject, (now, schema_id))
        if not schema_id:
            return None
        codec = (await self.of_ids((schema_id,)))[schema_id]
        return None if isinstance(codec, str) else codec

    async def _ask(self, question: Any) -> Any:
        try:
            return await question
        except (EtcdError, StatusError) as err:
            raise TransportError(f"the registry of schemas: {err}") from err

    async def close(self) -> None:
        """Let go of connections."""
        await self._source.close()


@final
class RestSource:
    """A registry with Confluent's REST API.

    Args:
        url: of it; a user and a password in it are sent.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: ClientSession | None = None

    async def text(self, schema_id: int) -> str | None:
        """As of `Source`."""
        found = await self._get(f"schemas/ids/{schema_id}")
        return None if found is None else _text_of(found)

    async def latest(self, subject: str) -> Version | None:
        """As of `Source`."""
        found = await self._get(f"subjects/{quote(subject, safe='')}/versions/latest")
        if found is None:
            return None
        try:
            number, schema_id = int(found["version"]), int(found["id"])
        except (KeyError, TypeError, ValueError) as err:
            raise TransportError(
                f"{subject}: the registry of schemas gives no version and id ({err!r})"
            ) from err
        return Version(number, schema_id, _text_of(found))

    async def _get(self, path: str) -> Any:
        """What a path has; None: nothing. Raises: TransportError."""
        import aiohttp  # noqa: PLC0415  slow to import

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S), trust_env=True
            )
        try:
            async with self._session.get(f"{self._url}/{path}") as answer:
                if answer.status == 404:
                    return None
                body = await answer.content.read(_ANSWER_BYTES_MAX + 1)
                while len(body) <= _ANSWER_BYTES_MAX and (
                    more := await answer.content.read(_ANSWER_BYTES_MAX)
                ):
                    body += more
                if answer.status != 200 or len(body) > _ANSWER_BYTES_MAX:
                    raise TransportError(f"{path}: the registry of schemas answers {answer.status}")
                return _object(body)
        except (aiohttp.ClientError, TimeoutError, ValueError) as err:
            raise TransportError(
                f"{path}: the registry of schemas does not answer: {err} (see --kafka.registry)"
            ) from err

    async def close(self) -> None:
        """As of `Source`."""
        if self._session is not None:
            await self._session.close()


def _object(body: bytes) -> dict[str, Any]:
    found = orjson.loads(body)
    if not isinstance(found, dict):
        raise ValueError("expected an object")  # noqa: TRY004
    return found


def _text_of(found: Mapping[str, Any]) -> str:
    """The schema of an answer. Raises: ValidationError: it is not of Avro."""
    kind = found.get("schemaType", "AVRO")
    if kind != "AVRO" or found.get("references"):
        raise ValidationError(f"it is of {kind}, and only AVRO without references is served")
    return str(found.get("schema", ""))


# ------------------------------------------------------------------ our own


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject, as etcd has it."""

    revision: int = 0
    versions: tuple[int, ...] = ()
    """Their ids."""
    compatibility: str = ""
    """Empty: the default."""

    def value(self) -> bytes:
        """For etcd."""
        return orjson.dumps({"versions": self.versions, "compatibility": self.compatibility})


@final
class EtcdSource:
    """Schemas in etcd, which all gateways of a cluster share.

    Args:
        etcd: connected.
        root: what its keys begin with.
    """

    def __init__(self, etcd: EtcdClient, root: str) -> None:
        self._etcd = etcd
        self._root = f"{root}schemas"

    async def text(self, schema_id: int) -> str | None:
        """As of `Source`."""
        found = await self._etcd.get(f"{self._root}/ids/{schema_id}")
        return None if found is None else found.value.decode()

    async def latest(self, subject: str) -> Version | None:
        """As of `Source`."""
        return await self.version(subject, -1)

    async def close(self) -> None:
        """As of `Source`: the connection is not its own."""

    async def subjects(self, *, schema_id: int = 0) -> list[str]:
        """Names of those that have versions; or only of those that have one schema."""
        prefix = f"{self._root}/subjects/"
        found = await self._etcd.range(prefix)
        versions = {
            kv.key.removeprefix(prefix): orjson.loads(kv.value)["versions"] for kv in found.kvs
        }
        return [n for n, ids in versions.items() if (schema_id in ids if schema_id else ids)]

    async def subject(self, name: str) -> Subject:
        """A subject; one that does not exist has no versions. Raises: ValidationError: no subject may have the name."""
        if not 0 < len(name) <= _SUBJECT_MAX or not name.isprintable():
            raise ValidationError(f"{name!r} is not a name of a subject")
        found = await self._etcd.get(self._subject_key(name))
        if found is None:
            return Subject()
        value = orjson.loads(found.value)
        return Subject(found.mod_revision, tuple(value["versions"]), value["compatibility"])

    def _subject_key(self, name: str) -> str:
        return f"{self._root}/subjects/{name}"

    async def version(self, subject: str, number: int) -> Version | None:
        """A version; -1: the newest. None: there is none."""
        versions = (await self.subject(subject)).versions
        if number == -1:
            number = len(versions)
        if not 0 < number <= len(versions):
            return None
        schema_id = versions[number - 1]
        return Version(number, schema_id, await self.text(schema_id) or "")

    async def find(self, subject: str, text: str) -> Version | None:
        """The version of a subject that has a schema. Raises: ValidationError: it is none."""
        text = await asyncio.to_thread(normal_text, text)
        known = await self._etcd.get(self._digest_key(text))
        versions = (await self.subject(subject)).versions
        if known is None or int(known.value) not in versions:
            return None
        schema_id = int(known.value)
        return Version(versions.index(schema_id) + 1, schema_id, text)

    def _digest_key(self, text: str) -> str:
        return f"{self._root}/texts/{hashlib.sha256(text.encode()).hexdigest()}"

    async def register(self, subject: str, text: str) -> int:
        """Make a schema the newest version of a subject, unless it has it. Returns: its id.

        Raises: ValidationError: it is none; Incompatible. EtcdError.
        """
        text = await asyncio.to_thread(normal_text, text)
        digest_key, last_key = self._digest_key(text), f"{self._root}/last"
        for _ in range(_ATTEMPTS_MAX):
            known, last = await self._etcd.get(digest_key), await self._etcd.get(last_key)
            found = await self.subject(subject)
            if known is not None and int(known.value) in found.versions:
                return int(known.value)
            await self.check(found, text)
            if len(found.versions) >= VERSIONS_MAX:
                raise ValidationError(f"{subject} has {VERSIONS_MAX} versions, and takes no more")
            schema_id = int(known.value) if known else (int(last.value) if last else 0) + 1
            if schema_id > SCHEMAS_MAX:
                raise ValidationError(f"there are {SCHEMAS_MAX} schemas, and no more are taken")
            new = replace(found, versions=(*found.versions, schema_id))
            compares = [
                Compare.mod(self._subject_key(subject), found.revision),
                Compare.mod(digest_key, known.mod_revision if known else 0),
            ]
            puts = [Put(self._subject_key(subject), new.value())]
            size = (0 if known else len(text)) + _size_of_new(subject, found)
            await self._count(size, compares, puts)
            if known is None:
                compares.append(Compare.mod(last_key, last.mod_revision if last else 0))
                number = str(schema_id).encode()
                puts += [
                    Put(last_key, number),
                    Put(digest_key, number),
                    Put(f"{self._root}/ids/{schema_id}", text.encode()),
                ]
            if (await self._etcd.txn(compares, puts)).succeeded:
                return schema_id
        raise EtcdError(f"{subject}: others change the schemas at the same time (try again)")

    async def _count(self, size: int, compares: list[Compare], puts: list[Put]) -> None:
        """Add to a change what it keeps. Raises: ValidationError: all schemas have too many bytes."""
        if not size:
            return
        key = f"{self._root}/bytes"
        held = await self._etcd.get(key)
        total = size + (int(held.value) if held else 0)
        if total > TEXTS_BYTES_MAX:
            raise ValidationError(
                f"all schemas and subjects have {TEXTS_BYTES_MAX} bytes, and no more are taken"
            )
        compares.append(Compare.mod(key, held.mod_revision if held else 0))
        puts.append(Put(key, str(total).encode()))

    async def check(self, subject: Subject, text: str, *, only: int = 0) -> None:
        """Ask whether a schema may become the next version.

        Args:
            only: the version to compare with; 0: those that the level says.

        Raises: Incompatible.
        """
        level = subject.compatibility or _DEFAULT
        ids = subject.versions if level.endswith("_TRANSITIVE") else subject.versions[-1:]
        if only:
            ids = subject.versions[only - 1 : only]
        for schema_id in ids:
            former = await self.text(schema_id)
            if former is not None:
                await asyncio.to_thread(check_compatible, level, former, text)

    async def set_level(self, subject: str, level: str) -> None:
        """Set what is asked of new versions of a subject. Raises: ValidationError; EtcdError."""
        if level not in LEVELS:
            raise ValidationError(f"{level!r} is not one of {', '.join(LEVELS)}")
        for _ in range(_ATTEMPTS_MAX):
            found = await self.subject(subject)
            new = replace(found, compatibility=level)
            key = self._subject_key(subject)
            compares, puts = [Compare.mod(key, found.revision)], [Put(key, new.value())]
            await self._count(_size_of_new(subject, found), compares, puts)
            if (await self._etcd.txn(compares, puts)).succeeded:
                return
        raise EtcdError(f"{subject}: others change it at the same time (try again)")


def _size_of_new(name: str, found: Subject) -> int:
    """Bytes that a subject takes, if it does not exist yet."""
    return 0 if found.revision else len(name.encode()) + _SUBJECT_BYTES


def normal_text(text: str) -> str:
    """A schema without blanks between its parts. Raises: ValidationError: it is none."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValidationError(f"a schema has {SCHEMA_BYTES_MAX} bytes at most")
    _parsed(text)
    return json.dumps(json.loads(text), separators=(",", ":"))


def _parsed(text: str) -> Any:
    library = required("avro.schema", extra="kafka", by="registries of schemas")
    try:
        return library.parse(text)
    except (
        library.avro.errors.AvroException,
        ValueError,
        TypeError,
        LookupError,
        RecursionError,
        AttributeError,
    ) as err:
        raise ValidationError(f"it is not a schema of Avro: {err}") from err


def check_compatible(level: str, former: str, text: str) -> None:
    """Raises: Incompatible: a schema does not go with a former one."""
    library = required("avro.compatibility", extra="kafka", by="registries of schemas")
    new, old = _parsed(text), _parsed(former)
    pairs = []
    if level.startswith(("BACKWARD", "FULL")):
        pairs.append((new, old, "it cannot read what the former one wrote"))
    if level.startswith(("FORWARD", "FULL")):
        pairs.append((old, new, "the former one cannot read what it writes"))
    for reader, writer, why in pairs:
        found = library.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if found.compatibility is not library.SchemaCompatibilityType.compatible:
            raise Incompatible(f"{why} ({level}): {'; '.join(sorted(map(str, found.messages)))}")
