"""Addresses and places that the lake and Dagster sides need, from the environment.

`gazette up` writes ``endpoints.json``; GAZETTE_ENDPOINTS names it. Each value may be given by a
variable of its own, which wins:

| variable | meaning | default |
|---|---|---|
| GAZETTE_BROKER_ADDRESS | ``http://host:port`` of a broker | `broker` in endpoints.json |
| GAZETTE_METASTORE_URI | ``thrift://host:port`` | `metastore` in endpoints.json |
| GAZETTE_TRINO_URI | ``http(s)://host:port`` | `trino` in endpoints.json |
| GAZETTE_TRINO_CATALOG | name of its Hive catalog | ``hive`` |
| GAZETTE_TRINO_ICEBERG_CATALOG | name of its Iceberg catalog | ``iceberg`` |
| GAZETTE_TRINO_TYPED_CATALOG | name of its catalog of typed tables | that, or what Spark calls the other one |
| GAZETTE_ICEBERG_CATALOG | the catalog of typed tables | `catalog` in endpoints.json, or ``hive`` |
| GAZETTE_TABLES | folder of table specs | ``tables`` beside endpoints.json |
| GAZETTE_ROLLUPS | folder of rollups | ``rollups`` beside endpoints.json |
| GAZETTE_LAKE_STORE_ROOTS | JSON {store URL: location} | file:/// is ``fragments`` beside it |
| GAZETTE_WAREHOUSE | location of Iceberg tables | ``warehouse`` beside it |
| GAZETTE_ICEBERG_JAR | path of the Iceberg runtime for Spark, or ``provided`` | none: no Iceberg |
| GAZETTE_JDBC_JAR | path of Spark's driver for that catalog in a database | Spark has it |
| GAZETTE_SPARK_MASTER | Spark master URL, or that of Spark Connect | ``local[2]`` |
| GAZETTE_SPARK_PROPERTIES | file of properties of Spark, which win over ours | none |
| GAZETTE_LAKE_STORE | ``s3://`` URL of the fragment store, for Spark | `store` in endpoints.json |
| GAZETTE_S3_JARS | folder of the jars of Hadoop's S3 driver | none: Spark has them itself |
| GAZETTE_DAGSTER_URI | address of the Dagster UI, to reload it | `dagster` in endpoints.json |
| GAZETTE_TABLE_URL | a page of a table: an address with {catalog}, {schema} and {table} | none: no links |
| GAZETTE_FRAGMENT_SENSORS | sensors that share out the tables, 1 to 32 | ``1`` |

Logins at Trino, or a catalog, are not part of it, since settings are shown: see `gazette_platform.lake.engines.trino.TrinoLogin` and
`gazette_platform.lake.catalog_settings`.

`S3Access` says how Spark, the Hive Metastore and Trino reach the S3 store that a fragment store's URL names. All three find
credentials as every AWS tool does: in the environment, a profile, a role. No setting here holds any.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final
from urllib.parse import quote

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake.catalog_settings import (
    HIVE,
    ICEBERG,
    VARIABLE,
    IcebergCatalog,
    TrinoCatalogs,
)
from gazette_platform.lake.spec.layout import StoreRoots
from gazette_platform.protocol import parse_store_url

if TYPE_CHECKING:
    from collections.abc import Mapping


@final
@dataclass(frozen=True, kw_only=True)
class LakeSettings:
    """Where everything is. An empty text means unknown: `required` says what to do then."""

    broker: str = ""
    """``http://host:port``."""
    metastore: str = ""
    """``thrift://host:port``."""
    trino: str = ""
    """``http(s)://host:port``."""
    trino_catalogs: TrinoCatalogs = field(default_factory=TrinoCatalogs)
    """What that Trino calls its catalogs."""
    iceberg_catalog: IcebergCatalog = field(default_factory=IcebergCatalog)
    """Where typed tables are."""
    dagster: str = ""
    """``http://host:port``."""
    table_url: str = ""
    """Address of a page of a table, with ``{catalog}``, ``{schema}`` and ``{table}`` in it."""
    tables: str = ""
    """Folder of table specs."""
    rollups: str = ""
    """Folder of rollups."""
    warehouse: str = ""
    """URI of the folder of Iceberg tables, without a trailing slash."""
    iceberg_jar: str = ""
    """Path of iceberg-spark-runtime; ``provided`` where Spark has it already."""
    jdbc_jar: str = ""
    """Path of Spark's driver for `iceberg_catalog`, if that is in a database."""
    store: str = ""
    """URL of the fragment store that Spark is configured for; empty: folders only."""
    s3_jars: str = ""
    """Folder of jars with which Spark reaches S3."""
    spark_master: str = "local[2]"
    """Spark master URL; ``sc://host:port`` of a server of Spark Connect."""
    spark_properties: str = ""
    """Path of a file of properties of Spark; see `gazette_platform.lake.engines.spark`."""
    store_roots: Mapping[str, str] = field(default_factory=dict)
    """Fragment-store URL → table location."""
    fragment_sensors: int = 1
    """Sensors that share out the tables; 1 to 32."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LakeSettings:
        """Settings of `environment` and of the endpoints file that it names, if that exists.

        Raises: ValidationError: a file or variable is malformed.
        """
        endpoints_path = environment.get("GAZETTE_ENDPOINTS", "")
        endpoints = _endpoints(endpoints_path)
        folder = Path(endpoints_path).absolute().parent if endpoints_path else None

        def beside(name: str, *, as_uri: bool = False) -> str:
            if folder is None:
                return ""
            return f"file://{folder / name}" if as_uri else str(folder / name)

        fragments = beside("fragments", as_uri=True)
        roots = _roots(environment.get("GAZETTE_LAKE_STORE_ROOTS", ""))
        if not roots and fragments:
            roots = {"file:///": f"{fragments}/"}
        StoreRoots(roots)
        table_url = environment.get("GAZETTE_TABLE_URL", "")
        if table_url:
            check_table_url(table_url)
        catalog = IcebergCatalog.parse(environment.get(VARIABLE) or endpoints.get("catalog", ""))
        store = environment.get("GAZETTE_LAKE_STORE") or endpoints.get("store", "")
        warehouse = environment.get("GAZETTE_WAREHOUSE", "")
        if not warehouse and store.startswith("s3:"):
            warehouse = S3Access.of(store, environment).warehouse
        return cls(
            broker=environment.get("GAZETTE_BROKER_ADDRESS") or endpoints.get("broker", ""),
            metastore=environment.get("GAZETTE_METASTORE_URI") or endpoints.get("metastore", ""),
            trino=environment.get("GAZETTE_TRINO_URI") or endpoints.get("trino", ""),
            trino_catalogs=_trino_catalogs(environment, catalog),
            iceberg_catalog=catalog,
            dagster=environment.get("GAZETTE_DAGSTER_URI") or endpoints.get("dagster", ""),
            table_url=table_url,
            tables=environment.get("GAZETTE_TABLES") or beside("tables"),
            rollups=environment.get("GAZETTE_ROLLUPS") or beside("rollups"),
            warehouse=(warehouse or beside("warehouse", as_uri=True)).rstrip("/"),
            iceberg_jar=environment.get("GAZETTE_ICEBERG_JAR", ""),
            jdbc_jar=environment.get("GAZETTE_JDBC_JAR", ""),
            store=store,
            s3_jars=environment.get("GAZETTE_S3_JARS", ""),
            spark_master=environment.get("GAZETTE_SPARK_MASTER") or "local[2]",
            spark_properties=environment.get("GAZETTE_SPARK_PROPERTIES", ""),
            store_roots=roots,
            fragment_sensors=_count(environment, "GAZETTE_FRAGMENT_SENSORS"),
        )

    @property
    def file_root(self) -> Path | None:
        """The folder that ``file:///`` stores are rooted at, if it is on this machine: their files need not go by brokers."""
        root = Path(self.store_roots.get("file:///", "").removeprefix("file://"))
        return root if root.is_absolute() and root.is_dir() else None

    def required(self, name: str) -> str:
        """The setting `name`.

        Raises: SetupError: it is not set; names the variable.
        """
        value = str(getattr(self, name))
        if not value:
            raise SetupError(
                f"the address of {name} is not known: start a platform with `gazette up`, or set "
                f"{_VARIABLES[name]}, or GAZETTE_ENDPOINTS to the endpoints.json of a platform"
            )
        return value


_VARIABLES = {
    "broker": "GAZETTE_BROKER_ADDRESS",
    "metastore": "GAZETTE_METASTORE_URI",
    "trino": "GAZETTE_TRINO_URI",
    "tables": "GAZETTE_TABLES",
    "rollups": "GAZETTE_ROLLUPS",
    "warehouse": "GAZETTE_WAREHOUSE",
    "iceberg_jar": "GAZETTE_ICEBERG_JAR",
}


def _endpoints(path: str) -> dict[str, str]:
    """Addresses of an endpoints file, by name; empty while it is not written yet."""
    if not path or not Path(path).exists():
        return {}
    raw = _json_object(Path(path).read_text(encoding="utf-8"), path)
    found = {key: value for key, value in raw.items() if isinstance(value, str)}
    brokers = raw.get("brokers")
    if isinstance(brokers, list) and brokers:
        found["broker"] = ",".join(map(str, brokers))  # any of them may end
    return found


def _trino_catalogs(environment: Mapping[str, str], catalog: IcebergCatalog) -> TrinoCatalogs:
    typed = "" if catalog.kind == "hive" else catalog.name.lower()
    return TrinoCatalogs(
        hive=environment.get("GAZETTE_TRINO_CATALOG") or HIVE,
        iceberg=environment.get("GAZETTE_TRINO_ICEBERG_CATALOG") or ICEBERG,
        typed=environment.get("GAZETTE_TRINO_TYPED_CATALOG") or typed,
    )


def _count(environment: Mapping[str, str], name: str) -> int:
    """A number, 1 if there is none. Whether it is too great is for those to say who use it."""
    text = environment.get(name) or "1"
    if not text.isdecimal():
        raise ValidationError(f"{text!r} is not a whole number", path=name)
    return int(text)


def _roots(text: str) -> dict[str, str]:
    if not text:
        return {}
    raw = _json_object(text, "GAZETTE_LAKE_STORE_ROOTS")
    return {str(store): str(location) for store, location in raw.items()}


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except ValueError as err:
        raise ValidationError(f"not valid JSON: {err}", path=where) from err
    if not isinstance(raw, dict):
        raise ValidationError("not a JSON object", path=where)
    return raw


# Below the prefix of the store, where no journal can be.
_WAREHOUSE: Final = ".gazette/warehouse"
_REGION: Final = "us-east-1"
_FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
# That of the AWS SDK itself; Hadoop's own default knows no profiles and no roles of containers.
_CREDENTIALS: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """An S3 store, as engines are configured for it."""

    bucket: str
    prefix: str
    """Empty, or ends in a slash."""
    endpoint: str
    """URL of a server; empty: AWS."""
    region: str

    @classmethod
    def of(cls, store: str, environment: Mapping[str, str]) -> Self:
        """The access of the fragment store `store`.

        Args:
            store: ``s3://BUCKET/PREFIX/``, with the arguments ``endpoint`` and ``region`` if need be.
            environment: where AWS tools look for what the URL does not say.

        Raises: ValidationError: it is not an S3 store, or has arguments that engines cannot follow.
        """
        url = parse_store_url(store)
        if url.scheme != "s3":
            raise ValidationError(
                f"{store} is not an s3:// store (on other stores, configure engines of your own, and "
                "give their addresses)"
            )
        arguments = {name.lower(): value for name, value in url.args.items()}
        for name in ("find", "replace", "profile"):
            if arguments.get(name):
                raise ValidationError(
                    f"{store}: engines have no setting for `{name}`, which brokers follow "
                    + ("(set AWS_PROFILE instead)" if name == "profile" else "(leave it out)")
                )
        endpoint = (
            arguments.get("endpoint")
            or environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
            or ""
        )
        if endpoint and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        region = (
            arguments.get("region")
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
            or (_REGION if endpoint else "")
        )
        if not region:
            raise ValidationError(f"{store} has no region (add ?region=…, or set AWS_REGION)")
        return cls(bucket=url.host, prefix=url.prefix, endpoint=endpoint, region=region)

    @property
    def warehouse(self) -> str:
        """Location of Iceberg tables, without a trailing slash."""
        return f"s3://{self.bucket}/{self.prefix}{_WAREHOUSE}"

    def hadoop(self) -> dict[str, str]:
        """Settings of Hadoop's driver, for Spark (each with ``spark.hadoop.`` before it) and Hive."""
        settings = {
            # Locations say s3, as AWS and Trino do.
            "fs.s3.impl": _FILE_SYSTEM,
            "fs.s3a.impl": _FILE_SYSTEM,
            "fs.s3a.aws.credentials.provider": _CREDENTIALS,
            "fs.s3a.endpoint.region": self.region,
        }
        if self.endpoint:
            settings |= {
                "fs.s3a.endpoint": self.endpoint,
                # Your own server has no name for each bucket.
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": str(self.endpoint.startswith("https:")).lower(),
            }
        return settings

    def iceberg(self) -> dict[str, str]:
        """Properties of PyIceberg's reader and writer of files."""
        properties = {"s3.region": self.region}
        if self.endpoint:
            properties["s3.endpoint"] = self.endpoint
        return properties

    def trino(self) -> dict[str, str]:
        """Properties of a catalog of Trino."""
        properties = {"fs.native-s3.enabled": "true", "s3.region": self.region}
        if self.endpoint:
            properties |= {"s3.endpoint": self.endpoint, "s3.path-style-access": "true"}
        return properties


_PLACES: Final = ("catalog", "schema", "table")


def check_table_url(template: str) -> None:
    """Refuse what is not an address with ``{catalog}``, ``{schema}`` and ``{table}`` in it, or some of these.

    Raises: ValidationError: says what may be in it.
    """
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as err:
        names = {str(err)}
    if not names or names - set(_PLACES) or not template.startswith(("http://", "https://")):
        raise ValidationError(
            f"{template!r} is not an http(s) address with {{catalog}}, {{schema}} and {{table}} in it",
            path="GAZETTE_TABLE_URL",
        )


def table_link(template: str, table: str) -> str:
    """The page of ``catalog.schema.table``.

    >>> table_link("http://sql/?t={schema}.{table}", "hive.shop.orders")
    'http://sql/?t=shop.orders'
    """
    parts = zip(_PLACES, table.split("."), strict=True)
    return template.format(**{name: quote(part, safe="") for name, part in parts})
