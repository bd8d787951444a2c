"""The REST API of the gateways' own registry of schemas: what Confluent's clients call, for Avro.

Callers send a token as a bearer, or as the password of Basic (``basic.auth.user.info``). READ or APPEND lets them read; APPEND
lets them add schemas, and APPLY change what is asked of new ones: of the topics that the token covers. What is hidden is answered
as what does not exist.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import orjson
from aiohttp import web

from gazette_platform.errors import EtcdError, GazetteError, TransportError, ValidationError
from gazette_platform.kafka.access import may_subject
from gazette_platform.kafka.gateway import FRESH_S, kafka_root
from gazette_platform.kafka.registry import (
    LEVELS,
    EtcdSource,
    Incompatible,
    RestSource,
    Schemas,
    Version,
)
from gazette_platform.protocol.auth import Capability, Unauthenticated
from gazette_platform.serving.http_server import HttpServer, Origins, RestRoutes, caller_metadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from ssl import SSLContext

    from gazette_platform.etcd import EtcdClient
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.gateway import Topics
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.network import HostGuard
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_DEFAULT: Final = "BACKWARD"
_READERS: Final = Capability.READ | Capability.APPEND
# Of Confluent's API.
_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
_BAD_SCHEMA: Final = 42201
_BAD_VERSION: Final = 42202
_BAD_LEVEL: Final = 42203
_STORE: Final = 50001


class _Refused(GazetteError):
    """An answer other than 200.

    Args:
        code: of Confluent's API, whose first three digits are the status.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@final
class RegistryApi:
    """Answers requests of clients that have schemas.

    Args:
        source: of schemas.
        auth: verifies tokens.
        topics: whose claims count.
        prefix: of journals of topics that clients make.
    """

    def __init__(
        self, source: EtcdSource, auth: Authenticator, topics: Topics, prefix: str
    ) -> None:
        self._source = source
        self._auth = auth
        self._topics = topics
        self._prefix = prefix
        self._rest = RestRoutes(Origins(()))

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add what it serves."""
        versions = "/subjects/{subject}/versions"
        for method, path, needed, answer in (
            ("GET", "/", _READERS, self._nothing),
            ("GET", "/schemas/types", _READERS, self._types),
            ("GET", "/schemas/ids/{id}", _READERS, self._schema),
            ("GET", "/subjects", _READERS, self._subjects),
            ("POST", "/subjects/{subject}", _READERS, self._find),
            ("GET", versions, _READERS, self._versions),
            ("POST", versions, Capability.APPEND, self._register),
            ("GET", f"{versions}/{{version}}", _READERS, self._version),
            ("POST", f"/compatibility{versions}/{{version}}", _READERS, self._compatible),
            ("GET", "/config", _READERS, self._config),
            ("GET", "/config/{subject}", _READERS, self._config),
            ("PUT", "/config/{subject}", Capability.APPLY, self._set_config),
        ):
            router.add_route(method, path, self._handler(needed, answer))

    def _handler(
        self, needed: Capability, answer: Callable[[web.Request], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                await self._admit(request, needed)
                return _response(await answer(request))
            except _Refused as err:
                return _error(err.code, err)
            except Incompatible as err:
                return _error(409, err)
            except ValidationError as err:
                return _error(_BAD_SCHEMA, err)
            except (EtcdError, TransportError) as err:
                return _error(_STORE, err)

        return handle

    def _claims_of(self, request: web.Request) -> Claims:
        """What the caller may do. Raises: _Refused: it has no token that verifies."""
        metadata = caller_metadata(request)
        scheme, _, given = metadata.get("authorization", "").partition(" ")
        try:
            if scheme.lower() == "basic":
                token = b64decode(given).decode().partition(":")[2]
                metadata = {"authorization": f"Bearer {token}"}
            return self._auth.authorize(metadata, Capability(0))
        except (Unauthenticated, binascii.Error, UnicodeDecodeError) as err:
            raise _Refused(401, f"{err} (send a token as a bearer, or as a password)") from err

    async def _admit(self, request: web.Request, needed: Capability) -> None:
        """Raises: _Refused: the caller may not do this."""
        claims = self._claims_of(request)
        if not claims.capability & needed:
            raise _Refused(403, f"the token lacks the capability {needed!r}")
        subject = request.match_info.get("subject")
        if subject is not None and not await self._seen(claims, needed, (subject,)):
            raise _Refused(403, f"the token does not cover the topic of subject {subject}")

    async def _seen(self, claims: Claims, needed: Capability, subjects: Iterable[str]) -> list[str]:
        """The subjects that a token allows something with. Raises: TransportError: topics cannot be listed."""
        if claims.is_for_all:
            return list(subjects)
        topics = (await self._topics.current(age_s=FRESH_S)).topics
        return [
            each for each in subjects if may_subject(claims, needed, each, topics, self._prefix)
        ]

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            found = orjson.loads(await self._rest.read_body(request))
        except orjson.JSONDecodeError as err:
            raise ValidationError(f"the body is not JSON: {err}") from err
        if not isinstance(found, dict):
            raise ValidationError("the body is not a JSON object")
        return found

    async def _text(self, request: web.Request) -> str:
        """The schema in a body. Raises: ValidationError."""
        body = await self._body(request)
        kind = body.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise ValidationError(f"schemas of {kind} are not served, only those of AVRO")
        if body.get("references"):
            raise ValidationError("schemas that refer to others are not served")
        text = body.get("schema")
        if not isinstance(text, str):
            raise ValidationError("the body has no schema")
        return text

    async def _nothing(self, _: web.Request) -> Any:
        return {}

    async def _types(self, _: web.Request) -> Any:
        return ["AVRO"]

    async def _schema(self, request: web.Request) -> Any:
        number = request.match_info["id"]
        text = await self._source.text(int(number)) if _is_number(number) else None
        claims = self._claims_of(request)
        if text is not None and not claims.is_for_all:
            subjects = await self._source.subjects(schema_id=int(number))
            text = text if await self._seen(claims, _READERS, subjects) else None
        if text is None:
            raise _Refused(_NO_SCHEMA, f"schema {number} not found")
        return {"schema": text}

    async def _subjects(self, request: web.Request) -> Any:
        return await self._seen(self._claims_of(request), _READERS, await self._source.subjects())

    async def _find(self, request: web.Request) -> Any:
        name = request.match_info["subject"]
        found = await self._source.find(name, await self._text(request))
        if found is None:
            if not (await self._source.subject(name)).versions:
                _no_subject(name)
            raise _Refused(_NO_SCHEMA, f"{name} does not have this schema")
        return _shown(name, found)

    async def _versions(self, request: web.Request) -> Any:
        name = request.match_info["subject"]
        versions = (await self._source.subject(name)).versions
        return list(range(1, len(versions) + 1)) if versions else _no_subject(name)

    async def _register(self, request: web.Request) -> Any:
        name = request.match_info["subject"]
        return {"id": await self._source.register(name, await self._text(request))}

    async def _wanted(self, request: web.Request) -> Version:
        """The version that a path names. Raises: _Refused: there is none."""
        name, wanted = request.match_info["subject"], request.match_info["version"]
        if wanted not in {"latest", "-1"} and not _is_number(wanted):
            raise _Refused(_BAD_VERSION, f"{wanted!r} is not a version, and not latest")
        number = -1 if wanted in {"latest", "-1"} else int(wanted)
        found = await self._source.version(name, number)
        if found is None:
            if not (await self._source.subject(name)).versions:
                _no_subject(name)
            raise _Refused(_NO_VERSION, f"{name} has no version {wanted}")
        return found

    async def _version(self, request: web.Request) -> Any:
        return _shown(request.match_info["subject"], await self._wanted(request))

    async def _compatible(self, request: web.Request) -> Any:
        text, version = await self._text(request), await self._wanted(request)
        subject = await self._source.subject(request.match_info["subject"])
        try:
            await self._source.check(subject, text, only=version.number)
        except Incompatible as err:
            return {"is_compatible": False, "messages": [str(err)]}
        return {"is_compatible": True, "messages": []}

    async def _config(self, request: web.Request) -> Any:
        name = request.match_info.get("subject")
        level = (await self._source.subject(name)).compatibility if name else ""
        return {"compatibilityLevel": level or _DEFAULT}

    async def _set_config(self, request: web.Request) -> Any:
        level = (await self._body(request)).get("compatibility")
        if level not in LEVELS:
            raise _Refused(_BAD_LEVEL, f"{level!r} is not one of {', '.join(LEVELS)}")
        await self._source.set_level(request.match_info["subject"], level)
        return {"compatibility": level}


@final
class Registry:
    """The schemas of a gateway, and the port of its own registry if it has one.

    Attributes:
        schemas: of values.
        port: that is bound; 0: none.

    Args:
        prefix: of the cluster in etcd.
        topics: of the cluster.
        guard: of requests that foreign pages make.
    """

    def __init__(
        self,
        config: KafkaConfig,
        etcd: EtcdClient,
        prefix: str,
        *,
        topics: Topics,
        auth: Authenticator,
        tls: SSLContext | None,
        guard: HostGuard,
        tasks: TaskGroup,
    ) -> None:
        own = EtcdSource(etcd, kafka_root(prefix))
        self.schemas = Schemas(RestSource(config.registry) if config.registry else own)
        self.port = 0
        self._config = config
        self._api = RegistryApi(own, auth, topics, config.prefix)
        self._tls = tls
        self._guard = guard
        self._tasks = tasks
        self._server: HttpServer | None = None

    async def start(self, faults: Faults) -> None:
        """Listen, if it has a port. Raises: SetupError: it is in use."""
        if self._config.registry_port is None:
            return
        server = HttpServer(
            host=self._config.host,
            port=self._config.registry_port,
            metrics=None,
            unready=lambda: "",
            tasks=self._tasks,
            faults=faults,
            guard=self._guard,
            flag="kafka.registry-port",
            tls=self._tls,
            add_routes=self._api.add_routes,
            has_diagnostics=False,
        )
        await server.start()
        self._server, self.port = server, server.port

    async def stop(self) -> None:
        """Close the port. May be called again."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        await self.schemas.close()


def _no_subject(name: str) -> NoReturn:
    raise _Refused(_NO_SUBJECT, f"subject {name} not found")


def _shown(subject: str, version: Version) -> dict[str, Any]:
    return {
        "subject": subject,
        "version": version.number,
        "id": version.id,
        "schema": version.text,
        "schemaType": "AVRO",
    }


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _response(found: Any, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(found), content_type=_TYPE)


def _error(code: int, error: GazetteError) -> web.Response:
    status = int(str(code)[:3])
    return _response({"error_code": code, "message": str(error)}, status)
