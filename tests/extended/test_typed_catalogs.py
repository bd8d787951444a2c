"""Typed tables in an Iceberg REST catalog and in PostgreSQL: what is promised of publishing, and what becomes of it when these fail."""

import pickle
import re
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cut_wire import cut_wire
from typed_places import Place, Table
from typed_world import JOURNAL, Held, numbers, publish, spec

from gazette_platform.cli.gazctl.lake.check import _of_catalog
from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.iceberg.catalog import CatalogHandle
from gazette_platform.testing.waiting import wait_until


@pytest.fixture(params=["rest", "sql"])
def place(request, places):
    return places[request.param]


def at_once(count, do):
    """What `do` gave or raised, of so many threads that begin together."""
    ready = threading.Barrier(count)

    def one(number):
        ready.wait(20)
        try:
            return do(number)
        except LakeError as err:
            return err

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def outcomes(table):
    """What became of four runs that began together."""
    tables = [table.open() for _ in range(4)]
    return at_once(4, lambda n: publish(table.handle(), tables[n], [n], run=f"run-{n}"))


def test_one_of_four_runs_at_once_is_published(place):
    table = place.table()
    table.open()
    found = outcomes(table)
    assert sum(isinstance(one, TableFenced) for one in found) == 3, found
    ((winner, _),) = [(n, one) for n, one in enumerate(found) if not isinstance(one, LakeError)]
    assert numbers(table.handle()) == [winner]
    assert (table.open().run, table.open().state.journals[JOURNAL].offset) == (f"run-{winner}", 10)


def test_run_goes_on_where_the_last_one_ended_and_a_zombie_is_fenced(place):
    table = place.table()
    first = table.open()
    publish(table.handle(), first, [1, 2], run="one")
    wider = spec(("n bigint", "k string", "more double"))
    second = table.open(wider)
    assert second.state.journals[JOURNAL].offset == 20
    publish(table.handle(), second, [3], run="two")
    for zombie in (first, second):
        with pytest.raises(TableFenced):
            publish(table.handle(), zombie, [9])
    # A second caller gets what became of the first call.
    assert publish(table.handle(), second, [3], run="two").snapshot_id == table.open(wider).start
    assert numbers(table.handle()) == [1, 2, 3]


def test_append_is_published_on_top_of_what_others_did_meanwhile(place):
    """As maintenance does: main moves, and progress stays where it is."""
    table = place.table()
    publish(table.handle(), table.open(), [1])

    def delete():
        table.handle().load().token.delete("n = 1")

    publish(Held(table.handle(), delete), table.open(), [2])
    assert numbers(table.handle()) == [2]
    assert table.open().state.journals[JOURNAL].offset == 20


def test_tables_of_a_new_catalog_are_made_by_many_at_once(places, postgres, tmp_path):
    """So are the tables in which a database has the catalog, and the schema."""
    name = f"new_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    fresh = Place("sql", postgres.uri(name), tmp_path, places["sql"].environment, 0)
    for table in (Table(fresh, "typed.one"), Table(places["rest"], f"{name}.one")):
        found = at_once(8, lambda _, table=table: table.open().metadata.table_uuid)
        assert len(set(found)) == 1, found


@pytest.mark.parametrize("passes_on", [False, True])
@pytest.mark.parametrize(
    ("kind", "word"),
    [("rest", b"set-snapshot-ref"), ("sql", b"UPDATE iceberg_tables"), ("sql", b"COMMIT")],
)
def test_lost_answer_is_found_out_by_asking_again(places, kind, word, passes_on):
    """The connection breaks at the commit, before or after it was carried out."""
    table = places[kind].table()
    began = table.open()
    with cut_wire(table.place.port) as wire:
        cut = table.handle(table.place.at(wire.port))
        wire.word, wire.passes_on = word, passes_on
        with pytest.raises(LakeError, match="broke off"):
            publish(cut, began, [1, 2], run="one")
        assert wire.cuts == 1
        # A database that has the change, and lost who is to confirm it, rolls back.
        assert (table.open().run == "one") == (passes_on and word != b"UPDATE iceberg_tables")
        wire.word = b""
        publish(cut, began, [1, 2], run="one")
    assert numbers(table.handle()) == [1, 2]


@pytest.mark.parametrize("kind", ["rest", "sql"])
def test_server_that_never_answers_is_reported(places, kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = places[kind].at(silent.getsockname()[1])
        with pytest.raises(LakeError, match="cannot be asked"):
            place.patient_for(1)


def test_answer_that_does_not_come_is_asked_for_again(places, postgres):
    """An engine that hangs amid its commit holds the table's row."""
    table = places["sql"].table()
    began = table.open()
    handle = CatalogHandle(places["sql"].patient_for(1), table.name)
    with postgres.connected(places["sql"].database) as engine:
        name = table.name.partition(".")[2]
        engine.execute("SELECT 1 FROM iceberg_tables WHERE table_name = %s FOR UPDATE", (name,))
        with pytest.raises(LakeError, match="broke off"):
            publish(handle, began, [1], run="one")
        engine.rollback()
    publish(handle, began, [1], run="one")
    assert numbers(table.handle()) == [1]


def test_serialization_failure_is_a_conflict_like_others(places, postgres, tmp_path):
    name = f"serial_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    place = Place("sql", postgres.uri(name), tmp_path, places["sql"].environment, 0)
    table = place.table()
    began = table.open()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, postgres.connected(name) as engine:
        engine.execute("UPDATE iceberg_tables SET previous_metadata_location = metadata_location")
        published = pool.submit(publish, table.handle(), began, [1])
        wait_until(lambda: postgres.sql(waiting) == [(1,)])
        engine.commit()
        published.result(60)
    assert numbers(table.handle()) == [1]


def test_no_connection_stays(places, postgres):
    """It would be stale once the database is started again."""
    table = places["sql"].table()
    handle = table.handle()
    publish(handle, table.open(), [1])
    ours = "FROM pg_stat_activity WHERE application_name = 'gazette-platform'"
    assert postgres.sql(f"SELECT count(*) {ours}") == [(0,)]


def test_token_that_has_expired_is_renewed(places, gate):
    table = places["rest"].table()
    handle = table.handle()
    began = table.open()
    before = len(gate.given)
    gate.expire()
    publish(handle, began, [1])
    assert len(gate.given) == before + 1


@pytest.mark.parametrize(
    ("kind", "login", "message"),
    [
        ("sql", {"GAZETTE_ICEBERG_PASSWORD": "wrong"}, "GAZETTE_ICEBERG_PASSWORD"),
        ("rest", {"GAZETTE_ICEBERG_CREDENTIAL": "a-client:wrong"}, "no such client"),
        ("rest", {"GAZETTE_ICEBERG_TOKEN": "wrong"}, "who are you"),
        ("rest", {}, "GAZETTE_ICEBERG_TOKEN"),
    ],
)
def test_refused_user_learns_what_to_set(places, kind, login, message):
    known = places[kind]
    with pytest.raises(LakeError, match=message) as refused:
        Place(kind, known.uri, known.folder, login, known.port).catalog()
    assert "wrong" not in str(refused.value)


def test_doctor_asks_the_catalog(places, monkeypatch):
    place = places["sql"]
    monkeypatch.setenv("GAZETTE_ICEBERG_PASSWORD", "wrong")
    assert _of_catalog(place.settings).state == "error"
    monkeypatch.setenv("GAZETTE_ICEBERG_PASSWORD", place.environment["GAZETTE_ICEBERG_PASSWORD"])
    found = _of_catalog(place.settings)
    assert (found.state, found.text.partition("; ")[2]) == ("ok", "Spark calls it sql_lake")


def test_page_in_place_of_an_answer_is_an_outage(places, gate):
    """As of a proxy before a catalog that is away."""
    table = places["rest"].table()
    began = table.open()
    handle = table.handle()
    gate.page = "<html>come back later</html>"
    try:
        with pytest.raises(LakeError, match="broke off"):
            publish(handle, began, [1])
        with pytest.raises(LakeError, match="cannot be asked"):
            table.handle()
    finally:
        gate.page = ""
    publish(handle, began, [1])


def test_workers_get_what_opens_stores_and_no_secret(place):
    """What reads files goes to executors: as plain text, without what opens the catalog."""
    opened = place.table().open()
    (secret,) = place.environment.values()
    sent = pickle.dumps(dict(opened.io.properties))
    assert secret.encode() not in sent
    assert secret.rpartition(":")[2].encode() not in sent
    assert b"Bearer" not in sent


def test_table_that_is_registered_in_another_catalog_goes_on(places):
    """How far it has come is in the table."""
    table = places["rest"].table()
    publish(table.handle(), table.open(), [1, 2], run="one")
    moved = Table(places["sql"], table.name)
    moved.place.table().open()  # the schema exists then
    target = moved.place.patient_for(60)
    target.register_table(table.name, table.handle().load().token.metadata_location)
    opened = moved.open()
    assert (opened.run, opened.state.journals[JOURNAL].offset) == ("one", 20)
    publish(moved.handle(), opened, [3])
    assert numbers(moved.handle()) == [1, 2, 3]


def test_guide_reads_tables_by_pyiceberg(place, monkeypatch):
    table = place.table()
    publish(table.handle(), table.open(), [1, 2])
    text = (Path(__file__).parents[2] / "docs" / "guides" / "catalogs.md").read_text()
    (code,) = re.findall(
        rf"^```python reads={place.kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    mine = urlsplit(place.uri)
    for written, meant in {
        "https://catalog.example.com/api": place.uri.partition("#")[0],
        '    warehouse="prod",\n': "",
        "db.example.com/catalogs": f"127.0.0.1:{mine.port}{mine.path}",
        '"lakehouse"': f'"{mine.fragment}"',
        "typed.flights": table.name,
    }.items():
        code = code.replace(written, meant)
    assert "example" not in code
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    found = {}
    exec(code, found)
    found["catalog"].close()
    assert found["found"]["n"].to_pylist() == [2]
