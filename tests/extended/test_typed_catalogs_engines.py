"""Typed tables in an Iceberg REST catalog and in PostgreSQL, as Spark and Trino are configured for them."""

from dataclasses import replace

import pytest
from lake_servers import configured_spark_session
from typed_commits import PROGRESS, SparkTable
from typed_merges import keyed, said, upsert
from typed_world import JOURNAL, Held, publish

from gazette_platform.errors import TableFenced
from gazette_platform.lake.catalog_settings import CatalogLogin, TrinoCatalogs
from gazette_platform.lake.engines.doctor import look_at_trino
from gazette_platform.lake.engines.spark import spark_configuration
from gazette_platform.platform import tools
from gazette_platform.platform.servers import ExtraCatalog
from gazette_platform.spark.typed_workers import SparkMerger

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(500),  # the first test pays for the start of five servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# As of any catalog of Iceberg's that the platform's Trino has.
STORES = {"fs.hadoop.enabled": "true", "iceberg.expire-snapshots.min-retention": "0s"}


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
def told_trino(places, trino):
    """The live Trino, with both catalogs as the platform configures its own. It has their secrets from its environment."""
    made = []
    for place in places.values():
        catalog = place.settings.iceberg_catalog
        login = CatalogLogin.from_environment(catalog, place.environment)
        extra = ExtraCatalog.of(catalog, login, place.settings.warehouse)
        told = {**extra.properties, **STORES}
        assert not set(told.values()) & set(place.environment.values())
        for name, value in extra.environment.items():
            told = {key: text.replace(f"${{ENV:{name}}}", value) for key, text in told.items()}
        connector = told.pop("connector.name")
        listed = ", ".join(f"\"{key}\" = '{value}'" for key, value in told.items())
        trino.query(f"CREATE CATALOG {extra.name} USING {connector} WITH ({listed})")
        made.append(extra.name)
    yield trino
    for name in made:
        trino.query(f"DROP CATALOG {name}")


@pytest.fixture(params=["rest", "sql"])
def table(request, places):
    return places[request.param].table()


def in_spark(table, spark):
    return SparkTable(spark, table.name, catalog=table.place.catalog().name)


def test_spark_reads_what_is_published_and_its_maintenance_loses_no_progress(table, spark):
    first = table.open()
    publish(table.handle(), first, [1, 2], run="one")
    late = table.open()
    publish(table.handle(), late, [3], run="two")
    seen = in_spark(table, spark)
    assert seen.numbers() == [1, 2, 3]
    tagged = table.open().start
    seen.optimize()
    seen.expire()
    refs = {name: snapshot for snapshot, name in seen.refs()}
    assert refs[PROGRESS] == tagged != refs["main"]
    for zombie in (first, late):
        with pytest.raises(TableFenced):
            publish(table.handle(), zombie, [9])
    again = table.open()
    assert (again.run, again.state.journals[JOURNAL].offset) == ("two", 30)
    # Maintenance comes between what a run looks at and what it commits.
    publish(Held(table.handle(), seen.optimize), again, [4])
    assert seen.numbers() == [1, 2, 3, 4]
    assert table.open().state.journals[JOURNAL].offset == 40


def test_spark_merges_by_key_again_behind_maintenance_and_zombies_are_fenced(table, spark):
    seen = in_spark(table, spark)
    catalog = table.place.catalog().name

    class Between:
        """Spark, behind whose first merge the table is optimized."""

        def __init__(self):
            self.merges = 0

        def merge(self, merge):
            SparkMerger(spark).merge(merge)
            self.merges += 1
            if self.merges == 1:
                seen.optimize()

    first = table.open(keyed())
    upsert(
        table.handle(),
        first,
        [said(1, "a", 10), said(2, "a", 20)],
        merger=SparkMerger(spark),
        catalog=catalog,
    )
    between = Between()
    rows = [said(1, "b", 30), said(3, "b", 40), said(2, "old", 15)]
    upsert(table.handle(), table.open(keyed()), rows, merger=between, catalog=catalog)
    assert between.merges == 2
    with pytest.raises(TableFenced):
        upsert(table.handle(), first, [said(1, "zombie", 99)], merger=between, catalog=catalog)
    assert sorted(seen.sql(f"SELECT n, k FROM {seen.full_name}")) == [(1, "b"), (2, "a"), (3, "b")]


@pytest.mark.trino
def test_trino_reads_what_is_published_and_its_maintenance_loses_no_progress(table, told_trino):
    publish(table.handle(), table.open(), [1, 2], run="one")
    name = f"{table.place.catalog().name}.{table.name}"
    assert told_trino.query(f"SELECT n, _journal FROM {name} WHERE k = 'k2'") == [(2, JOURNAL)]
    tagged = table.open().start
    told_trino.query(f"ALTER TABLE {name} EXECUTE optimize")
    told_trino.query(f"ALTER TABLE {name} EXECUTE expire_snapshots(retention_threshold => '0s')")
    again = table.open()
    assert (again.start, again.run) == (tagged, "one")
    publish(table.handle(), again, [3])
    assert told_trino.query(f"SELECT n FROM {name} ORDER BY n") == [(1,), (2,), (3,)]


@pytest.mark.trino
@pytest.mark.parametrize(("name", "state"), [("sql_lake", "ok"), ("nowhere", "warning")])
def test_doctor_looks_for_the_catalog_of_typed_tables_in_trino(told_trino, name, state):
    found = list(look_at_trino(told_trino, None, [], catalogs=TrinoCatalogs(typed=name)))
    (about,) = [one for one in found if f"`{name}`" in one.text]
    assert about.state == state
    assert (state == "ok") != ("GAZETTE_TRINO_TYPED_CATALOG" in about.advice)
