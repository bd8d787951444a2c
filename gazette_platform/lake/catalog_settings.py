"""Settings of catalogs: Trino's names of them, where the Iceberg catalog of typed tables is, and logins.

`lake.iceberg.catalog` opens that catalog.

A name is needed wherever a statement crosses from one of Trino's catalogs to another, and in the view ``…_exact``, which
Trino reads in the catalog that its definition names.

| GAZETTE_ICEBERG_CATALOG | where typed tables are |
|---|---|
| ``hive``, or nothing | the Hive Metastore of raw tables; engines call the catalog ``iceberg`` |
| ``https://HOST/PATH`` | an Iceberg REST server; ``?warehouse=NAME``, if it has several |
| ``postgresql://USER@HOST/DATABASE`` | tables of Iceberg's SQL (JDBC) catalog; with libpq's ``sslmode`` and the like |
| ``sqlite:////PATH`` | the same in a file, for one machine and no Trino |

``#NAME`` at the end says what Spark calls the catalog: ``lakehouse``, if it does not. In a database, rows have that name too.

An address is shown: on pages of Dagster, in logs. Who asks, and how that is proved, is a `CatalogLogin`, which is not: its
secrets come from the environment, or from files that it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from typing_extensions import override

from gazette_platform.errors import SetupError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

HIVE: Final = "hive"
ICEBERG: Final = "iceberg"

# Trino takes a catalog's name from that of its properties file; these need no escapes in quotes.
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_\-]*")
# A catalog is followed by a schema; what follows a dot or a quote is something else.
_CATALOG: Final = re.compile(rf'(?<![\w".])({HIVE}|{ICEBERG})\.(?=[\w"])')


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrinoCatalogs:
    """Names of two catalogs over the same metastore, and of that of typed tables.

    Raises: ValidationError: a name is none that Trino takes.
    """

    hive: str = HIVE
    """Of the Hive connector: raw tables."""
    iceberg: str = ICEBERG
    """Of the Iceberg connector: rollups."""
    typed: str = ""
    """Of the Iceberg connector: typed tables. That of rollups, unless these are in a catalog of their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "typed", self.typed or self.iceberg)
        for variable, name in (
            ("GAZETTE_TRINO_CATALOG", self.hive),
            ("GAZETTE_TRINO_ICEBERG_CATALOG", self.iceberg),
            ("GAZETTE_TRINO_TYPED_CATALOG", self.typed),
        ):
            if not _NAME.fullmatch(name):
                raise ValidationError(
                    f"not a catalog's name (lower-case letters, digits, _ and -): {name!r}",
                    path=variable,
                )

    def in_sql(self, sql: str) -> str:
        """A statement of ours, in which catalogs are called `hive` and `iceberg`, by these names.

        >>> TrinoCatalogs(hive="raw-lake").in_sql("SELECT * FROM hive.s.t")
        'SELECT * FROM "raw-lake".s.t'
        """
        names = {HIVE: self.hive, ICEBERG: self.iceberg}

        def named(match: re.Match[str]) -> str:
            name = names[match[1]]
            return match[0] if name == match[1] else f'"{name}".'

        return _CATALOG.sub(named, sql)


VARIABLE: Final = "GAZETTE_ICEBERG_CATALOG"
CONNECT_S: Final = 10
"""Seconds in which a server takes a connection."""
ANSWER_S: Final = 60
"""Seconds in which a server answers. What it then did is found out by asking again."""

_LAKEHOUSE: Final = "lakehouse"
_SPARK_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
# Those that exist already, and Spark's own.
_TAKEN: Final = frozenset({ICEBERG, "hive", "spark_catalog", "system"})
_SCHEMES: Final = {
    "http": "rest", "https": "rest", "postgresql": "sql", "postgres": "sql", "sqlite": "sql",
}  # fmt: skip
# That mean the same to libpq and to its relative in Java.
_POSTGRES_ARGUMENTS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")
_POSTGRES_PORT: Final = 5432
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# Of the stores, Spark has Hadoop's drivers. Iceberg's own would need an SDK of each cloud.
_SPARK_FILES: Final = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
_MILLISECONDS: Final = 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCatalog:
    """Where typed tables are. Read with `parse`, which validates."""

    kind: Literal["hive", "rest", "sql"] = "hive"
    uri: str = ""
    """Address of the REST server, without a trailing slash; or of the database."""
    name: str = ICEBERG
    """What Spark calls it."""
    warehouse: str = ""
    """What a REST server calls the one of its warehouses that is meant; empty: it has one."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The catalog that `text` names, as this module's first words say.

        Raises: ValidationError: it is none of these, or holds a password. It is not quoted then.
        """
        if text in {"", "hive"}:
            return cls()
        try:
            parts = urlsplit(text)
            _ = parts.port
        except ValueError:
            # Which quotes it.
            raise _refused("is malformed") from None
        kind = _SCHEMES.get(parts.scheme)
        if kind is None:
            raise _refused(
                "is neither `hive` nor an address http(s)://, postgresql:// or sqlite://"
            )
        if parts.password is not None:
            raise _refused(
                "holds a password, and addresses are shown: leave it out, and set GAZETTE_ICEBERG_PASSWORD_FILE"
            )
        name = parts.fragment or _LAKEHOUSE
        if not _SPARK_NAME.match(name) or name.lower() in _TAKEN:
            raise _refused(
                f"ends in #{name}, which is not a free name for a catalog (letters, digits and _)"
            )
        if kind == "rest":
            return cls(kind="rest", name=name, **_rest(parts))
        uri = _sqlite(parts) if parts.scheme == "sqlite" else _postgres(parts)
        return cls(kind="sql", name=name, uri=uri)

    @override
    def __str__(self) -> str:
        """What `parse` reads; ``hive`` for a metastore."""
        if self.kind == "hive":
            return "hive"
        query = f"?{urlencode({'warehouse': self.warehouse})}" if self.warehouse else ""
        return f"{self.uri}{query}#{self.name}"

    @property
    def is_postgres(self) -> bool:
        """Whether it is a database of PostgreSQL."""
        return self.uri.startswith("postgresql:")

    @property
    def is_private(self) -> bool:
        """Whether the connection to a REST server is encrypted, or local."""
        parts = urlsplit(self.uri)
        return parts.scheme == "https" or parts.hostname in _LOOPBACK

    @property
    def user(self) -> str:
        """Of the database; empty: as its clients choose."""
        return unquote(urlsplit(self.uri).username or "")

    @property
    def jdbc_uri(self) -> str:
        """The database as Java's clients name it, without its user; they wait no longer than others."""
        parts = urlsplit(self.uri)
        if not self.is_postgres:
            return f"jdbc:sqlite:{unquote(parts.path)[1:]}"
        waits = {"connectTimeout": CONNECT_S, "socketTimeout": ANSWER_S, "tcpKeepAlive": "true"}
        query = urlencode({**dict(parse_qsl(parts.query)), **waits}, quote_via=quote)
        host = parts.netloc.rpartition("@")[2]
        return f"jdbc:postgresql://{host}{parts.path}?{query}"

    def spark(self, location: str) -> dict[str, str]:
        """Properties of a catalog of Spark's, besides those of `CatalogLogin.spark`; none for a metastore.

        Args:
            location: of new tables, where that is not for a server to choose.
        """
        if self.kind == "hive":
            return {}
        if self.kind == "rest":
            found = {
                "type": "rest",
                "uri": self.uri,
                "rest.client.connection-timeout-ms": str(CONNECT_S * _MILLISECONDS),
                "rest.client.socket-timeout-ms": str(ANSWER_S * _MILLISECONDS),
            }
            found |= {"warehouse": self.warehouse} if self.warehouse else {}
        else:
            found = {
                "type": "jdbc",
                "uri": self.jdbc_uri,
                "jdbc.schema-version": "V1",
                "warehouse": location,
            }
            found |= {"jdbc.user": self.user} if self.user else {}
        return {**found, **_SPARK_FILES, "cache-enabled": "false"}

    def trino(self, location: str) -> dict[str, str]:
        """Properties of a catalog of Trino's, besides those of `CatalogLogin.trino` and of the file system.

        Raises: ValidationError: Trino has no such catalogs.
        """
        found = {"connector.name": "iceberg", "iceberg.catalog.type": "rest"}
        if self.kind == "rest":
            found["iceberg.rest-catalog.uri"] = self.uri
            return found | (
                {"iceberg.rest-catalog.warehouse": self.warehouse} if self.warehouse else {}
            )
        if not self.is_postgres:
            raise _refused(
                "names a catalog that Trino cannot read: leave Trino out, or use PostgreSQL"
            )
        found |= {
            "iceberg.catalog.type": "jdbc",
            "iceberg.jdbc-catalog.catalog-name": self.name,
            "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
            "iceberg.jdbc-catalog.connection-url": self.jdbc_uri,
            "iceberg.jdbc-catalog.default-warehouse-dir": location,
        }
        return found | ({"iceberg.jdbc-catalog.connection-user": self.user} if self.user else {})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLogin:
    """Who asks a catalog, and how that is proved. It is made when it is needed, and shown nowhere.

    Raises: ValidationError: two proofs are given, or one is malformed.
    """

    password: str = field(default="", repr=False)
    """Of the user of a database."""
    token: str = field(default="", repr=False)
    """That a REST server takes."""
    credential: str = field(default="", repr=False)
    """``ID:SECRET``, which obtains the tokens of a REST server."""
    oauth2_uri: str = ""
    """Who gives these; empty: the server itself."""
    scope: str = ""
    """What they are asked for; empty: ``catalog``."""

    def __post_init__(self) -> None:
        if self.token and self.credential:
            raise ValidationError(
                "set GAZETTE_ICEBERG_TOKEN or GAZETTE_ICEBERG_CREDENTIAL, not both",
                path="GAZETTE_ICEBERG_TOKEN",
            )
        if self.credential and not all(self.credential.partition(":")):
            raise ValidationError("expected ID:SECRET", path="GAZETTE_ICEBERG_CREDENTIAL")

    @classmethod
    def from_environment(cls, catalog: IcebergCatalog, environment: Mapping[str, str]) -> Self:
        """The login that `environment` gives for `catalog`. Files of secrets are read now, so that they may be renewed.

        Args:
            environment: for a database GAZETTE_ICEBERG_PASSWORD or GAZETTE_ICEBERG_PASSWORD_FILE; for a REST server
                GAZETTE_ICEBERG_TOKEN or GAZETTE_ICEBERG_TOKEN_FILE, or GAZETTE_ICEBERG_CREDENTIAL or
                GAZETTE_ICEBERG_CREDENTIAL_FILE with GAZETTE_ICEBERG_OAUTH2_URI and GAZETTE_ICEBERG_SCOPE.

        Raises: SetupError: a file cannot be read. ValidationError: see the class; or a proof would go over
            plain HTTP to another machine.
        """
        if catalog.kind == "hive":
            return cls()
        if catalog.kind == "sql":
            return cls(password=secret_of(environment, "GAZETTE_ICEBERG_PASSWORD"))
        login = cls(
            token=secret_of(environment, "GAZETTE_ICEBERG_TOKEN"),
            credential=secret_of(environment, "GAZETTE_ICEBERG_CREDENTIAL"),
            oauth2_uri=environment.get("GAZETTE_ICEBERG_OAUTH2_URI", ""),
            scope=environment.get("GAZETTE_ICEBERG_SCOPE", ""),
        )
        if (login.token or login.credential) and not catalog.is_private:
            raise ValidationError(
                f"a token or credential is set, and {catalog.uri} is not https:// (use the address of its HTTPS "
                "port, or unset GAZETTE_ICEBERG_TOKEN and GAZETTE_ICEBERG_CREDENTIAL)",
                path=VARIABLE,
            )
        return login

    def asks_at(self, catalog: IcebergCatalog) -> str:
        """Where tokens are got."""
        return self.oauth2_uri or f"{catalog.uri}/v1/oauth/tokens"

    def spark(self, catalog: IcebergCatalog) -> dict[str, str]:
        """Properties of a catalog of Spark's, as of `IcebergCatalog.spark`: not to be shown."""
        if self.password:
            return {"jdbc.password": self.password}
        if self.token:
            return {"token": self.token}
        if self.credential:
            found = {"credential": self.credential, "oauth2-server-uri": self.asks_at(catalog)}
            return found | ({"scope": self.scope} if self.scope else {})
        return {}

    def trino(self, catalog: IcebergCatalog) -> tuple[dict[str, str], dict[str, str]]:
        """Properties of a catalog of Trino's, and variables of its process, which hold the secrets."""
        names = {
            "password": ("GAZETTE_ICEBERG_PASSWORD", "iceberg.jdbc-catalog.connection-password"),
            "token": ("GAZETTE_ICEBERG_TOKEN", "iceberg.rest-catalog.oauth2.token"),
            "credential": ("GAZETTE_ICEBERG_CREDENTIAL", "iceberg.rest-catalog.oauth2.credential"),
        }
        found: dict[str, str] = {}
        variables: dict[str, str] = {}
        for secret, (variable, name) in names.items():
            if getattr(self, secret):
                found[name] = f"${{ENV:{variable}}}"
                variables[variable] = getattr(self, secret)
        if self.token or self.credential:
            found["iceberg.rest-catalog.security"] = "OAUTH2"
        if self.credential:
            found["iceberg.rest-catalog.oauth2.server-uri"] = self.asks_at(catalog)
            if self.scope:
                found["iceberg.rest-catalog.oauth2.scope"] = self.scope
        return found, variables


def _rest(parts: SplitResult) -> dict[str, str]:
    arguments = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(arguments.keys() - {"warehouse"})
    if not parts.hostname or parts.username is not None or unknown:
        raise _refused(
            "is not that of a REST server: http(s)://HOST/PATH, with ?warehouse=NAME if need be, and no user"
        )
    uri = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return {"uri": uri, "warehouse": arguments.get("warehouse", "")}


def _postgres(parts: SplitResult) -> str:
    arguments = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(arguments.keys() - set(_POSTGRES_ARGUMENTS))
    if unknown:
        raise _refused(f"has {unknown[0]}: it may have {', '.join(_POSTGRES_ARGUMENTS)}")
    if not parts.hostname or not unquote(parts.path).strip("/"):
        raise _refused(
            "is not that of a database: postgresql://USER@HOST:PORT/DATABASE, and no socket, which Java has not"
        )
    user = f"{parts.username}@" if parts.username else ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    query = f"?{urlencode(arguments, quote_via=quote)}" if arguments else ""
    return f"postgresql://{user}{host}:{parts.port or _POSTGRES_PORT}{parts.path}{query}"


def _sqlite(parts: SplitResult) -> str:
    if parts.netloc or parts.query or not parts.path.startswith("//"):
        raise _refused("is not that of a file: sqlite:////PATH, absolute")
    return f"sqlite://{parts.path}"


def _refused(why: str) -> ValidationError:
    return ValidationError(f"the address of the catalog {why}", path=VARIABLE)


def secret_of(environment: Mapping[str, str], name: str) -> str:
    """The value of `name`, or the content of the file that `name`_FILE names; empty: neither is set.

    Files are read at each call, so that they may be renewed.

    Raises: SetupError: the file cannot be read, or is empty. ValidationError: both are set.
    """
    value, path = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if value and path:
        raise ValidationError(f"set {name} or {name}_FILE, not both", path=name)
    if not path:
        return value
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise SetupError(f"cannot read {name}_FILE={path}: {err}") from err
    if not text:
        raise SetupError(f"{name}_FILE={path} is empty")
    return text
