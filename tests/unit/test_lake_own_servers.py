"""Servers of your own: how Trino is asked and what it calls its catalogs, and what Spark gets."""

import base64
import contextlib
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import sqlglot
from sqlglot import exp

from gazette_platform.errors import LakeError, SetupError, ValidationError
from gazette_platform.hive import JSON_STORAGE, HiveColumn, HiveTable
from gazette_platform.lake import LakeSettings, parse_table_spec
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.engines.spark import (
    combined,
    is_connect,
    is_local,
    open_session,
    parse_properties,
    spark_configuration,
)
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession
from gazette_platform.lake.iceberg.snapshots import maintenance_statements
from gazette_platform.lake.raw.views import exact_view
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import (
    SourceTable,
    StagingTable,
    create_staging,
    insert_staging,
)
from gazette_platform.platform import tools
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.platform.platform import (
    PlatformOptions,
    components_of,
    endpoints_of,
    environment_of,
)
from gazette_platform.resources import SparkResource, TrinoResource, platform_resources

OTHER = TrinoCatalogs(hive="raw-lake", iceberg="lake")


# ------------------------------------------------------------------------ catalogs


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM hive.s.t", 'SELECT 1 FROM "raw-lake".s.t'),
        ('FROM hive.s."t$partitions", iceberg.s.t', 'FROM "raw-lake".s."t$partitions", "lake".s.t'),
        ("CREATE SCHEMA IF NOT EXISTS iceberg.s", 'CREATE SCHEMA IF NOT EXISTS "lake".s'),
        (
            "SELECT archive.s.t, x.hive.y, hive, iceberg",
            "SELECT archive.s.t, x.hive.y, hive, iceberg",
        ),
    ],
)
def test_catalogs_are_named_as_the_server_does(sql, expected):
    assert OTHER.in_sql(sql) == expected
    assert TrinoCatalogs().in_sql(sql) == sql


def test_rollups_are_made_and_looked_after_by_the_names_given():
    spec = RollupSpec(
        name="r.a",
        engine="trino",
        sql="SELECT * FROM raw JOIN made USING (day)",
        sources={"raw": "s.t", "made": "r.b"},
        slices=("day",),
    )
    sources = {
        "raw": SourceTable(schema="s", table="t_exact", is_iceberg=False, types={"day": "string"}),
        "made": SourceTable(schema="r", table="b", is_iceberg=True, types={}),
    }
    staging = StagingTable(name="a_1", location="file:///w/a", slices=("day",))
    trino = [
        statement("trino", staging, spec, sources, [("1",)], catalogs=OTHER)
        for statement in (create_staging, insert_staging)
    ]
    for sql in trino:
        (tree,) = sqlglot.parse(sql, read="trino")
        named = {t.name: t.catalog for t in tree.find_all(exp.Table) if t.catalog}
        assert named == {"a_1": "lake", "t_exact": "raw-lake", "b": "lake"}
    upkeep = maintenance_statements("trino", spec.name, now_s=0.0, catalog=OTHER.iceberg)
    assert all(sql.startswith('ALTER TABLE "lake"."r"."a" EXECUTE') for sql in upkeep)
    # Spark's catalogs have the names that the platform gives them.
    for statement in (create_staging, insert_staging):
        named = statement("spark", staging, spec, sources, [("1",)], catalogs=OTHER)
        assert named == statement("spark", staging, spec, sources, [("1",)])


@pytest.mark.parametrize("name", ["", "Lake", "a.b", 'a"b', "a b"])
def test_a_name_that_no_catalog_has_is_refused(name):
    with pytest.raises(ValidationError, match="GAZETTE_TRINO_CATALOG: not a catalog's name"):
        TrinoCatalogs(hive=name)


def test_settings_and_resources_carry_the_names():
    settings = LakeSettings.from_environment(
        {"GAZETTE_TRINO_CATALOG": "raw-lake", "GAZETTE_TRINO_ICEBERG_CATALOG": "lake"}
    )
    assert settings.trino_catalogs == OTHER
    assert LakeSettings.from_environment({}).trino_catalogs == TrinoCatalogs()
    found = platform_resources(replace(settings, trino="http://t:1"))
    assert found["trino"].catalogs == OTHER
    assert found["lake"].trino_catalog == "raw-lake"


def test_the_exact_view_names_the_catalog():
    spec = parse_table_spec(
        "{name: s.t, selector: name=j, format: json, columns: [{name: id, type: bigint}]}"
    )
    table = HiveTable(
        database="s",
        name="t",
        location="file:///t",
        columns=(HiveColumn(name="id", type="bigint"),),
        partition_columns=(),
        storage=JSON_STORAGE,
        parameters={},
    )
    view = exact_view(spec, table, {}, catalog="raw-lake")
    definition = json.loads(base64.b64decode(view.view_original.split()[3]))
    assert (definition["catalog"], definition["schema"]) == ("raw-lake", "s")


# ------------------------------------------------------------------------ logins


def test_a_login_of_the_environment(tmp_path):
    assert TrinoLogin.from_environment({}) == TrinoLogin(user="gazette")
    secret = tmp_path / "password"
    secret.write_text("first\n")
    environment = {"GAZETTE_TRINO_USER": "ada", "GAZETTE_TRINO_PASSWORD_FILE": str(secret)}
    login = TrinoLogin.from_environment(environment)
    assert (login.user, login.password) == ("ada", "first")
    assert "first" not in repr(login)
    secret.write_text("second")  # renewed
    assert TrinoLogin.from_environment(environment, user="eve").password == "second"
    assert TrinoLogin.from_environment(environment, user="eve").user == "eve"
    token = TrinoLogin.from_environment({"GAZETTE_TRINO_TOKEN": "t.o.k"})
    assert token.token == "t.o.k"
    assert "t.o.k" not in repr(token)


@pytest.mark.parametrize(
    ("environment", "error", "says"),
    [
        (
            {"GAZETTE_TRINO_PASSWORD": "a", "GAZETTE_TRINO_TOKEN": "b"},
            ValidationError,
            "set one of GAZETTE_TRINO_PASSWORD and GAZETTE_TRINO_TOKEN",
        ),
        (
            {"GAZETTE_TRINO_PASSWORD": "a", "GAZETTE_TRINO_PASSWORD_FILE": "/x"},
            ValidationError,
            "not both",
        ),
        ({"GAZETTE_TRINO_CERT_FILE": "/c"}, ValidationError, "needs both"),
        ({"GAZETTE_TRINO_TOKEN_FILE": "/no/such"}, SetupError, "GAZETTE_TRINO_TOKEN_FILE=/no/such"),
        ({"GAZETTE_TRINO_TOKEN_FILE": "/dev/null"}, SetupError, "is empty"),
    ],
)
def test_a_login_that_cannot_be(environment, error, says):
    with pytest.raises(error, match=says):
        TrinoLogin.from_environment(environment)


def test_no_proof_goes_over_plain_http(monkeypatch):
    for login in (
        TrinoLogin(password="p"),
        TrinoLogin(token="t"),
        TrinoLogin(cert_file="c", cert_key_file="k"),
    ):
        with pytest.raises(ValidationError, match=r"http://t:1 is not https://"):
            TrinoSession("http://t:1", login=login)
        TrinoSession("https://t:1", login=login)
    monkeypatch.setenv("GAZETTE_TRINO_PASSWORD", "p")
    with pytest.raises(ValidationError, match="is not https://"):
        TrinoResource(uri="http://t:1").query("SELECT 1")


@contextlib.contextmanager
def answering(status, body):
    """A server that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b"Unauthorized", r"does not let 'gazette' in .*GAZETTE_TRINO_PASSWORD.*want https"),
        (403, b"", r"does not let 'gazette' in"),
        (404, b"x" * 5000, r"answered error 404.{,400}$"),
        (200, b"<html>Please log in</html>", "is not Trino"),
    ],
)
def test_answer_that_is_not_trinos_is_reported(status, body, says):
    with answering(status, body) as uri, pytest.raises(LakeError, match=says):
        TrinoSession(uri).query("SELECT 1")


# ------------------------------------------------------------------------ Spark


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[1,1,512]", True),
        ("spark://h:7077", False),
        ("yarn", False),
        ("k8s://https://h", False),
        ("localhost", False),
    ],
)
def test_only_a_local_spark_is_on_loopback(master, local, tmp_path):
    assert is_local(master) is local
    jar = tmp_path / "iceberg.jar"
    jar.touch()
    settings = LakeSettings(
        metastore="thrift://m:1",
        warehouse="file:///w",
        iceberg_jar=str(jar),
        spark_master=master,
    )
    found = spark_configuration(settings)
    assert ("spark.driver.host" in found) is local
    assert ("spark.driver.bindAddress" in found) is local
    assert found.get("spark.jars") == (None if local else str(jar))
    assert ("spark.executor.extraClassPath" in found) is local


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,512]", "local-cluster[2,1,512]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_a_local_spark_tries_tasks_again_as_clusters_do(master, told):
    found = spark_configuration(LakeSettings(metastore="thrift://m:1", spark_master=master))
    assert found["spark.master"] == told


def test_spark_connect_server_gets_what_a_session_can_say():
    settings = LakeSettings(
        metastore="thrift://m:1",
        warehouse="s3://b/w",
        iceberg_jar="provided",
        store="s3://b/?region=r",
        s3_jars="/jars",
        spark_master="sc://h:15002/;user_id=me",
    )
    assert is_connect(settings.spark_master)
    assert not is_local(settings.spark_master)
    found = spark_configuration(settings)
    assert found.pop("spark.master") == settings.spark_master
    assert found["spark.sql.catalog.iceberg.uri"] == "thrift://m:1"
    assert all(name.startswith("spark.sql.") for name in found)
    assert "spark.sql.extensions" not in found
    without = spark_configuration(replace(settings, iceberg_jar=""))
    assert set(without) == {
        "spark.master",
        "spark.sql.json.filterPushdown.enabled",
        "spark.sql.session.timeZone",
    }
    for url in ("sc://h/;token=abc", "sc://h:1/;use_ssl=true;token=abc"):
        with pytest.raises(ValidationError, match="SPARK_CONNECT_AUTHENTICATE_TOKEN") as refused:
            spark_configuration(replace(settings, spark_master=url))
        assert "abc" not in str(refused.value)


def test_absent_spark_connect_server_is_reported_at_once():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    with pytest.raises(LakeError, match=f"cannot be reached at 127.0.0.1:{port}: .*refused"):
        open_session({"spark.master": f"sc://127.0.0.1:{port}"})


def test_jars_of_a_cluster_are_named_one_by_one(tmp_path):
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    settings = LakeSettings(
        metastore="thrift://m:1",
        warehouse="s3://b/w",
        iceberg_jar="provided",
        store="s3://b/?region=r",
        s3_jars=str(tmp_path),
        spark_master="spark://h:7077",
    )
    found = spark_configuration(settings)
    assert found["spark.jars"] == f"{tmp_path}/a.jar,{tmp_path}/b.jar"
    assert found["spark.sql.catalog.iceberg.type"] == "hive"
    assert "spark.jars" not in spark_configuration(replace(settings, s3_jars=""))
    assert "spark" in platform_resources(settings)


def test_properties_of_spark():
    text = "# ours\n\nspark.executor.memory  4g\nspark.driver.host=10.0.0.5\n! no\nspark.a : b c\nspark.x=1,\\\n  2\n"
    assert parse_properties(text, "f") == {
        "spark.executor.memory": "4g",
        "spark.driver.host": "10.0.0.5",
        "spark.a": "b c",
        "spark.x": "1,2",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spark.a 1\nspark.b", r"f:2: expected a property and its value"),
        ("spark.b=", r"f:1: expected"),
        (
            "fs.s3a.endpoint=x",
            r"f:1: fs.s3a.endpoint is not a property of Spark \(.*spark\.hadoop\.",
        ),
        ("spark.master yarn", r"f:1: the master is set by GAZETTE_SPARK_MASTER"),
        ("spark.a 1 \\", "f: the last line"),
    ],
)
def test_properties_that_are_none(text, says):
    with pytest.raises(ValidationError, match=says):
        parse_properties(text, "f")


def test_properties_win_and_lists_are_joined():
    ours = {
        "spark.driver.host": "127.0.0.1",
        "spark.jars": "a.jar",
        "spark.sql.extensions": "A",
        "spark.driver.extraJavaOptions": "-Da",
    }
    given = {
        "spark.driver.host": "h",
        "spark.jars": "b.jar",
        "spark.driver.extraClassPath": "/c",
        "spark.driver.extraJavaOptions": "-Db",
    }
    assert combined(ours, given) == {
        "spark.driver.host": "h",
        "spark.jars": "a.jar,b.jar",
        "spark.sql.extensions": "A",
        "spark.driver.extraJavaOptions": "-Da -Db",
        "spark.driver.extraClassPath": "/c",
    }


def test_dagster_shows_no_property_of_the_file(tmp_path):
    path = tmp_path / "spark.conf"
    path.write_text("spark.hadoop.fs.s3a.secret.key hidden\n")
    settings = LakeSettings.from_environment(
        {
            "GAZETTE_METASTORE_URI": "thrift://m:1",
            "GAZETTE_WAREHOUSE": "file:///w",
            "GAZETTE_ICEBERG_JAR": "provided",
            "GAZETTE_SPARK_PROPERTIES": str(path),
        }
    )
    spark = platform_resources(settings)["spark"]
    assert isinstance(spark, SparkResource)
    assert spark.properties == str(path)
    assert "hidden" not in repr(spark)
    path.write_text("nonsense\n")
    with pytest.raises(ValidationError, match=r"spark.conf:1: expected a property"):
        _ = spark.spark_session
    path.unlink()
    with pytest.raises(SetupError, match=r"cannot read GAZETTE_SPARK_PROPERTIES"):
        _ = spark.spark_context


# ------------------------------------------------------------------------ of a platform


def test_servers_of_ones_own_take_the_place_of_the_platforms(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "etcd", lambda: tmp_path / "etcd")
    monkeypatch.setattr(tools, "iceberg_spark_runtime", lambda: tmp_path / "iceberg.jar")
    monkeypatch.setattr(tools, "java", lambda _: tmp_path / "java")
    options = PlatformOptions(
        metastore="thrift://hms:9083", trino="https://trino:8443", without=frozenset({"dagster"})
    )
    assert not set(options.port_names()) & {"metastore", "trino"}
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    endpoints = endpoints_of(options, ports)
    assert (endpoints.metastore, endpoints.trino) == ("thrift://hms:9083", "https://trino:8443")
    layout = PlatformDir.at(tmp_path / "root")
    names = [each.name for each in components_of(layout, options, ports)]
    assert names == ["etcd", "broker-1", "typed"]
    monkeypatch.delenv("GAZETTE_SPARK_MASTER", raising=False)
    environment = environment_of(layout, endpoints)
    assert environment["GAZETTE_METASTORE_URI"] == "thrift://hms:9083"
    assert environment["GAZETTE_TRINO_URI"] == "https://trino:8443"
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    monkeypatch.setenv("GAZETTE_SPARK_MASTER", "spark://h:7077")
    monkeypatch.setenv("GAZETTE_ICEBERG_JAR", "provided")
    environment = environment_of(layout, endpoints)
    assert not {"SPARK_LOCAL_IP", "PYSPARK_PYTHON"} & set(environment)
    assert environment["GAZETTE_ICEBERG_JAR"] == "provided"


def test_a_trino_of_the_platforms_asks_the_metastore_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "etcd", lambda: tmp_path / "etcd")
    monkeypatch.setattr(tools, "trino", lambda: tmp_path / "trino")
    monkeypatch.setattr(tools, "iceberg_spark_runtime", lambda: tmp_path / "iceberg.jar")
    monkeypatch.setattr(tools, "java", lambda _: tmp_path / "java")
    options = PlatformOptions(metastore="thrift://hms:9083/", without=frozenset({"dagster"}))
    layout = PlatformDir.at(tmp_path / "root")
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    components_of(layout, options, ports)
    catalogs = layout.trino / "etc" / "catalog"
    for name in ("hive", "iceberg"):
        text = (catalogs / f"{name}.properties").read_text()
        assert "hive.metastore.uri=thrift://hms:9083\n" in text


@pytest.mark.parametrize(("trino", "expected"), [("", "hive"), ("http://other:1", None)])
def test_a_trino_of_the_platforms_has_the_names_that_it_was_given(
    tmp_path, monkeypatch, trino, expected
):
    """Whatever the names are that this machine's environment has for another one."""
    monkeypatch.setattr(tools, "etcd", lambda: tmp_path / "etcd")
    monkeypatch.setattr(tools, "trino", lambda: tmp_path / "trino")
    monkeypatch.setattr(tools, "java", lambda _: tmp_path / "java")
    options = PlatformOptions(trino=trino, without=frozenset({"metastore"}))
    layout = PlatformDir.at(tmp_path / "root")
    layout.make()
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    found = {each.name: each.environment for each in components_of(layout, options, ports)}
    for name in ("dagster-code", "dagster", "dagster-daemon"):
        assert found[name].get("GAZETTE_TRINO_CATALOG") == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metastore": "hms:9083"}, "--metastore: expected thrift://host:port"),
        ({"metastore": "thrift://hms"}, "--metastore: expected thrift://host:port"),
        ({"trino": "trino:8443"}, "--trino: expected http://host:port or https://host:port"),
        ({"trino": "https://t:99999"}, "--trino: expected"),
        ({"trino": "https://t:1", "without": frozenset({"trino"})}, "is in --without, too"),
    ],
)
def test_addresses_that_are_none(given, says):
    with pytest.raises(ValidationError, match=says):
        PlatformOptions(**given)
