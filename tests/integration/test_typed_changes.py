"""Changes of a database in journals of a real broker, as rows of a typed table: any order, repeats, runs that die."""

import json
from random import Random

import pytest
from debezium import Database, postgres_source
from typed_merges import PythonMerger
from typed_shop import Merging, Shop

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.recount import recount_keys
from gazette_platform.lake.typed.status import completeness_of

pytestmark = pytest.mark.etcd

SPEC = """name: shop.customers
selector: name:prefix={root}/
format: json
columns:
  - {{name: after, type: 'struct<id:bigint,name:string>'}}
typed: {{change_data: debezium, key: [id]}}
"""


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def shop(client, names, tmp_path):
    return Shop(client, names.prefix, tmp_path, SPEC)


def recounted(shop):
    """What is wrong, by the check that counts and by the one that reads journals again."""
    tables = typed_catalog(shop.settings)
    found = [completeness_of(tables, shop.spec.typed)]
    found.append(recount_keys(tables, shop.spec.typed, shop.spec, shop.client, threads=2))
    return [one.text for each in found for one in each.findings]


def rows_of(shop):
    loaded = shop.handle().load()
    found = loaded.table.scan().to_arrow().to_pylist() if loaded else []
    return {row["id"]: row["name"] for row in found}


class Dying:
    """A merger that stages, and then is not heard of again."""

    def __init__(self, handle):
        self._merger = PythonMerger(handle)

    def merge(self, merge):
        self._merger.merge(merge)
        raise KeyboardInterrupt


@pytest.mark.parametrize("seed", range(3))
def test_table_is_the_database_however_changes_come(shop, seed):
    draw, database = Random(seed), Database(postgres_source, wraps=bool(seed % 2))
    told = 0
    query = "SELECT id, name FROM typed.customers ORDER BY id"
    with shop.connect() as sql:
        for _ in range(4):
            for _ in range(15):
                name = draw.choice(
                    ["upsert"] * 5 + ["delete"] * 2 + ["move", "rename_key", "message"]
                )
                arguments = {
                    "upsert": lambda: (draw.randrange(8), f"{draw.random()}"),
                    "delete": lambda: (draw.randrange(8),),
                    "message": lambda: (),
                }.get(name, lambda: (draw.randrange(8), draw.randrange(8)))()
                getattr(database, name)(*arguments)
            if draw.random() < 0.4:
                database.truncate()
            # All that is new, and some from before again, in any order, in either journal.
            lines = database.lines()
            told, new = len(lines), lines[told:]
            new += draw.choices(lines, k=10)
            draw.shuffle(new)
            for line in new:
                shop.client.append(shop.journals[draw.randrange(2)], line)
            expected = {key: row["name"] for key, row in database.rows.items()}
            assert dict(sql.execute(query).fetchall()) == expected
            if draw.random() < 0.5:
                with pytest.raises(KeyboardInterrupt):
                    shop.run(workers=Merging(Dying(shop.handle())))
                assert dict(sql.execute(query).fetchall()) == expected
            report = shop.run()
            assert report.counts.messages == report.counts.typed == len(new)
            assert rows_of(shop) == expected
            assert dict(sql.execute(query).fetchall()) == expected
            assert recounted(shop) == []


def test_bad_changes_are_set_aside_and_counted(shop):
    database = Database()
    database.upsert(1, "a")
    database.delete(1)
    shop.client.append(shop.journals[0], b"".join(database.lines()))
    bad = [{"op": "d", "before": None}, {"op": "u", "after": {"id": "x"}}, {"id": 5}]
    shop.append(1, *bad)
    counts = shop.run().counts
    assert (counts.typed, counts.quarantined) == (3, 3)
    assert rows_of(shop) == {}
    assert recounted(shop) == []


def test_rows_that_were_changed_by_hand_are_found(shop):
    database = Database()
    for key in range(4):
        database.upsert(key, "a")
    database.delete(3)
    database.upsert(2, "b")
    shop.client.append(shop.journals[0], b"".join(database.lines()))
    shop.run()
    assert recounted(shop) == []
    table = shop.handle().load().token
    rows = table.scan().to_arrow()
    # Key 0 is lost; key 2 stands for its first change; key 3 is back; key 1 is as it was.
    at = {row["id"]: row for row in rows.to_pylist()}
    stale = at[2] | {"_begin": at[0]["_begin"]}
    back = at[1] | {"id": 3}
    table.overwrite(rows.from_pylist([at[1], stale, back], schema=rows.schema))
    told = "\n".join(recounted(shop))
    assert "no row of the last message of 1 key (0)" in told
    assert "rows of other messages than the last ones of 1 key (2)" in told
    assert "rows, which were deleted or never written, of 1 key (3)" in told


def test_check_warns_of_a_log_that_counts_from_its_start(shop):
    def notes():
        tables = typed_catalog(shop.settings)
        found = recount_keys(tables, shop.spec.typed, shop.spec, shop.client)
        assert found.findings == ()
        return found.notes

    first, promoted = Database(), Database()
    for name in "ab":
        first.upsert(1, name)
    promoted.upsert(1, "c")
    shop.client.append(shop.journals[0], b"".join(first.lines()))
    # The connector was restarted here, and has caught up.
    shop.client.append(shop.journals[1], b"".join([*first.lines(), *first.lines()]))
    shop.run()
    assert notes() == ()
    shop.client.append(shop.journals[1], b"".join(promoted.lines()))
    shop.run()
    assert rows_of(shop) == {1: "b"}
    (note,) = notes()
    assert note.startswith(f"the newest change of {shop.journals[1]} lies before an earlier one")
    assert "`order: journal`" in note


def test_workers_without_an_engine_are_refused(shop):
    with pytest.raises(LakeError, match="has a `key`"):
        shop.run(workers=Merging(None))


def test_deleted_column_in_records_with_uuids(client, names, tmp_path):
    spec = (
        "name: shop.t\nselector: name:prefix={root}/\nformat: json\n"
        "columns: [{{name: id, type: bigint}}, {{name: gone, type: boolean}}]\n"
        "typed: {{uuid: none, key: [id], deleted: gone}}\n"
    )
    shop = Shop(client, names.prefix, tmp_path, spec)
    shop.append(0, {"id": 1, "gone": False}, {"id": 2}, {"id": 1, "gone": True})
    shop.run()
    ids = [row["id"] for row in shop.handle().load().table.scan().to_arrow().to_pylist()]
    assert ids == [2]
    shop.client.append(shop.journals[0], json.dumps({"id": 1, "gone": None}).encode() + b"\n")
    shop.run()
    ids = [row["id"] for row in shop.handle().load().table.scan().to_arrow().to_pylist()]
    assert sorted(ids) == [1, 2]
    assert recounted(shop) == []
