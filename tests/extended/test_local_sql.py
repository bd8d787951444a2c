"""SQL in this process over journals of a live broker: what is persisted, and the tail up to now."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from object_servers import need_go, s3_server

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.cli.gazctl import main
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, Fragment, FragmentSpec, JournalSpec
from gazette_platform.testing.servers import BrokerServer

pytestmark = pytest.mark.etcd

HOUR = 'hour={{ .Spool.FirstAppendTime.Format "15" }}'


@pytest.fixture(scope="module")
def server(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-local-sql") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(ClientConfig(address=server.address)) as client:
        yield client


@pytest.fixture
def settings(server):
    return LakeSettings(
        broker=server.address, store_roots={"file:///": f"file://{server.fragments}/"}
    )


def create(client, name, *, postfix=HOUR, codec=CompressionCodec.GZIP, store="file:///"):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=codec,
        stores=(store,),
        refresh_interval_ns=SECOND_NS,
        path_postfix_template=postfix,
    )
    client.apply([Change(JournalSpec(name=name, replication=1, fragment=fragment))])


def store(server, name, begin, content, postfix):
    """A fragment as a broker from before stored it."""
    digest = hashlib.sha1(content).digest()
    fragment = Fragment(
        name, begin, begin + len(content), digest, CompressionCodec.GZIP, path_postfix=postfix
    )
    path = server.fragments / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content))
    return fragment


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def orders(first, count):
    return [{"id": n, "item": f"item {n}"} for n in range(first, first + count)]


def table(name, prefix, columns, **more):
    fields = [f"  - {{name: {n}, type: '{t}'}}" for n, t in columns.items()]
    extra = [f"{key}: {value}" for key, value in more.items()]
    text = [f"name: {name}", f"selector: name:prefix={prefix}/", "format: json", "columns:"]
    if "format" in more:
        text.remove("format: json")
    return parse_table_spec("\n".join([*text, *fields, *extra]))


ORDERS = {"id": "bigint", "item": "string"}
BY_HOUR = "[{name: hour, type: int}]"


@pytest.fixture(scope="module")
def shop(server, client):
    """Journals of two regions whose hours 0 to 5 are persisted and overlap in part, and a live tail."""
    rows = {}
    for region in ("eu", "us"):
        name = f"shop/region={region}"
        first = 0 if region == "eu" else 10_000
        hours = [orders(first + 100 * hour, 100) for hour in range(6)]
        begin = 0
        for hour, batch in enumerate(hours):
            store(server, name, begin, lines(*batch), f"hour={hour:02}")
            if hour == 3:  # and of another broker, which had halves of the hours beside it
                inner = [*hours[3][50:], *hours[4], *hours[5][:50]]
                store(server, name, begin + len(lines(*batch[:50])), lines(*inner), "hour=04")
            begin += len(lines(*batch))
        create(client, name)
        client.reset_head(name)
        live = orders(first + 600, 50)
        client.append(name, lines(*live))
        rows[region] = [row for batch in [*hours, live] for row in batch]
    return rows


@pytest.fixture
def sql(shop, settings, client):
    specs = [
        table("shop.orders", "shop", ORDERS, partitions=BY_HOUR),
        table("shop.nothing", "nowhere", ORDERS),
    ]
    with connect(specs, client=client, settings=settings) as sql:
        yield sql


def test_a_query_opens_only_fragments_that_it_needs(sql):
    def opened(query):
        found = sql.execute(query).fetchall()
        (scan,) = sql.scans()["shop.orders"]
        return found, scan.fragments_opened, scan.bytes_served

    everything, fragments, _ = opened("SELECT count(*) FROM orders")
    assert (everything, fragments) == ([(1300,)], 12)
    five = "SELECT count(*), min(hour), max(hour) FROM orders WHERE hour = 5 AND id % 10000 < 600"
    found, fragments, _ = opened(five)
    assert (found, fragments) == ([(100, 5, 5)], 2)
    found, fragments, _ = opened(
        "SELECT count(*) FROM orders WHERE hour IN (0, 2) AND region = 'us'"
    )
    assert (fragments, found[0][0] >= 200) == (2, True)
    assert opened("SELECT * FROM orders WHERE region = 'asia'") == ([], 0, 0)
    (first,), (last,) = (
        sql.execute(
            f"SELECT _offset FROM \"orders$offsets\" WHERE region = 'eu' AND id = {n}"
        ).fetchall()[0]
        for n in (250, 260)
    )
    where = f"_journal = 'shop/region=eu' AND _offset BETWEEN {first} AND {last}"
    found, fragments, _ = opened(f'SELECT id FROM "orders$offsets" WHERE {where} ORDER BY 1')
    assert (found, fragments) == ([(n,) for n in range(250, 261)], 1)


def test_a_query_sees_one_snapshot_and_the_next_what_was_appended(client, settings):
    name = "news/all"
    create(client, name)
    client.append(name, lines(*orders(0, 500)))
    client.flush(f"name={name}")
    client.append(name, lines(*orders(500, 50)))
    with connect([table("news.all", "news", ORDERS)], client=client, settings=settings) as sql:
        both = 'SELECT count(*), count(DISTINCT a.id) FROM news."all" a JOIN "all" b USING (id)'
        assert sql.execute(both).fetchall() == [(550, 550)]
        sql.execute('CREATE VIEW mine AS SELECT max(id) AS newest FROM news."all"')
        (journal,) = sql.snapshot("news.all").journals
        assert journal.begin == 0 < journal.stored_end < journal.head
        assert (journal.head, journal.gaps) == (client.write_head(name), [])
        more = client.append(name, lines({"id": -1, "item": "now"}))
        started = time.monotonic()
        assert sql.execute('SELECT item FROM "all" AS a WHERE id < 0').fetchall() == [("now",)]
        assert time.monotonic() - started < 4  # one second on a quiet machine
        assert sql.snapshot("news.all").journals[0].head == more.end
        client.append(name, lines({"id": 9999, "item": "later"}))
        assert sql.execute("SELECT newest FROM mine").fetchall() == [(9999,)]
        client.flush(f"name={name}")
        assert sql.execute('SELECT item FROM "all" WHERE id < 0').fetchall() == [("now",)]
        assert sql.execute('SELECT count(*) FROM "all"').fetchone() == (552,)
        assert sql.scans()["news.all"][0].bytes_served == 0


def test_no_record_is_missed_or_doubled_while_fragments_are_persisted(server, client, settings):
    name = "moving/all"
    create(client, name)
    done = threading.Event()
    written = []

    def write():
        with Client(ClientConfig(address=server.address)) as writer:
            for n in range(400):
                writer.append(name, lines({"id": n}))
                written.append(n)
                if n % 20 == 0:
                    writer.flush(f"name={name}")
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    spec = table("moving.all", "moving", {"id": "int"})
    with connect([spec], client=client, settings=settings) as sql:
        queries = 0
        while not done.is_set() or not queries:
            before = len(written)
            found = sorted(n for (n,) in sql.execute('SELECT id FROM "moving"."all"'))
            assert found == list(range(len(found)))
            assert before <= len(found)
            queries += 1
        thread.join()
        assert sql.execute('SELECT count(*), sum(id) FROM "all"').fetchall() == [(400, 79800)]


def test_a_store_out_of_reach_is_read_through_brokers(shop, client):
    spec = table("shop.orders", "shop", ORDERS, partitions=BY_HOUR)
    elsewhere = LakeSettings(store_roots={"file:///": "file:///nowhere/at/all/"})
    for settings in (elsewhere, LakeSettings()):
        with connect([spec], client=client, settings=settings) as sql:
            (found,) = sql.execute("SELECT count(DISTINCT id) FROM orders").fetchone()
            assert found == sum(map(len, shop.values()))
            (scan,) = sql.scans()["shop.orders"]
            assert (scan.bytes_stored, scan.bytes_served) == (0, scan.bytes_planned)


@pytest.mark.s3
def test_fragments_in_a_bucket_are_fetched_past_the_brokers(etcd_server, tmp_path, monkeypatch):
    need_go("GAZETTE_VERSITYGW")
    with s3_server(tmp_path / "s3") as bucket:
        bucket.make_bucket("lake")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret_key)
        url = f"s3://lake/of/?endpoint={bucket.endpoint}&region=us-east-1"
        with (
            BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix="/test-sql-s3") as server,
            Client(ClientConfig(address=server.address)) as client,
        ):
            name = "far/kind=a%2Bb+c"
            for codec in (CompressionCodec.GZIP, CompressionCodec.ZSTANDARD):
                create(client, f"{name}/{codec.name}", codec=codec, store=url)
                for first in (0, 1000):
                    client.append(f"{name}/{codec.name}", lines(*orders(first, 1000)))
                    client.flush(f"name={name}/{codec.name}")
                client.append(f"{name}/{codec.name}", lines(*orders(2000, 10)))
            specs = [
                parse_table_spec(
                    f"name: far.{codec.name.lower()}\nselector: name={name}/{codec.name}\n"
                    "format: json\ncolumns: [{name: id, type: bigint}]"
                )
                for codec in (CompressionCodec.GZIP, CompressionCodec.ZSTANDARD)
            ]
            with connect(specs, client=client, settings=LakeSettings()) as sql:
                for spec in specs:
                    found = sql.execute(
                        f"SELECT count(*), sum(id), min(kind) FROM {spec.name}"
                    ).fetchall()
                    assert found == [(2010, sum(range(2010)), "a%2Bb+c")]
                    (scan,) = sql.scans()[spec.name]
                    assert scan.fragments_opened == 2
                    assert scan.bytes_served == len(lines(*orders(2000, 10)))


def test_a_long_scan_is_streamed_and_may_be_left(server, client, settings):
    name = "long/all"
    batch = lines(*orders(0, 20_000))
    begin = 0
    for _ in range(40):
        store(server, name, begin, batch, "hour=01")
        begin += len(batch)
    create(client, name)
    with connect([table("long.all", "long", ORDERS)], client=client, settings=settings) as sql:
        assert len(sql.execute('SELECT * FROM long."all" LIMIT 3').fetchall()) == 3
        (scan,) = sql.scans()["long.all"]
        assert scan.bytes_stored < scan.bytes_planned / 2
        counts = Counter()
        for part in sql.execute('SELECT id, item FROM long."all"').batches():
            counts.update(part.column("id").to_pylist())
        assert set(counts.values()) == {40}
        assert len(counts) == 20_000


@pytest.fixture
def gazctl(shop, server, monkeypatch, tmp_path, capfdbinary):
    """Run `gazctl sql` in this process, in a folder with specs in `tables`."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "orders.yaml").write_text(
        f"name: shop.orders\nselector: name:prefix=shop/\nformat: json\npartitions: {BY_HOUR}\n"
        "columns: [{name: id, type: bigint}, {name: item, type: string}]\n"
    )
    (tmp_path / "tables" / "nothing.yaml").write_text(
        "name: shop.nothing\nselector: name=none\nformat: json\ncolumns: [{name: a, type: int}]\n"
    )
    (tmp_path / "endpoints.json").write_text(json.dumps({"broker": server.address}))
    (tmp_path / "fragments").symlink_to(server.fragments)
    monkeypatch.setenv("GAZETTE_ENDPOINTS", str(tmp_path / "endpoints.json"))
    monkeypatch.chdir(tmp_path)

    def run(*args, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["sql", *args])
        out, err = capfdbinary.readouterr()
        return SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    return run


def test_gazctl_writes_each_format(gazctl, tmp_path):
    query = "SELECT id, item, hour FROM orders WHERE region = 'eu' AND id IN (1, 2) ORDER BY id"
    ran = gazctl(query)
    assert ran.code == 0, ran.err
    assert ran.out.split() == ["id", "item", "hour", "1", "item", "1", "0", "2", "item", "2", "0"]
    assert gazctl("-", "-o", "csv", stdin=query).out == "id,item,hour\n1,item 1,0\n2,item 2,0\n"
    rows = [json.loads(line) for line in gazctl(query, "-o", "json").out.splitlines()]
    assert rows == [{"id": n, "item": f"item {n}", "hour": 0} for n in (1, 2)]
    ran = gazctl("SELECT NULL AS a, 1.50 AS b, DATE '2020-01-31' AS c", "-o", "json")
    assert json.loads(ran.out) == {"a": None, "b": "1.50", "c": "2020-01-31"}
    file = tmp_path / "orders.parquet"
    ran = gazctl("FROM orders", "-o", "parquet", "--to", str(file), "--explain")
    assert (ran.code, pq.read_table(file).num_rows) == (0, 1300)
    assert f"wrote 1300 rows to {file}" in ran.err
    assert "shop/region=eu: [0, 18980) in 6 fragments, live to 20580" in ran.err
    assert "12 fragments fetched" in ran.err
    assert [path.name for path in tmp_path.glob(".orders*")] == []
    shown = gazctl("FROM orders", "--rows", "2")
    assert (len(shown.out.splitlines()), "the first 2 rows" in shown.err) == (3, True)
    assert "orders" in gazctl("SHOW TABLES").out
    (tmp_path / "tables" / "bad.yaml").write_text("name: bad")
    ran = gazctl("SELECT 1 AS one")
    assert (ran.code, ran.out.split()) == (0, ["one", "1"])
    assert "note: no table of this spec: bad.yaml: " in ran.err


def test_a_list_without_a_metastore_says_why_it_knows_so_little(gazctl, capfdbinary):
    assert main(["lake", "list", "shop.orders"]) == 0
    out, err = capfdbinary.readouterr()
    assert out.decode().splitlines()[1].split()[:6] == ["shop.orders", "json", "2", *["<none>"] * 3]
    assert "note: no metastore is configured" in err.decode()
    assert "set GAZETTE_METASTORE_URI" in err.decode()
    assert main(["lake", "describe", "shop.orders"]) == 0
    out, _ = capfdbinary.readouterr()
    assert "  Lag:        <none>\n" in out.decode()
    assert "  Hive partitions (<none>):\n" in out.decode()


def test_the_first_answer_of_a_process_comes_at_once(gazctl):
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "sql"]
    query = "SELECT hour, count(*), max(id) FROM orders GROUP BY hour ORDER BY hour"
    started = time.monotonic()
    ended = subprocess.run(
        [*command, query], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) >= 7
    assert time.monotonic() - started < 8  # one second on a quiet machine


def test_an_interrupt_ends_it(gazctl):
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "sql", "-o", "csv"]
    query = "SELECT a.range FROM range(10000000000) a JOIN orders ON id = 1"
    with subprocess.Popen(
        [*command, query], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "range\n"
            assert process.stdout.readline() == "0\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "gazctl: error: interrupted\n")
