"""Which components make up a platform, and how they find each other."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake.catalog_settings import (
    HIVE,
    ICEBERG,
    VARIABLE,
    CatalogLogin,
    IcebergCatalog,
)
from gazette_platform.lake.engines.spark import PROVIDED, is_local
from gazette_platform.lake.settings import S3Access
from gazette_platform.ops.extras import required
from gazette_platform.platform import dagster, servers, tools
from gazette_platform.platform.component import HOST
from gazette_platform.platform.layout import Endpoints, pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gazette_platform.platform.component import Component
    from gazette_platform.platform.layout import PlatformDir

# What `--without` may name. The rest is the journal service itself.
OPTIONAL = ("metastore", "trino", "dagster", "broker", "typed")
NOT_LIGHT = frozenset(OPTIONAL) - {"broker"}
"""What `--light` leaves out."""
_BROKERS_MAX = 64
_KAFKA_PORT = 9092
_REGISTRY = "registry"
_REGISTRY_PORT = 8081


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformOptions:
    """What `gazette up` was asked for.

    Raises: ValidationError: a value is out of range or unknown.
    """

    brokers: int = 1
    """Number of broker processes."""
    without: frozenset[str] = frozenset()
    """Components to leave out, of `OPTIONAL`."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Fixed ports, by the names of `port_names`."""
    definitions: tuple[str, ...] = ()
    """Paths of Python files with definitions of Dagster, besides our own."""
    store: str = ""
    """Of fragments and tables, for engines: an ``s3://`` URL; ``s3``: a server of the platform's own;
    empty: folders only."""
    metastore: str = ""
    """``thrift://host:port`` of your own Hive Metastore, used in place of the platform's."""
    trino: str = ""
    """``http(s)://host:port`` of your own Trino, used in place of the platform's."""
    catalog: str = ""
    """Of typed tables: the address of a REST server or database; empty: the metastore."""
    kafka: bool = False
    """Whether brokers serve clients of Kafka."""

    def __post_init__(self) -> None:
        unknown = sorted(self.without - set(OPTIONAL))
        if unknown:
            raise ValidationError(
                f"unknown component {unknown[0]!r}, expected some of {', '.join(OPTIONAL)}",
                path="--without",
            )
        if not 1 <= self.brokers <= _BROKERS_MAX:
            raise ValidationError(
                f"expected 1 to {_BROKERS_MAX}, got {self.brokers}", path="--brokers"
            )
        if self.kafka and not self.has("broker"):
            raise ValidationError(
                "it is a port of brokers, and there are none: leave out --without broker",
                path="--kafka",
            )
        self._check_outside()
        self._check_catalog()
        self._check_definitions()
        unknown = sorted(set(self.ports) - set(self.port_names()))
        if unknown:
            raise ValidationError(
                f"unknown name {unknown[0]!r}, expected some of {', '.join(self.port_names())}",
                path="--port",
            )
        by_port: dict[int, str] = {}
        for name, port in self.ports.items():
            if port in by_port:
                raise ValidationError(
                    f"{port} is given to both {by_port[port]} and {name}; each needs its own",
                    path="--port",
                )
            by_port[port] = name
        if self.store and not self.has_own_store:
            try:
                S3Access.of(self.store, os.environ)
            except ValidationError as err:
                raise ValidationError(err.message, path="--store") from None

    @property
    def iceberg_catalog(self) -> IcebergCatalog:
        """What `catalog` names. Raises: ValidationError: nothing that there is."""
        try:
            return IcebergCatalog.parse(self.catalog)
        except ValidationError as err:
            raise ValidationError(err.message, path="--catalog") from None

    @property
    def has_own_store(self) -> bool:
        """Whether an S3 server is part of the platform."""
        return self.store == servers.OWN_STORE

    @property
    def kept_ports(self) -> tuple[str, ...]:
        """Names of ports that have to be the same in each run: specs of journals hold the store's URL."""
        return (servers.S3,) if self.has_own_store else ()

    @property
    def known_ports(self) -> dict[str, int]:
        """Ports that clients try by themselves, by name."""
        found = {name: _KAFKA_PORT + n for n, name in enumerate(self.kafka_names())}
        return found | dict.fromkeys(self.registry_names(), _REGISTRY_PORT)

    def _check_catalog(self) -> None:
        catalog = self.iceberg_catalog
        if catalog.kind == "sql" and not catalog.is_postgres and self.has("trino"):
            raise ValidationError(
                "Trino cannot read a catalog in a file: leave it out (--without trino), or use PostgreSQL",
                path="--catalog",
            )

    def _check_outside(self) -> None:
        for name, address, schemes in (
            ("metastore", self.metastore, ("thrift",)),
            ("trino", self.trino, ("http", "https")),
        ):
            if address and not _is_address(address, schemes):
                expected = " or ".join(f"{scheme}://host:port" for scheme in schemes)
                raise ValidationError(f"expected {expected}, got {address!r}", path=f"--{name}")
            if address and name in self.without:
                raise ValidationError(
                    f"{name} is in --without, too: leave that out, for its own is not started",
                    path=f"--{name}",
                )

    def _check_definitions(self) -> None:
        if self.definitions and not self.has("dagster"):
            raise ValidationError("without dagster nothing would load it", path="--definitions")
        stems: set[str] = set()
        for path in map(Path, self.definitions):
            if not path.is_file():
                raise ValidationError(f"there is no file {path}", path="--definitions")
            if path.suffix != ".py":
                raise ValidationError(f"{path} is not a Python file (*.py)", path="--definitions")
            if path.stem in stems:
                raise ValidationError(
                    f"{path.name} is repeated: rename one of the files", path="--definitions"
                )
            stems.add(path.stem)

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` takes."""
        return asdict(self) | {"without": sorted(self.without), "ports": dict(self.ports)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PlatformOptions:
        """Return the options that `to_json` gave. Raises: ValidationError: see the class."""
        lists = {"without": frozenset(raw["without"]), "definitions": tuple(raw["definitions"])}
        return cls(**{**raw, **lists})

    def has(self, name: str) -> bool:
        """Whether the component `name` is part of the platform, and so started by it."""
        outside = {"metastore": self.metastore, "trino": self.trino}
        return name not in self.without and not outside.get(name)

    def uses(self, name: str) -> bool:
        """Whether there is a server `name`, the platform's own or another."""
        return name not in self.without

    @property
    def has_typed(self) -> bool:
        """Whether typed tables can be written: there are brokers of its own, and a catalog."""
        has_catalog = self.uses("metastore") or self.iceberg_catalog.kind != "hive"
        return self.has(servers.TYPED) and self.has("broker") and has_catalog

    def broker_names(self) -> list[str]:
        """Names of the brokers; also their ids."""
        if not self.has("broker"):
            return []
        return [f"broker-{n}" for n in range(1, self.brokers + 1)]

    def kafka_names(self) -> list[str]:
        """Names of the ports for clients of Kafka, in the order of brokers."""
        return [f"{name}-kafka" for name in self.broker_names()] if self.kafka else []

    def registry_names(self) -> list[str]:
        """Name of the port for schemas of clients of Kafka, if there is one."""
        return [_REGISTRY] if self.kafka else []

    def port_names(self) -> list[str]:
        """Every port that the platform binds, by a name that is the same in each run."""
        names = ["etcd", "etcd-peer"]
        for broker_name in self.broker_names():
            names += [broker_name, f"{broker_name}-http"]
        names += [*self.kafka_names(), *self.registry_names()]
        names += [servers.S3] if self.has_own_store else []
        names += [name for name in ("metastore", "trino", "dagster") if self.has(name)]
        return names + list(dagster.code_servers(self.definitions) if self.has("dagster") else ())


def upgraded(former: PlatformOptions, asked: PlatformOptions) -> PlatformOptions:
    """Return the options of a platform that runs with `former` after `gazette up` was asked for `asked` beside it.

    An option that was left at its default keeps what it was. Nothing that runs is left out.
    """
    defaults = PlatformOptions()
    names = [each.name for each in fields(PlatformOptions) if each.name not in ("without", "ports")]
    chosen = {
        name: getattr(former if getattr(asked, name) == getattr(defaults, name) else asked, name)
        for name in names
    }
    return PlatformOptions(
        without=former.without & asked.without, ports={**former.ports, **asked.ports}, **chosen
    )


def _is_address(text: str, schemes: Collection[str]) -> bool:
    parts = urlsplit(text)
    try:
        return parts.scheme in schemes and bool(parts.hostname and parts.port)
    except ValueError:
        return False


def endpoints_of(options: PlatformOptions, ports: Mapping[str, int]) -> Endpoints:
    """Addresses of a platform that runs on `ports`."""

    def address(scheme: str, name: str, other: str = "") -> str:
        return f"{scheme}://{HOST}:{ports[name]}" if options.has(name) else other

    brokers = tuple(f"http://{HOST}:{ports[name]}" for name in options.broker_names())
    catalog = options.iceberg_catalog
    return Endpoints(
        broker=brokers[0] if brokers else "",
        brokers=brokers,
        http=f"http://{HOST}:{ports['broker-1-http']}" if brokers else "",
        etcd=f"http://{HOST}:{ports['etcd']}",
        metastore=address("thrift", "metastore", options.metastore),
        trino=address("http", "trino", options.trino),
        dagster=address("http", "dagster"),
        s3=f"http://{HOST}:{ports[servers.S3]}" if options.has_own_store else "",
        store=servers.own_store(ports[servers.S3]) if options.has_own_store else options.store,
        catalog=str(catalog) if catalog.kind != "hive" else "",
        kafka=",".join(f"{HOST}:{ports[name]}" for name in options.kafka_names()),
        registry=f"http://{HOST}:{ports[_REGISTRY]}" if options.kafka else "",
    )


def environment_of(
    layout: PlatformDir, endpoints: Endpoints, *, has_trino: bool = False
) -> dict[str, str]:
    """Variables that let the lake, Dagster and Spark find this platform.

    Args:
        layout: its folders.
        endpoints: its addresses.
        has_trino: whether Trino is its own, whose catalogs have the names that we gave them.
    """
    variables = {
        "GAZETTE_ENDPOINTS": str(layout.endpoints),
        # Any of them may end.
        "GAZETTE_BROKER_ADDRESS": ",".join(endpoints.brokers) or endpoints.broker,
        "GAZETTE_METASTORE_URI": endpoints.metastore,
        "GAZETTE_TRINO_URI": endpoints.trino,
        "GAZETTE_DAGSTER_URI": endpoints.dagster,
        "GAZETTE_TABLES": str(layout.tables),
        "GAZETTE_ROLLUPS": str(layout.rollups),
        "GAZETTE_LAKE_STORE_ROOTS": json.dumps({"file:///": f"file://{layout.fragments}/"}),
        "GAZETTE_WAREHOUSE": _warehouse(layout, endpoints),
    }
    catalog = IcebergCatalog.parse(endpoints.catalog)
    if has_trino:
        variables |= {"GAZETTE_TRINO_CATALOG": HIVE, "GAZETTE_TRINO_ICEBERG_CATALOG": ICEBERG}
        variables["GAZETTE_TRINO_TYPED_CATALOG"] = catalog.name.lower()
    if catalog.kind != "hive":
        variables[VARIABLE] = endpoints.catalog
        if catalog.is_postgres and endpoints.metastore:
            variables["GAZETTE_JDBC_JAR"] = str(tools.postgres_driver())
    if endpoints.store:
        variables["GAZETTE_LAKE_STORE"] = endpoints.store
        if endpoints.s3:
            variables |= servers.read_keys(layout.s3)
        if endpoints.metastore:
            variables["GAZETTE_S3_JARS"] = str(tools.s3_jars())
    if endpoints.metastore:
        variables |= {
            "GAZETTE_ICEBERG_JAR": str(tools.iceberg_spark_runtime()),
            "JAVA_HOME": str(tools.java(21)),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        if is_local(os.environ.get("GAZETTE_SPARK_MASTER") or "local"):
            # Else Spark's workers start another interpreter, which lacks the packages of this one.
            # Those of a cluster are on other machines, from where loopback is not reached.
            variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        if os.environ.get("GAZETTE_ICEBERG_JAR") == PROVIDED:
            variables["GAZETTE_ICEBERG_JAR"] = PROVIDED
    return {name: value for name, value in variables.items() if value}


def shell_environment(layout: PlatformDir, endpoints: Endpoints) -> dict[str, str]:
    """Variables that `gazette env` prints: those of `environment_of`, and those that gazctl and applications read."""
    variables = environment_of(layout, endpoints, has_trino="trino" in endpoints.pids)
    if endpoints.broker:
        variables["BROKER_ADDRESS"] = variables["GAZETTE_BROKER_ADDRESS"]
    if endpoints.etcd:
        variables["ETCD_ADDRESS"] = endpoints.etcd
    if endpoints.kafka:
        variables["KAFKA_ADDRESS"] = endpoints.kafka.partition(",")[0]
    return variables


def _typed_catalogs(options: PlatformOptions, warehouse: str) -> list[servers.ExtraCatalog]:
    """Trino's settings for a catalog of typed tables, if that is not the metastore."""
    catalog = options.iceberg_catalog
    if catalog.kind == "hive":
        return []
    login = CatalogLogin.from_environment(catalog, os.environ)
    return [servers.ExtraCatalog.of(catalog, login, warehouse)]


def _warehouse(layout: PlatformDir, endpoints: Endpoints) -> str:
    """Location of Iceberg tables, and of databases that name none."""
    if endpoints.store:
        return S3Access.of(endpoints.store, os.environ).warehouse
    return f"file://{layout.warehouse}"


def check_extras(options: PlatformOptions) -> None:
    """Look for the Python packages that the components need, before anything is fetched or made.

    Raises: SetupError: one is not installed; names the extra.
    """
    if options.uses("metastore"):
        pyspark_jars()
    if options.has("dagster") and importlib.util.find_spec("dagster_webserver") is None:
        raise SetupError(
            "Dagster is not installed: install the extra `gazette-platform[all]`, or leave it out "
            "with --without dagster"
        )
    if options.kafka:
        for package in ("kio", "aiokafka", "fastavro", "avro"):
            required(package, extra="kafka", by="clients of Kafka (--kafka)")


def install_tools(options: PlatformOptions) -> None:
    """Install what the components of a platform run on and is missing.

    Raises: SetupError: a tool cannot be installed.
    """
    tools.etcd()
    if options.has_own_store:
        tools.s3_server()
    if options.uses("metastore"):
        tools.java(21)
        tools.iceberg_spark_runtime()
        if options.store:
            tools.s3_jars()
        if options.iceberg_catalog.is_postgres:
            tools.postgres_driver()
    if options.has("trino"):
        tools.java(25)
        tools.trino()


def components_of(
    layout: PlatformDir, options: PlatformOptions, ports: Mapping[str, int]
) -> list[Component]:
    """The components of a platform, each after what it requires.

    Installs tools that are missing, which may take minutes on the first use, and writes
    configuration below `layout`. Nothing is started.

    Raises: SetupError: a tool cannot be installed.
    """
    endpoints = endpoints_of(options, ports)
    found = [servers.etcd_component(layout.etcd, port=ports["etcd"], peer_port=ports["etcd-peer"])]
    stores: tuple[str, ...] = ()
    keys: dict[str, str] = {}
    if options.has_own_store:
        found.append(servers.s3_component(layout.s3, port=ports[servers.S3]))
        stores, keys = (servers.S3,), servers.read_keys(layout.s3)
    access = S3Access.of(endpoints.store, os.environ) if endpoints.store else None
    if options.has("metastore"):
        found.append(
            servers.metastore_component(
                layout.metastore,
                port=ports["metastore"],
                warehouse=access.warehouse if access else layout.warehouse.as_uri(),
                s3=access,
                environment=keys,
                requires=stores,
            )
        )
    brokers = tuple(options.broker_names())
    found += [
        servers.broker_component(
            layout,
            name=name,
            number=number,
            of=len(brokers),
            port=ports[name],
            http_port=ports[f"{name}-http"],
            etcd=endpoints.etcd,
            requires=(servers.ETCD, *stores),
            environment=keys,
            kafka_port=ports.get(f"{name}-kafka", 0) if options.kafka else 0,
            registry_port=ports[_REGISTRY] if options.kafka and number == 1 else 0,
            store=endpoints.store,
        )
        for number, name in enumerate(brokers, 1)
    ]
    lake = tuple(name for name in (servers.METASTORE,) if options.has(name))
    if options.has("trino"):
        found += servers.trino_components(
            layout.trino,
            port=ports["trino"],
            metastore=urlsplit(endpoints.metastore).netloc,
            uses=(*stores, *lake),
            s3=access,
            extra=_typed_catalogs(options, _warehouse(layout, endpoints)),
            jvm_options=os.environ.get("GAZETTE_TRINO_JVM_OPTIONS", "").split(),
            environment=keys,
        )
    if not (options.has_typed or options.has("dagster")):
        return found
    environment = environment_of(layout, endpoints, has_trino=options.has("trino"))
    if options.has_typed:
        found.append(
            servers.typed_component(layout, environment=environment, requires=(*brokers, *lake))
        )
    if options.has("dagster"):
        found += dagster.dagster_components(
            layout.dagster,
            port=ports["dagster"],
            code_ports=ports,
            definitions=options.definitions,
            environment=environment,
            requires=(*brokers, *lake),
            uses=tuple(name for name in (servers.TRINO,) if options.has(name)),
        )
    return found
