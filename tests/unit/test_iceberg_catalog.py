"""The catalog of typed tables, as settings name it, and the settings that Spark, Trino, Dagster and programs get."""

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.catalog_settings import CatalogLogin, IcebergCatalog
from gazette_platform.lake.engines.spark import _secrets, spark_configuration
from gazette_platform.lake.iceberg.catalog import CatalogHandle, typed_catalog
from gazette_platform.platform import tools
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.platform.platform import (
    PlatformOptions,
    components_of,
    endpoints_of,
    environment_of,
)
from gazette_platform.resources import platform_resources

REST = "https://catalog.example.com/api?warehouse=prod#prod_lake"
SQL = "postgresql://iceberg@db:6432/catalogs?sslmode=verify-full&sslrootcert=/etc/ca%201.pem"
JDBC = (
    "jdbc:postgresql://db:6432/catalogs?sslmode=verify-full&sslrootcert=%2Fetc%2Fca%201.pem"
    "&connectTimeout=10&socketTimeout=60&tcpKeepAlive=true"
)


def settings(catalog, **more):
    environment = {
        "GAZETTE_METASTORE_URI": "thrift://m:1",
        "GAZETTE_WAREHOUSE": "s3://w",
        "GAZETTE_ICEBERG_JAR": "provided",
        "GAZETTE_ICEBERG_CATALOG": catalog,
    }
    return LakeSettings.from_environment(environment | more)


# ------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("text", "kind", "uri", "name"),
    [
        ("", "hive", "", "iceberg"),
        ("hive", "hive", "", "iceberg"),
        (REST, "rest", "https://catalog.example.com/api", "prod_lake"),
        ("http://h:8181/", "rest", "http://h:8181", "lakehouse"),
        (SQL, "sql", SQL.replace("/etc/ca", "%2Fetc%2Fca"), "lakehouse"),
        ("postgres://h/d#x", "sql", "postgresql://h:5432/d", "x"),
        ("postgresql://u%40org@[::1]/d", "sql", "postgresql://u%40org@[::1]:5432/d", "lakehouse"),
        ("sqlite:////a/b.db", "sql", "sqlite:////a/b.db", "lakehouse"),
    ],
)
def test_address_names_kind_and_catalog(text, kind, uri, name):
    found = IcebergCatalog.parse(text)
    assert (found.kind, found.uri, found.name) == (kind, uri, name)
    assert IcebergCatalog.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://h/", "neither `hive` nor"),
        ("h:5432", "neither `hive` nor"),
        ("postgresql://u:hidden@h/d", "holds a password.*GAZETTE_ICEBERG_PASSWORD_FILE"),
        ("https://u:hidden@h/", "holds a password"),
        ("https://hidden@h/", "HOST/PATH"),
        ("https://h/?token=hidden", "warehouse=NAME"),
        ("postgresql://h/d?password=hidden", "it may have sslmode"),
        ("postgresql:///d?host=/run", "it may have sslmode"),
        ("postgresql:///d", "no socket"),
        ("postgresql://h", "DATABASE"),
        ("postgresql://u:hidden@h:x/d", "is malformed"),
        ("postgresql://u:hidden@[h/d", "is malformed"),
        ("sqlite:///b.db", "absolute"),
        ("https://h/#iceberg", "not a free name"),
        ("https://h/#a.b", "not a free name"),
        ("https://h/#Spark_Catalog", "not a free name"),
    ],
)
def test_address_that_is_none_is_refused_and_not_quoted(text, says):
    with pytest.raises(ValidationError, match=says) as refused:
        IcebergCatalog.parse(text)
    assert "hidden" not in str(refused.value)
    assert str(refused.value).startswith("GAZETTE_ICEBERG_CATALOG: ")


def test_settings_come_from_variables_or_the_endpoints_file(tmp_path):
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"catalog": "https://h/#one"}))
    found = LakeSettings.from_environment({"GAZETTE_ENDPOINTS": str(path)})
    assert (found.iceberg_catalog.name, found.trino_catalogs.typed) == ("one", "one")
    told = settings("https://h/#Two", GAZETTE_ENDPOINTS=str(path), GAZETTE_JDBC_JAR="/j")
    assert (told.iceberg_catalog.name, told.trino_catalogs.typed, told.jdbc_jar) == (
        "Two", "two", "/j",
    )  # fmt: skip
    assert settings("", GAZETTE_TRINO_ICEBERG_CATALOG="lake").trino_catalogs.typed == "lake"
    other = settings("https://h/", GAZETTE_TRINO_TYPED_CATALOG="other")
    assert (other.trino_catalogs.iceberg, other.trino_catalogs.typed) == ("iceberg", "other")


# ------------------------------------------------------------------------ who asks


@pytest.mark.parametrize(
    ("catalog", "environment", "says"),
    [
        (REST, {"TOKEN": "hidden", "CREDENTIAL": "a:hidden"}, "not both"),
        (REST, {"CREDENTIAL": "hidden"}, "ID:SECRET"),
        (REST, {"CREDENTIAL": ":hidden"}, "ID:SECRET"),
        (REST, {"TOKEN": "hidden", "TOKEN_FILE": "/x"}, "TOKEN or GAZETTE_ICEBERG_TOKEN_FILE"),
        ("http://catalog:8181", {"TOKEN": "hidden"}, "not https"),
        (SQL, {"PASSWORD_FILE": "/not/there"}, "cannot read GAZETTE_ICEBERG_PASSWORD_FILE"),
    ],
)
def test_login_that_cannot_be_is_refused(catalog, environment, says):
    told = {f"GAZETTE_ICEBERG_{name}": value for name, value in environment.items()}
    with pytest.raises((ValidationError, SetupError), match=says) as refused:
        CatalogLogin.from_environment(IcebergCatalog.parse(catalog), told)
    assert "hidden" not in str(refused.value)


def test_login_is_of_its_kind_of_catalog_and_not_shown(tmp_path):
    path = tmp_path / "password"
    path.write_text("hidden\n")
    environment = {"GAZETTE_ICEBERG_PASSWORD_FILE": str(path), "GAZETTE_ICEBERG_TOKEN": "hidden"}
    for text in (SQL, REST, "http://localhost:8181"):
        catalog = IcebergCatalog.parse(text)
        login = CatalogLogin.from_environment(catalog, environment)
        assert bool(login.password) == (catalog.kind == "sql")
        assert bool(login.token) == (catalog.kind == "rest")
        assert "hidden" not in repr(login)
    assert CatalogLogin.from_environment(IcebergCatalog(), environment) == CatalogLogin()


# ------------------------------------------------------------------------ engines


def test_spark_has_one_catalog_more_for_typed_tables(monkeypatch):
    monkeypatch.setenv("GAZETTE_ICEBERG_PASSWORD", "hidden")
    hive = spark_configuration(settings(""))
    told = spark_configuration(settings(SQL))
    assert told.items() >= hive.items()
    prefix = "spark.sql.catalog.lakehouse"
    more = {name: value for name, value in told.items() if name.startswith(prefix)}
    assert more == {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": JDBC,
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.jdbc.user": "iceberg",
        f"{prefix}.warehouse": "s3://w",
        f"{prefix}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        f"{prefix}.cache-enabled": "false",
    }
    assert _secrets(told) == {f"{prefix}.jdbc.password": "hidden"}
    assert _secrets(hive) == {}


def test_spark_asks_a_rest_server_for_tokens(monkeypatch):
    monkeypatch.setenv("GAZETTE_ICEBERG_CREDENTIAL", "a:hidden")
    told = spark_configuration(settings(REST))
    prefix = "spark.sql.catalog.prod_lake"
    assert told[f"{prefix}.uri"] == "https://catalog.example.com/api"
    assert told[f"{prefix}.warehouse"] == "prod"
    assert _secrets(told) == {
        f"{prefix}.credential": "a:hidden",
        f"{prefix}.oauth2-server-uri": "https://catalog.example.com/api/v1/oauth/tokens",
    }
    monkeypatch.setenv("GAZETTE_ICEBERG_OAUTH2_URI", "https://login/t")
    monkeypatch.setenv("GAZETTE_ICEBERG_SCOPE", "s")
    assert _secrets(told)[f"{prefix}.oauth2-server-uri"] == "https://login/t"
    assert _secrets(told)[f"{prefix}.scope"] == "s"


def test_driver_of_the_database_is_where_java_looks_for_it(tmp_path):
    jar = tmp_path / "driver.jar"
    told = replace(settings(SQL), jdbc_jar=str(jar))
    with pytest.raises(SetupError, match="GAZETTE_JDBC_JAR"):
        spark_configuration(told)
    jar.touch()
    found = spark_configuration(told)
    assert found["spark.driver.extraClassPath"] == str(jar)
    assert "spark.executor.extraClassPath" not in found
    cluster = spark_configuration(replace(told, spark_master="spark://h:7077"))
    assert cluster["spark.driver.extraClassPath"] == str(jar)
    assert "spark.jars" not in cluster


def test_dagster_shows_no_secret(monkeypatch):
    for name in ("PASSWORD", "TOKEN"):
        monkeypatch.setenv(f"GAZETTE_ICEBERG_{name}", "hidden")
    for address in (SQL, REST):
        resources = platform_resources(settings(address))
        assert str(IcebergCatalog.parse(address)) in repr(resources["lake"])
        assert "hidden" not in repr(resources)
    assert platform_resources(settings(REST))["trino"].catalogs.typed == "prod_lake"


def test_catalog_in_a_database_needs_a_warehouse():
    with pytest.raises(SetupError, match="GAZETTE_WAREHOUSE"):
        typed_catalog(LakeSettings(iceberg_catalog=IcebergCatalog.parse(SQL)), environment={})


# ------------------------------------------------------------------------ as the guide says


def blocks(word):
    """Of the guide: addresses, and the properties that it names for each."""
    text = (Path(__file__).parents[2] / "docs" / "guides" / "catalogs.md").read_text()
    for address, body in re.findall(
        rf"^```properties {word}=(\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        lines = [line for line in body.splitlines() if not line.startswith("#")]
        yield address, dict(re.split(r"[ =]+", line, maxsplit=1) for line in lines)


def login_of(address):
    environment = {"GAZETTE_ICEBERG_PASSWORD": "…", "GAZETTE_ICEBERG_CREDENTIAL": "ID:SECRET"}
    catalog = IcebergCatalog.parse(address)
    return catalog, environment, CatalogLogin.from_environment(catalog, environment)


def test_guide_gives_spark_the_settings_of_the_platform(monkeypatch):
    found = dict(blocks("spark"))
    assert len(found) == 2
    for address, told in found.items():
        _, environment, _ = login_of(address)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        ours = spark_configuration(settings(address, GAZETTE_WAREHOUSE="s3://lake/warehouse"))
        ours |= _secrets(ours)
        assert told.items() <= ours.items()
        prefix = "spark.sql.catalog.lakehouse"
        assert {name for name in ours if name.startswith(prefix)} <= set(told)


def test_guide_gives_trino_the_settings_of_the_platform():
    found = dict(blocks("trino"))
    assert len(found) == 2
    for address, told in found.items():
        catalog, _, login = login_of(address)
        assert told == catalog.trino("s3://lake/warehouse") | login.trino(catalog)[0]


# ------------------------------------------------------------------------ in a file


def test_catalog_in_a_file_is_found_again(tmp_path):
    address = IcebergCatalog.parse(f"sqlite:///{tmp_path}/catalog.db#mine")
    told = LakeSettings(iceberg_catalog=address, warehouse=tmp_path.as_uri())
    catalog = typed_catalog(told, environment={})
    assert catalog.name == "mine"
    assert catalog.new_location("typed.t").startswith(f"{tmp_path.as_uri()}/typed.db/t-")
    assert catalog.handle("typed.t").load() is None
    assert address.jdbc_uri == f"jdbc:sqlite:{tmp_path}/catalog.db"


def test_workers_get_what_opens_stores_and_nothing_of_the_catalog(tmp_path):
    """A server may add a token to what it says of a table, and PyIceberg objects of its own."""
    more = {"token": "hidden", "s3.region": "eu", "s3.access-key-id": "for the store"}
    catalog = SqlCatalog("x", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri(), **more)
    catalog.create_namespace("typed")
    catalog.create_table("typed.t", Schema(NestedField(1, "n", LongType())))
    loaded = CatalogHandle(catalog, "typed.t").load()
    assert dict(loaded.io.properties) == {"s3.region": "eu", "s3.access-key-id": "for the store"}
    catalog.close()


# ------------------------------------------------------------------------ of a platform


def platform(tmp_path, monkeypatch, **given):
    for name in ("etcd", "trino"):
        monkeypatch.setattr(tools, name, lambda name=name: tmp_path / name)
    for name in ("iceberg_spark_runtime", "postgres_driver"):
        monkeypatch.setattr(tools, name, lambda name=name: tmp_path / f"{name}.jar")
    monkeypatch.setattr(tools, "java", lambda _: tmp_path / "java")
    options = PlatformOptions(
        metastore="thrift://hms:9083", without=frozenset({"dagster", "broker"}), **given
    )
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    layout = PlatformDir.at(tmp_path / "root")
    return layout, endpoints_of(options, ports), components_of(layout, options, ports)


def test_platform_gives_the_catalog_to_programs_and_trino(tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_ICEBERG_PASSWORD", "hidden")
    layout, endpoints, components = platform(tmp_path, monkeypatch, catalog=SQL)
    told = environment_of(layout, endpoints, has_trino=True)
    assert told["GAZETTE_ICEBERG_CATALOG"] == str(IcebergCatalog.parse(SQL))
    assert told["GAZETTE_TRINO_TYPED_CATALOG"] == "lakehouse"
    assert told["GAZETTE_JDBC_JAR"] == str(tmp_path / "postgres_driver.jar")
    assert "hidden" not in json.dumps(told)
    file = layout.trino / "etc" / "catalog" / "lakehouse.properties"
    found = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert found["iceberg.jdbc-catalog.connection-url"] == JDBC
    assert found["iceberg.jdbc-catalog.catalog-name"] == "lakehouse"
    assert found["iceberg.jdbc-catalog.connection-user"] == "iceberg"
    password = found["iceberg.jdbc-catalog.connection-password"]
    assert password == "${ENV:GAZETTE_ICEBERG_PASSWORD}"
    assert found["fs.hadoop.enabled"] == "true"
    (server,) = (one for one in components if one.name == "trino")
    assert server.environment["GAZETTE_ICEBERG_PASSWORD"] == "hidden"
    assert "hidden" not in " ".join(server.command)


def test_trino_has_a_rest_catalog_by_its_token(tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_ICEBERG_TOKEN", "hidden")
    layout, _, _ = platform(tmp_path, monkeypatch, catalog=REST)
    file = layout.trino / "etc" / "catalog" / "prod_lake.properties"
    found = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert found["iceberg.rest-catalog.uri"] == "https://catalog.example.com/api"
    assert found["iceberg.rest-catalog.warehouse"] == "prod"
    assert found["iceberg.rest-catalog.security"] == "OAUTH2"
    assert found["iceberg.rest-catalog.oauth2.token"] == "${ENV:GAZETTE_ICEBERG_TOKEN}"


def test_platform_without_a_catalog_is_as_it_was(tmp_path, monkeypatch):
    layout, endpoints, _ = platform(tmp_path, monkeypatch)
    assert endpoints.catalog == ""
    told = environment_of(layout, endpoints, has_trino=True)
    assert told["GAZETTE_TRINO_TYPED_CATALOG"] == "iceberg"
    assert not {"GAZETTE_ICEBERG_CATALOG", "GAZETTE_JDBC_JAR"} & set(told)
    files = {file.name for file in (layout.trino / "etc" / "catalog").iterdir()}
    assert files == {"hive.properties", "iceberg.properties", "tpch.properties"}


def test_catalog_that_trino_cannot_read_is_refused():
    with pytest.raises(ValidationError, match=r"--catalog: Trino cannot read a catalog in a file"):
        PlatformOptions(catalog="sqlite:////a.db")
    PlatformOptions(catalog="sqlite:////a.db", without=frozenset({"trino"}))
    with pytest.raises(ValidationError, match=r"--catalog: .* neither"):
        PlatformOptions(catalog="nonsense")


def test_options_and_settings_travel():
    assert pickle.loads(pickle.dumps(settings(SQL))) == settings(SQL)
