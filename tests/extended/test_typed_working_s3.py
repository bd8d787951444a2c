"""Files that an order of a typed run writes to a real S3 server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from object_servers import s3_server
from pyiceberg.io import load_file_io
from typed_orders import Typed
from typed_world import spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.runs.working import carry_out, discard

pytestmark = [pytest.mark.etcd, pytest.mark.s3]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A server of S3 with a bucket, and PyIceberg's properties to reach it."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket("typed")
        yield (
            server,
            {
                "s3.endpoint": server.endpoint,
                "s3.access-key-id": server.access_key,
                "s3.secret-access-key": server.secret_key,
                "s3.region": "us-east-1",
            },
        )


@pytest.fixture
def typed(broker, tmp_path):
    with Client(ClientConfig(address=broker.address, file_root=broker.fragments)) as client:
        made = Typed(client, broker.fragments, "working", tmp_path)
        yield made
        made.close()


def test_files_are_written_to_objects_and_removed_again(typed, bucket):
    server, properties = bucket
    typed.wanted = spec(partitions=(parse_partition("truncate(10, n)"),))
    a = typed.journal("a")
    typed.store(a, typed.messages(*range(200)) + b"bad\n")
    job, [order] = typed.job()
    job = replace(
        job, location="s3://typed/a", quarantine_location="s3://typed/b", io_properties=properties
    )
    done = carry_out(job, order)
    files = [*done.output.files, *done.output.quarantined]
    assert len(files) == 21

    def held():
        return {
            f"s3://{path.relative_to(server.folder)}" for path in server.folder.rglob("*.parquet")
        }

    assert held() == {file.path for file in files}
    io = load_file_io(properties, "s3://typed/a")
    assert sum(len(io.new_input(file.path)) for file in files) == sum(file.bytes for file in files)
    discard(job, done.output)
    assert held() == set()
    elsewhere = replace(job, location="s3://nowhere/a")
    with pytest.raises(LakeError, match="cannot write s3://nowhere/a/data/"):
        carry_out(elsewhere, order)
    assert held() == set()
