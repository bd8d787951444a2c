"""Typed tables in DuckDB: rows that runs have published, and the tail after them, each message once."""

import threading
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from typed_shop import SPEC, Shop, record, typed_spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import LakeError, SetupError
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.table_spec import parse_table_spec

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def root(names):
    return names.prefix


@pytest.fixture
def shop(client, root, tmp_path):
    return Shop(client, root, tmp_path)


def ask(sql, query):
    return [row if len(row) > 1 else row[0] for row in sql.execute(query).fetchall()]


def test_history_and_tail_are_one_table(shop):
    with shop.connect() as sql:
        all_of = "SELECT n FROM typed.orders ORDER BY n"
        assert ask(sql, all_of) == []
        shop.append(0, record(1), record(2, name="two"))
        assert ask(sql, all_of) == [1, 2]  # no run has made the table
        assert sql.seams()["typed.orders"].snapshot_id is None
        shop.run()
        assert ask(sql, all_of) == [1, 2]
        shop.append(0, record(2), record(3))  # the first one comes again
        shop.append(1, {"n": "none"}, record(4, name="four"))
        shop.flush()
        shop.append(1, record(5))
        assert ask(sql, all_of) == [1, 2, 3, 4, 5]
        seam = sql.seams()["typed.orders"]
        assert (seam.quarantined, seam.holes) == (1, ())
        assert seam.snapshot_id is not None
        assert [one.journal for one in seam.journals] == shop.journals
        assert all(one.offset < one.head for one in seam.journals)
        assert ask(sql, 'SELECT n FROM typed."orders$history" ORDER BY n') == [1, 2]
        assert ask(sql, 'SELECT n FROM typed."orders$tail" ORDER BY n') == [3, 4, 5]
        # DuckDB asks for rows and columns; what it does not get back is not there.
        assert ask(sql, "SELECT name FROM typed.orders WHERE n >= 2 AND name IS NOT NULL ORDER BY n") == ["two", "four"]  # fmt: skip
        assert ask(sql, "SELECT count(*) FROM typed.orders") == [5]
        joined = "SELECT count(*) FROM typed.orders a JOIN typed.orders b USING (_uuid)"
        assert ask(sql, joined) == [5]
        told = ask(sql, "SELECT _uuid FROM typed.orders WHERE n = 5")
        assert told == [uuid.UUID(record(5)["_meta"]["uuid"])]
        assert ask(sql, f"SELECT n FROM typed.orders WHERE _uuid = '{told[0]}'") == [5]


def test_names_are_those_of_the_spec_and_raw_tables_keep_theirs(shop, client):
    shop.append(0, record(1, name=7))
    with shop.connect() as sql:
        assert sql.tables == ("shop.orders", "typed.orders")
        assert set(ask(sql, "SHOW TABLES")) >= {"orders", "typed.orders"}
        # The raw table's rows are records as they lie there, the typed one's are what fits.
        assert ask(sql, "SELECT name FROM orders") == ["7"]
        assert ask(sql, "SELECT count(*) FROM typed.orders") == [0]
        assert sql.seams()["typed.orders"].quarantined == 1
        with pytest.raises(LakeError, match=r"no table order .*typed\.orders"):
            sql.execute("SELECT 1 FROM typed.order")
    root = shop.journals[0].rpartition("/")[0]
    other = parse_table_spec(SPEC.format(root=root) + "  name: lake.sales\n")
    with connect([other], client=client, settings=shop.settings) as sql:
        assert ask(sql, "SELECT count(*) FROM sales") == ask(sql, "SELECT count(*) FROM lake.sales")


def test_without_a_catalog_raw_tables_exist_and_typed_ones_say_why(shop, client):
    shop.append(0, record(1))
    settings = LakeSettings(broker=client.config.address)
    with connect([shop.spec], client=client, settings=settings) as sql:
        assert ask(sql, "SHOW TABLES")[0] == "orders"
        assert ask(sql, "SELECT n FROM orders") == [1]
        with pytest.raises(SetupError, match="metastore is not known"):
            sql.execute("SELECT n FROM typed.orders")
        # Any table may be meant by several statements; of this one it is reported when it is asked for.
        assert ask(sql, "CREATE TABLE mine AS SELECT 1 AS n; SELECT n FROM mine") == [1]
        with pytest.raises(SetupError, match="metastore is not known"):
            sql.execute("CREATE TABLE more AS SELECT 1; SELECT n FROM typed.orders")


def test_what_cannot_be_read_fails_the_query_with_its_cause(shop, shared):
    shop.append(0, record(1))
    shop.run()
    shop.append(0, record(2))
    with shop.connect() as sql:
        (task,) = shop.handle().load().token.scan().plan_files()
        file = Path(task.file.file_path.removeprefix("file://"))
        file.rename(f"{file}.away")
        with pytest.raises(LakeError, match=f"{file.name} cannot be read"):
            ask(sql, "SELECT n FROM typed.orders")
        assert ask(sql, 'SELECT n FROM typed."orders$tail"') == [2]


TYPES = (
    "id uuid", "at timestamptz", "local timestamp", "day date", "price decimal(10,2)", "n bigint", "small int", "ok boolean",
    "ratio double", "part float", "raw binary", "any json", "tags array<string>", "extra map<string,bigint>",
    "place struct<zip:string,lines:array<int>,id:uuid>", "ids array<uuid>",
)  # fmt: skip


def test_values_of_all_types_are_the_same_in_history_and_tail(client, root, tmp_path):
    shop = Shop(client, root, tmp_path, typed_spec(TYPES))
    id_ = str(uuid.UUID(int=5))
    values = {
        "id": id_, "at": "2026-01-02T03:04:05.000006+01:00", "local": "2026-01-02 03:04:05", "day": "2026-01-02",
        "price": "12.50", "small": 3, "ok": True, "ratio": 0.25, "part": 0.5, "raw": "/w==", "any": {"a": [1]},
        "tags": ["a", None], "extra": {"k": 1}, "place": {"zip": "1", "lines": [1, None], "id": id_}, "ids": [id_, None],
    }  # fmt: skip
    shop.append(0, record(1, **values), record(2))
    names = [each.split()[0] for each in TYPES]
    listed = ", ".join(f'"{name}"' for name in names)
    whole = f"SELECT {listed} FROM typed.orders ORDER BY n"
    with shop.connect() as sql:
        tail = ask(sql, whole)
        shop.run()
        assert ask(sql, whole) == tail
        shop.append(0, record(3, **values))
        first, second, third = ask(sql, whole)
    assert dict(zip(names, third, strict=True)) == {
        "id": uuid.UUID(id_), "at": datetime(2026, 1, 2, 2, 4, 5, 6, UTC), "local": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001
        "day": date(2026, 1, 2), "price": Decimal("12.50"), "n": 3, "small": 3, "ok": True, "ratio": 0.25, "part": 0.5,
        "raw": b"\xff", "any": '{"a": [1]}', "tags": ["a", None], "extra": {"k": 1},
        "place": {"zip": "1", "lines": [1, None], "id": uuid.UUID(id_)}, "ids": [uuid.UUID(id_), None],
    }  # fmt: skip
    assert [*first[:5], *first[6:]] == [*third[:5], *third[6:]]
    assert set(second) == {None, 2}


def test_files_that_cannot_have_such_rows_are_not_opened(client, root, tmp_path):
    columns = ("n int", "name string", "at timestamptz", "price decimal(10,2)")
    shop = Shop(client, root, tmp_path, typed_spec(columns))
    for day in (1, 2, 3):
        at = f"2026-01-0{day}T12:00:00Z"
        rows = [record(10 * day + i, name=f"{day}{i}" * 20, at=at, price=day) for i in range(3)]
        shop.append(0, *rows, record(10 * day + 9))  # and one where only the number is known
        shop.run()
    # What was an int is a bigint now: bounds of older files are of the former.
    shop.spec = parse_table_spec(typed_spec(("n bigint", *columns[1:])).format(root=root))
    shop.append(0, record(1 << 40, name="z"))
    shop.run()
    with shop.connect() as sql:

        def found(condition):
            numbers = ask(sql, f"SELECT n FROM typed.orders WHERE {condition} ORDER BY n")
            return numbers, sql.seams()["typed.orders"].files

        assert found("name = '" + "21" * 20 + "'") == ([21], 1)
        assert found("name > '3'") == ([30, 31, 32, 1 << 40], 2)
        assert found("\"at\" < '2026-01-02 00:00:00+00'") == ([10, 11, 12], 1)
        assert found('"at" IS NULL AND n < 20') == ([19], 1)
        assert found("n = 31 OR n = 11") == ([11, 31], 2)
        assert found(f"_journal = '{shop.journals[1]}'") == ([], 0)
        assert found("n IN (SELECT 22)")[0] == [22]
        assert found("n > 50") == ([1 << 40], 1)


def test_of_a_table_with_a_key_the_view_is_what_the_next_run_makes(client, root, tmp_path):
    """Whatever clocks say, of either journal, and whatever is in the table already."""
    shop = Shop(client, root, tmp_path, typed_spec(("n bigint", "k string"), "  key: [n]\n"))
    draw = Random(3)
    # A producer of each journal has clocks that rise; those of the two cross.
    clocks = [iter(sorted(draw.sample(range(1, 400), 60))) for _ in shop.journals]
    view = "SELECT n, k, _journal FROM typed.orders ORDER BY n"
    with shop.connect() as sql:
        for turn in range(4):
            for at in (0, 1):
                rows = [
                    record(draw.randrange(12), at + 1, next(clocks[at]), k=f"{turn}{at}{i}")
                    for i in range(8)
                ]
                shop.append(at, *rows)
            seen = ask(sql, view)
            assert len({n for n, _, _ in seen}) == len(seen) > 5
            assert ask(sql, f"SELECT k FROM typed.orders WHERE n = {seen[0][0]}") == [seen[0][1]]
            assert [row for row in seen if row[1] < "2"] == ask(
                sql, f"SELECT * FROM ({view}) WHERE k < '2'"
            )
            shop.run()
            assert ask(sql, view) == seen
            assert sql.seams()["typed.orders"].snapshot_id is not None
            assert ask(sql, 'SELECT count(*) FROM typed."orders$tail"') == [0]


def test_each_message_exists_once_while_runs_publish(shop):
    """Each query sees all that was acknowledged before it began, and nothing twice."""
    stop, errors, acknowledged = threading.Event(), [], [0]

    def beside(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except BaseException as err:  # noqa: BLE001  looked at below
                errors.append(err)
                stop.set()

        return threading.Thread(target=run, daemon=True)

    def append():
        first = acknowledged[0]
        shop.append(
            first // 20 % 2, *(record(n, 1 + first // 20 % 2) for n in range(first, first + 20))
        )
        acknowledged[0] = first + 20
        if first % 100 == 0:
            shop.flush()
        stop.wait(0.02)

    threads = [beside(append), beside(shop.run)]
    snapshots = set()
    for thread in threads:
        thread.start()
    try:
        with shop.connect() as sql:
            for _ in range(25):
                if stop.is_set():
                    break
                least = acknowledged[0]
                numbers = ask(sql, "SELECT n FROM typed.orders")
                snapshots.add(sql.seams()["typed.orders"].snapshot_id)
                assert sorted(numbers) == list(range(len(numbers)))
                assert len(numbers) >= least
                if len(snapshots) > 3:
                    break
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not errors
    assert len(snapshots) > 3  # it was published to while it was read


DAYS = "SELECT unnest([DATE '2026-01-01', DATE '20000-01-01']) AS d"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("name = 'a' OR name IS NOT DISTINCT FROM 'b'", [1, 2]),
        ("day IN (DATE '2026-01-01', DATE '20000-01-01')", [1]),
        ("day IN (DATE '2026-01-02', DATE '0044-03-15 (BC)')", [2]),
        ("\"at\" IN (TIMESTAMPTZ '2026-01-01 00:00:00Z', TIMESTAMPTZ '20000-01-01 00:00:00Z')", [1]),
        (f"day IN ({DAYS})", [1]),
    ],
)  # fmt: skip
def test_duckdb_filters_rows_when_arrow_cannot(client, root, tmp_path, condition, expected):
    columns = ("n bigint", "name string", "day date", "at timestamptz")
    spec = typed_spec(columns).replace(
        "columns: [{{name: n, type: bigint}}]",
        "columns: [{{name: n, type: bigint}}, {{name: name, type: string}}, {{name: day, type: date}}]",
    )
    shop = Shop(client, root, tmp_path, spec)
    shop.append(0, record(1, name="a", day="2026-01-01", at="2026-01-01T00:00:00Z"))
    shop.run()
    shop.append(0, record(2, name="b", day="2026-01-02", at="2026-01-02T00:00:00Z"), record(3))
    with shop.connect() as sql:
        # Raw tables have no times.
        for table in ["typed.orders"] if '"at"' in condition else ["shop.orders", "typed.orders"]:
            query = f"SELECT n FROM {table} WHERE {condition} ORDER BY n"
            assert (table, ask(sql, query)) == (table, expected)
            assert ask(sql, f"SET VARIABLE v = 1; {query}") == expected
        sql.execute("SELECT n FROM typed.orders WHERE n = 4").fetchall()
        assert sql.seams()["typed.orders"].files == 0, "the next query prunes files again"


def test_what_queries_have_read_of_tails_does_not_stay(shop):
    shop.append(0, *(record(n) for n in range(3000)))
    with shop.connect() as sql:
        held = []
        for _ in range(3):
            assert len(ask(sql, "SELECT n FROM typed.orders")) == 3000
            held.append(sql._typed.views["typed.orders"]._tail)
        assert [tail._spooled._spool._file.closed for tail in held] == [True, False, False]
    assert all(tail._spooled._spool._file.closed for tail in held)
