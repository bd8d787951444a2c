"""Typed tables in an Iceberg REST catalog and in PostgreSQL, as Spark and Trino are configured for them."""

from dataclasses import replace

import pytest
from lake_servers import configured_spark_session, running
from typed_commits import PROGRESS, SparkTable
from typed_world import JOURNAL, Held, publish

from gazette_platform.embedded import tools
from gazette_platform.embedded.ports import choose_ports
from gazette_platform.embedded.trino import ExtraCatalog, trino_components
from gazette_platform.errors import TypedFenced
from gazette_platform.lake.iceberg_catalog import CatalogLogin
from gazette_platform.lake.spark import spark_configuration
from gazette_platform.lake.trino import TrinoSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),  # the first test pays for the start of four servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def spark(places):
    """A session with both catalogs. It needs no metastore, for it reads no raw table."""
    configuration = {}
    for place in places.values():
        settings = replace(
            place.settings,
            metastore="thrift://127.0.0.1:1",
            iceberg_jar=str(tools.iceberg_spark_runtime()),
            jdbc_jar=str(tools.postgres_driver()),
        )
        configuration |= spark_configuration(settings)
    secrets = {
        name: value for place in places.values() for name, value in place.environment.items()
    }
    assert not set(secrets.values()) & set(configuration.values())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secrets.items():
            patch.setenv(name, value)
        with configured_spark_session(configuration) as session:
            yield session


@pytest.fixture(scope="module")
def own_trino(places, tmp_path_factory):
    """A Trino with both catalogs, and no other."""
    folder = tmp_path_factory.mktemp("trino")
    port = choose_ports(["trino"])["trino"]
    extra = []
    for place in places.values():
        catalog = place.settings.iceberg_catalog
        login = CatalogLogin.from_environment(catalog, place.environment)
        extra.append(ExtraCatalog.of(catalog, login, place.settings.warehouse))
    guard, server = trino_components(
        folder / "trino", port=port, metastore="", uses=(), extra=extra
    )
    with running(guard, folder / "guard.log"), running(server, folder / "trino.log"):
        yield TrinoSession(f"http://127.0.0.1:{port}")
    for file in (folder / "trino" / "etc").rglob("*.properties"):
        for place in places.values():
            assert not any(secret in file.read_text() for secret in place.environment.values())


@pytest.fixture(params=["rest", "sql"])
def table(request, places):
    return places[request.param].table()


def in_spark(table, spark):
    return SparkTable(spark, table.name, catalog=table.place.catalog().name)


def test_spark_reads_what_is_published_and_its_maintenance_loses_no_progress(table, spark):
    first = table.open()
    publish(table.door(), first, [1, 2], run="one")
    late = table.open()
    publish(table.door(), late, [3], run="two")
    seen = in_spark(table, spark)
    assert seen.numbers() == [1, 2, 3]
    tagged = table.open().start
    seen.optimize()
    seen.expire()
    refs = {name: snapshot for snapshot, name in seen.refs()}
    assert refs[PROGRESS] == tagged != refs["main"]
    for zombie in (first, late):
        with pytest.raises(TypedFenced):
            publish(table.door(), zombie, [9])
    again = table.open()
    assert (again.run, again.state.journals[JOURNAL].offset) == ("two", 30)
    # Maintenance comes between what a run looks at and what it commits.
    publish(Held(table.door(), seen.optimize), again, [4])
    assert seen.numbers() == [1, 2, 3, 4]
    assert table.open().state.journals[JOURNAL].offset == 40


@pytest.mark.trino
@pytest.mark.slow
def test_trino_reads_what_is_published_and_its_maintenance_loses_no_progress(table, own_trino):
    publish(table.door(), table.open(), [1, 2], run="one")
    name = f"{table.place.catalog().name}.{table.name}"
    assert own_trino.query(f"SELECT n, _journal FROM {name} WHERE k = 'k2'") == [(2, JOURNAL)]
    tagged = table.open().start
    own_trino.query(f"ALTER TABLE {name} EXECUTE optimize")
    own_trino.query(f"ALTER TABLE {name} EXECUTE expire_snapshots(retention_threshold => '0s')")
    again = table.open()
    assert (again.start, again.run) == (tagged, "one")
    publish(table.door(), again, [3])
    assert own_trino.query(f"SELECT n FROM {name} ORDER BY n") == [(1,), (2,), (3,)]
