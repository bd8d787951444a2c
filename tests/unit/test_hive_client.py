"""The metastore client against a metastore in memory, and against none."""

import socket
import time
from dataclasses import replace

import pytest
from lake_bench import MemoryMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer, TTransportException

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.hive import (
    JSON_STORAGE,
    HiveColumn,
    HivePartition,
    HiveTable,
    MetastoreClient,
    MetastoreSession,
    SharedMetastore,
    partition_name,
)
from gazette_platform.hive.model import ttypes

TABLE = HiveTable(
    database="d",
    name="t",
    location="file:///x",
    columns=(HiveColumn(name="a", type="int", comment="an a"),),
    partition_columns=(HiveColumn(name="p", type="string"),),
    storage=JSON_STORAGE,
    parameters={"k": "v"},
)


@pytest.fixture
def session():
    with MemoryMetastore().connect() as opened:
        yield opened


def test_table_survives_the_wire():
    back = HiveTable.from_thrift(TABLE.to_thrift())
    assert back == replace(TABLE, parameters={"EXTERNAL": "TRUE", "k": "v"})
    assert TABLE.to_thrift().tableType == "EXTERNAL_TABLE"
    assert TABLE.full_name == "d.t"


def test_databases_and_tables_are_made_once(session):
    session.ensure_database("d")
    session.ensure_database("d", location="file:///elsewhere")
    assert session.databases() == ["d"]
    assert session.table("d", "t") is None
    assert session.create_table(TABLE)
    assert not session.create_table(TABLE)
    assert session.tables("d") == ["t"]
    session.drop_table("d", "t")
    session.drop_table("d", "t")
    session.drop_database("d")
    session.drop_database("d")
    assert session.databases() == []


def test_partitions_are_added_once_and_found_by_value(session):
    session.ensure_database("d")
    session.create_table(TABLE)
    many = [HivePartition(values=(f"{n:04}",), location=f"file:///x/p={n}") for n in range(1201)]
    assert session.add_partitions(TABLE, many) == 1201
    assert session.add_partitions(TABLE, many[:3]) == 0
    assert len(session.partitions(TABLE)) == 1201
    assert session.partitions(TABLE) == many
    assert session.partitions_of(TABLE, [("0007",), ("nope",)]) == {("0007",): many[7]}
    changed = replace(many[7], parameters={"rows": "5"})
    session.alter_partitions(TABLE, [changed])
    assert session.partitions_of(TABLE, [("0007",)])["0007",] == changed
    session.drop_partition(TABLE, ("0007",))
    session.drop_partition(TABLE, ("0007",))
    assert len(session.partitions(TABLE)) == 1200


def test_alter_table_reaches_the_partitions():
    memory = MemoryMetastore()
    with memory.connect() as session:
        session.ensure_database("d")
        session.create_table(TABLE)
        session.add_partitions(TABLE, [HivePartition(values=("1",), location="file:///x/p=1")])
        wider = replace(TABLE, columns=(*TABLE.columns, HiveColumn(name="b", type="int")))
        session.alter_table(wider)
        (stored,) = memory.thrift.get_partitions_by_names("d", "t", ["p=1"])
        assert [c.name for c in stored.sd.cols] == ["a", "b"]


def test_refusal_names_server_and_call(session):
    with pytest.raises(LakeError, match=r"thrift://memory:9083 refused create table d\.t: "):
        session.create_table(TABLE)


def test_broken_connection_names_server_and_call():
    class Broken:
        def get_table(self, *_):
            raise TTransportException(message="TSocket read 0 bytes")

    with pytest.raises(LakeError, match=r"thrift://x:1 broke off get table d\.t: TSocket read 0"):
        MetastoreSession(Broken(), "thrift://x:1").table("d", "t")


def test_unreachable_metastore_names_address_and_next_step(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        uri = f"thrift://127.0.0.1:{taken.getsockname()[1]}"
        client = MetastoreClient(uri, connect_timeout_s=2)
        with pytest.raises(LakeError, match=f"cannot reach the Hive Metastore at {uri}.*METASTORE"):
            client.connect().__enter__()
    assert not caplog.records  # Thrift would log it, too


@pytest.mark.parametrize("uri", ["", "host:9083", "http://host:1", "thrift://host", "thrift://h:x"])
def test_malformed_address_is_refused(uri):
    with pytest.raises(ValidationError, match="not a metastore address"):
        MetastoreClient(uri)


def test_partition_names_are_escaped_as_hive_escapes():
    assert partition_name(["A", "b"], ["x=y/z", "50%:é"]) == "a=x%3Dy%2Fz/b=50%25%3Aé"
    with pytest.raises(ValueError, match="zip"):
        partition_name(["a"], [])


def test_session_does_not_hide_other_errors():
    class Faulty:
        def get_table(self, *_):
            raise KeyError("bug")

    with pytest.raises(KeyError):
        MetastoreSession(Faulty(), "thrift://x:1").table("d", "t")


def test_ttypes_are_pyicebergs():
    assert ttypes.__name__ == "hive_metastore.ttypes"


def test_a_metastore_that_does_not_answer_is_not_waited_for_beyond_the_end_of_a_tick():
    """A stopped process, or one whose database hangs: its kernel takes connections and calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = MetastoreClient(f"thrift://127.0.0.1:{server.getsockname()[1]}")
        begun = time.monotonic()
        with SharedMetastore(client, ends_at=begun + 1.0) as shared:
            for _ in range(2):
                with pytest.raises(LakeError, match="broke off"), shared.connect() as session:
                    session.table("d", "t")
        assert time.monotonic() - begun < 30.0  # a call of its own has a minute


def databases_reply(*names):
    """The bytes of an answer to `get_all_databases`."""
    memory = TMemoryBuffer()
    protocol = TBinaryProtocol(memory)
    protocol.writeMessageBegin("get_all_databases", TMessageType.REPLY, 0)
    protocol.writeStructBegin("result")
    protocol.writeFieldBegin("success", TType.LIST, 0)
    protocol.writeListBegin(TType.STRING, len(names))
    for name in names:
        protocol.writeString(name)
    protocol.writeListEnd()
    protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()
    protocol.writeMessageEnd()
    return memory.getvalue()


def test_a_late_answer_is_not_taken_for_that_of_the_next_call():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = MetastoreClient(
            f"thrift://127.0.0.1:{server.getsockname()[1]}", call_timeout_s=0.3
        )
        with client.connect() as session, server.accept()[0] as theirs:
            with pytest.raises(LakeError, match=r"broke off list databases: .*timeout"):
                session.databases()
            theirs.sendall(databases_reply("late"))
            with pytest.raises(LakeError, match=r"broke off list databases: .*open"):
                session.databases()
