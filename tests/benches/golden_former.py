"""What a former version left behind, whole: etcd's keys, spools, fragments, a typed table, a rollup, a metastore, a cursor.

python tests/benches/golden_former.py VERSION    writes tests/unit/data/golden_former/VERSION, of the code at hand

Run it once for each release whose files differ from those of the one before. All of it must stay readable for ever,
so it is never written again.

tests/unit/data/golden_former/<version>/
    etcd.json         keys of no lease: values in Base64, and the revisions at which they were made and changed
    spool/            of a broker that was killed
    fragments/        of its store
    iceberg/          typed table and quarantine, as below the folder /golden-former
    metastore.json    raw tables and their partitions, in Thrift's JSON, likewise
    cursor.txt        of the sensor of fragments
    rollup/           a rollup in warehouse/, and metastore.json with its raw table
    golden.json       what is to be found in all that
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Final

import fastavro
from dagster_instances import new_instance
from pyiceberg.catalog.sql import SqlCatalog
from rollup_bench import Lake
from sensor_platform import SensorPlatform, line
from thrift.protocol.TJSONProtocol import TJSONProtocolFactory
from thrift.TSerialization import deserialize, serialize

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.broker.spool.disk import place_of
from gazette_platform.consumer.assignments import encode_shard_spec
from gazette_platform.consumer.protocol import ShardSource, ShardSpec
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.hive.model import ttypes
from gazette_platform.keyspace import item_key
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.spec.rules import QUARANTINE_SUFFIX
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.message import Flags, build_uuid
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform import tools
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.servers import BrokerServer

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = ROOT / "tests/unit/data/golden_former"
PLACE: Final = "/golden-former"
PREFIX: Final = "/golden/former"
SHARDS: Final = "/golden/shards"
CODECS: Final = {
    "golden/plain": CompressionCodec.NONE,
    "golden/gzip": CompressionCodec.GZIP,
    "golden/zstd": CompressionCodec.ZSTANDARD,
    "golden/orders": CompressionCodec.GZIP,
}
ORDERS: Final = "golden/orders"
REGISTERS: Final = LabelSet.of(("holder", "golden"))
SHARD: Final = ShardSpec(
    "shard-000",
    sources=(ShardSource(ORDERS, 7),),
    recovery_log_prefix="golden/logs",
    hint_prefix="/golden/hints",
    hint_backups=2,
    hot_standbys=1,
    max_txn_duration_ns=SECOND_NS,
    labels=LabelSet.of(("store", "sqlite")),
)


# ------------------------------------------------------------------ brokers and etcd


def broker_at(folder, etcd):
    """The broker whose spools these are."""
    return BrokerServer(folder, etcd=etcd, prefix=PREFIX, broker_id="golden-broker", zone="a")


def journal_spec(name):
    fragment = FragmentSpec(
        length=2048, codec=CODECS[name], stores=("file:///",), refresh_interval_ns=SECOND_NS
    )
    labels = LabelSet.of(("content-type", "application/x-ndjson"))
    return JournalSpec(name, 1, labels=labels, fragment=fragment)


def orders(*numbers, flags=Flags.OUTSIDE_TXN, producer=b"\1" * 6):
    """Messages, of a producer whose clock is the number."""
    records = [
        {"n": n, "_meta": {"uuid": str(build_uuid(producer, 1000 + n, flags))}} for n in numbers
    ]
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def orders_acknowledged():
    """The message that commits the transaction of `golden/orders`, which was open."""
    ack = build_uuid(b"\3" * 6, 1061, Flags.ACK_TXN)
    return json.dumps({"_meta": {"uuid": str(ack)}}).encode() + b"\n"


def append_all(client):
    """What journals get before the broker is killed; `golden/orders` gets its own."""
    client.apply([Change(journal_spec(name)) for name in CODECS])
    for name in CODECS:
        if name != ORDERS:
            for number in range(30):
                client.append(name, b"%s: line %06d of what was kept\n" % (name.encode(), number))
    client.append("golden/gzip", b"with registers\n", union_registers=REGISTERS)


async def dump_etcd(endpoint):
    """All keys that no lease has."""
    async with EtcdClient([endpoint]) as etcd:
        found = await etcd.range("/")
    return [
        {
            "key": each.key,
            "value": base64.b64encode(each.value).decode(),
            "created": each.create_revision,
            "changed": each.mod_revision,
        }
        for each in found.kvs
        if not each.lease
    ]


async def restore_etcd(endpoint, keys):
    """Make the keys in an etcd without any, at the same revisions. Returns: the id of its cluster."""
    puts = {}
    for each in keys:
        value = base64.b64decode(each["value"])
        for revision in {each["created"], each["changed"]}:
            puts.setdefault(revision, []).append(Put(each["key"], value))
    async with EtcdClient([endpoint]) as etcd:
        at = (await etcd.range("/")).header.revision
        while at < max(puts):
            at = (await etcd.txn([], puts.get(at + 1, [Put("/pass", b"")]))).header.revision
        return (await etcd.delete("/pass")).cluster_id


def restore_broker(data, folder, cluster_id):
    """Lay spools and fragments where the broker of `broker_at` has them, as if they had been made there.

    A copy says where its original is, and is known by that; so each home gets the numbers of its new place, and of
    the etcd that has its keys now.
    """
    shutil.copytree(data / "spool", folder / "spool")
    shutil.copytree(data / "fragments", folder / "fragments")
    for home in (folder / "spool" / "spools").iterdir():
        with opened(home) as folder_fd, opened(home / "heads") as heads_fd:
            here = re.findall(r"\d+", place_of(folder_fd, heads_fd))
        words = re.split(r"\d+", (home / "place").read_text())
        pairs = itertools.zip_longest(words, here, fillvalue="")
        (home / "place").write_text("".join(itertools.chain.from_iterable(pairs)))
        owner = (home / "home.json").read_text()
        owner = re.sub(r'"cluster": "[0-9a-f]+', f'"cluster": "{cluster_id:x}', owner)
        (home / "home.json").write_text(owner)


@contextlib.contextmanager
def opened(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


# ------------------------------------------------------------------ typed tables


class TypedTable:
    """A typed table of `golden/orders`, in a catalog on disk."""

    def __init__(self, client, folder):
        self.sql = SqlCatalog(
            "sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=(folder / "iceberg").as_uri()
        )
        self.catalog = CatalogTables(self.sql, (folder / "iceberg").as_uri())
        raw = parse_table_spec(
            f"name: raw.orders\nselector: name={ORDERS}\nformat: json\ncolumns: [{{name: n, type: bigint}}]\n"
        )
        spec = TypedSpec(
            name="typed.orders",
            source="raw.orders",
            uuid=("_meta", "uuid"),
            columns=(TypedColumn(name="n", type="bigint", key="n"),),
        )
        runner = TypedRunner(self.catalog, LocalWorkers(), client, log=lambda text: None)
        self.run = lambda: runner.run(spec, raw)

    def register(self, locations):
        """Name tables in the catalog by their metadata."""
        self.sql.create_namespace("typed")
        for name, location in locations.items():
            self.sql.register_table(name, location)

    def locations(self):
        """Of the metadata of both tables."""
        names = ("typed.orders", f"typed.orders{QUARANTINE_SUFFIX}")
        return {name: self.sql.load_table(name).metadata_location for name in names}

    def numbers(self):
        found = self.catalog.handle("typed.orders").load().token.scan().to_arrow()
        return sorted(found["n"].to_pylist())


def move_iceberg(source, target, old, new):
    """Copy the files of Iceberg tables, so that paths below `old` are below `new`."""

    def moved(value):
        if isinstance(value, str):
            return value.replace(old, new)
        if isinstance(value, dict):
            return {key: moved(each) for key, each in value.items()}
        return [moved(each) for each in value] if isinstance(value, list) else value

    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        # A run that ended needs its list of quarantine files no more; and that has paths in binary.
        if path.is_dir() or path.suffix == ".quarantine":
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            place.write_text(moved(path.read_text()))
        elif path.suffix == ".avro":
            with path.open("rb") as file:
                reader = fastavro.reader(file)
                records, schema = [moved(each) for each in reader], reader.writer_schema
                metadata = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
            with place.open("wb") as file:
                fastavro.writer(file, schema, records, codec="deflate", metadata=metadata)
        else:
            shutil.copyfile(path, place)


# ------------------------------------------------------------------ raw tables and the sensor


def write_raw(platform):
    """Two tables, one of them with partitions; an unfit record, and a fragment that waits for its turn."""
    for table in ("a", "b"):
        platform.write_spec(table)
    for number in range(4):
        platform.files.append("a/part=0", line(number), postfix=f"hour=0{number // 2}")
    platform.files.append("a/part=1", line(8) + b'{"id":"no number"}\n', postfix="hour=01")
    platform.files.append("b/only", line(1) + line(2))


def dump_metastore(thrift, root):
    """Tables and partitions, in Thrift's JSON, as if below `PLACE`."""

    def text(value):
        return serialize(value, TJSONProtocolFactory()).decode().replace(str(root), PLACE)

    return {
        "databases": [text(each) for each in thrift._databases.values()],
        "tables": [text(each) for each in thrift._tables.values()],
        "partitions": [
            text(each) for of_table in thrift._partitions.values() for each in of_table.values()
        ],
    }


def restore_metastore(thrift, dump, root):
    """The other way round."""

    def value(kind, text):
        made = text.replace(PLACE, str(root)).encode()
        return deserialize(kind(), made, TJSONProtocolFactory())

    for each in dump["databases"]:
        thrift.create_database(value(ttypes.Database, each))
    for each in dump["tables"]:
        thrift.create_table(value(ttypes.Table, each))
    for each in dump["partitions"]:
        partition = value(ttypes.Partition, each)
        thrift.add_partitions_req(
            ttypes.AddPartitionsRequest(
                dbName=partition.dbName,
                tblName=partition.tableName,
                parts=[partition],
                ifNotExists=False,
            )
        )
    thrift.added = 0


# ------------------------------------------------------------------ rollups


def orders_of_shops(lake):
    """What the rollup was made of: three slices, one of them of two fragments."""
    return lake.publish(("a", 5), ("a", 6), ("a", 6), ("b", 5))


def write_rollup(out, folder):
    folder.mkdir()
    lake = Lake(folder)
    orders_of_shops(lake)
    lake.run()
    move_iceberg(folder / "warehouse", out / "warehouse", str(folder), PLACE)
    dump = dump_metastore(lake.metastore.thrift, folder)
    (out / "metastore.json").write_text(json.dumps(dump, indent=1) + "\n")


def restore_rollup(data, folder):
    """What the former version made, and the files that it was made of. Returns: the lake."""
    lake = Lake(folder)
    dump = json.loads((data / "rollup" / "metastore.json").read_text())
    restore_metastore(lake.metastore.thrift, dump, folder)
    move_iceberg(data / "rollup" / "warehouse", folder / "warehouse", PLACE, str(folder))
    orders_of_shops(lake)
    return lake


# ------------------------------------------------------------------ all


def former_versions():
    """Folders of what is kept, the oldest first."""
    return sorted(path for path in DATA.iterdir() if path.is_dir())


def expected(data):
    """What the former version found."""
    return json.loads((data / "golden.json").read_text())


def write_brokers(out, folder, etcd):
    """Live a life, and kill the broker amid it. Returns: what it left."""
    broker = broker_at(folder / "broker", etcd.endpoint)
    with broker, Client(ClientConfig(address=broker.address, file_root=broker.fragments)) as client:
        append_all(client)
        client.append(ORDERS, orders(*range(40)))
        table = TypedTable(client, folder)
        with closing(table.sql):
            table.run()
            client.append(ORDERS, orders(40, 41) + b"no record\n")
            client.append(ORDERS, orders(60, flags=Flags.CONTINUE_TXN, producer=b"\3" * 6))
            table.run()
            client.append(ORDERS, orders(42, 43))  # which no run has seen
            found = {"numbers": table.numbers(), "locations": table.locations()}
        contents = {name: b"".join(client.read(name, 0, block=False)) for name in CODECS}
        broker.kill()
    asyncio.run(put_shard(etcd.endpoint))
    keys = asyncio.run(dump_etcd(etcd.endpoint))
    (out / "etcd.json").write_text(json.dumps(keys, indent=1) + "\n")
    shutil.copytree(broker.spool, out / "spool")
    for owner in (out / "spool" / "spools").glob("*/home.json"):
        # Every machine is another one, this one too.
        text = re.sub(r'"boot": "[^"]*', f'"boot": "{uuid.UUID(int=0)}', owner.read_text())
        owner.write_text(text)
    shutil.copytree(broker.fragments, out / "fragments")
    move_iceberg(folder / "iceberg", out / "iceberg", str(folder), PLACE)
    found["locations"] = {k: v.replace(str(folder), PLACE) for k, v in found["locations"].items()}
    found["journals"] = {
        name: {
            "end": len(content),
            "sha1": hashlib.sha1(content, usedforsecurity=False).hexdigest(),
        }
        for name, content in contents.items()
    }
    return found


async def put_shard(endpoint):
    async with EtcdClient([endpoint]) as etcd:
        await etcd.put(item_key(SHARDS, SHARD.id), encode_shard_spec(SHARD))


def write_sensor(out, folder):
    with new_instance() as instance:
        folder.mkdir()
        platform = SensorPlatform(folder, instance)
        write_raw(platform)
        for _ in range(3):
            platform.tick()
        (out / "cursor.txt").write_text(f"{platform.cursor}\n")
        dump = dump_metastore(platform.metastore.thrift, platform.files.root)
        (out / "metastore.json").write_text(json.dumps(dump, indent=1) + "\n")


def main(version):
    out = DATA / version
    if out.exists():
        raise SystemExit(f"golden_former: {out.relative_to(ROOT)} exists, and stays as it is")
    binary = find_etcd() or tools.etcd()
    with tempfile.TemporaryDirectory(prefix="gazette-golden-") as name, contextlib.ExitStack() as s:
        etcd = s.enter_context(EtcdServer(binary))
        folder, made = Path(name), Path(name) / "out"
        made.mkdir()
        found = write_brokers(made, folder, etcd)
        write_sensor(made, folder / "sensor")
        write_rollup(made / "rollup", folder / "rollup")
        (made / "golden.json").write_text(json.dumps(found) + "\n")
        shutil.copytree(made, out)
    print(f"{out.relative_to(ROOT)} written")


if __name__ == "__main__":
    main(sys.argv[1])
