"""Servers of the platform as components: etcd, brokers, the Hive Metastore, an S3 server, and the runs of typed tables.

Each is on loopback, and keeps its data in a folder of the platform. The S3 server is versitygw, over a folder in which
objects are plain files: with it a platform on one machine is like one on S3. Its keys are made once, and known to
those who can read that folder.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.component import HOST, Component, answers_http, answers_tcp
from gazette_platform.platform.layout import pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gazette_platform.lake.settings import S3Access
    from gazette_platform.platform.layout import PlatformDir

ETCD = "etcd"


def etcd_component(folder: Path, *, port: int, peer_port: int) -> Component:
    """Etcd with its data in `folder`; the binary is installed if need be."""
    url = f"http://{HOST}:{port}"
    peer = f"http://{HOST}:{peer_port}"
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o700)  # else etcd warns at every start
    command = (
        str(tools.etcd()),
        "--name=gazette",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        # An existing data folder keeps the peer URL it was made with; only the name has to match.
        f"--initial-cluster=gazette={peer}",
        "--initial-cluster-token=gazette-embedded",
        # etcd takes JSON over HTTP at its port otherwise, also from web pages, which cannot speak
        # gRPC. What is left to them is /health, /version and /metrics.
        "--enable-grpc-gateway=false",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    )
    return Component(
        name=ETCD,
        command=command,
        ports=(port, peer_port),
        ready=lambda: answers_http(f"{url}/health"),
        start_timeout_s=30.0,
        stop_timeout_s=10.0,
    )


# Enough for three replicas, each in a zone of its own.
_ZONES = ("zone-a", "zone-b", "zone-c")

# The whole platform stops, so no other broker will take over, and there is no use in waiting for long.
_DRAIN_TIMEOUT_S = 20


def broker_component(
    layout: PlatformDir,
    *,
    name: str,
    number: int,
    of: int,
    port: int,
    http_port: int,
    etcd: str,
    requires: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> Component:
    """One broker.

    A lone one is in the zone that clients are in by default; several are spread over three, and
    relieve each other when one ends.

    Args:
        name: of the component, and id of the broker.
        number: of the broker, from 1, `of` so many.
        etcd: its address, as a URL.
        environment: variables with credentials of stores, if not those of this process.
    """
    zone = "local" if of == 1 else _ZONES[(number - 1) % len(_ZONES)]
    spool = layout.spool / name
    spool.mkdir(parents=True, exist_ok=True)
    command = (
        sys.executable,
        "-m",
        "gazette_platform.cli.gazette",
        "serve",
        f"--broker.zone={zone}",
        f"--broker.id={name}",
        f"--broker.host={HOST}",
        f"--broker.port={port}",
        f"--broker.http-host={HOST}",
        f"--broker.http-port={http_port}",
        f"--broker.file-root={layout.fragments}",
        f"--broker.spool-dir={spool}",
        f"--broker.drain-timeout={_DRAIN_TIMEOUT_S}s",
        f"--etcd.address={etcd}",
        "--etcd.prefix=/gazette/cluster",
        "--etcd.lease=20s",
        "--log.level=info",
    )
    return Component(
        name=name,
        command=command,
        requires=requires,
        environment=dict(environment or {}),
        ports=(port, http_port),
        ready=lambda: answers_http(f"http://{HOST}:{http_port}/debug/ready"),
        start_timeout_s=60.0,
        stop_timeout_s=_DRAIN_TIMEOUT_S + 25.0,
    )


METASTORE = "metastore"


def metastore_component(
    folder: Path,
    *,
    port: int,
    warehouse: str,
    s3: S3Access | None = None,
    environment: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
) -> Component:
    """A metastore with its database in `folder`.

    Args:
        warehouse: location of databases that name none, a URL.
        s3: the store that locations may be in, besides folders.
        environment: variables with its credentials, if not those of this process.
        requires: what must be up before.
    """
    pyspark_jars()  # says what to install if they are missing
    command: tuple[str, ...] = (
        sys.executable,
        "-m",
        "gazette_platform.platform.programs.metastore",
        f"--host={HOST}",
        f"--port={port}",
        f"--dir={folder}",
        f"--warehouse={warehouse}",
        f"--java-home={tools.java(21)}",
    )
    if s3 is not None:
        command += (f"--jars={tools.s3_jars()}",)
        command += tuple(f"--set={name}={value}" for name, value in s3.hadoop().items())
    return Component(
        name=METASTORE,
        command=command,
        ports=(port,),
        environment=dict(environment or {}),
        requires=requires,
        # It binds after its schema is made, and answers from then on.
        ready=lambda: answers_tcp(HOST, port),
        stop_timeout_s=20.0,
    )


S3: Final = "s3"
OWN_STORE: Final = "s3"
"""What ``--store`` says for a server of the platform's own."""
_BUCKET: Final = "gazette"
_REGION: Final = "us-east-1"


def own_store(port: int) -> str:
    """URL of the fragment store on the platform's own server."""
    return f"s3://{_BUCKET}/?endpoint=http://{HOST}:{port}&region={_REGION}"


def read_keys(folder: Path) -> dict[str, str]:
    """Variables that give AWS tools the keys of the server in `folder`, made if there are none.

    Raises: SetupError: the file with them was changed.
    """
    path = folder / "keys.json"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(file, "w") as stream:
            json.dump(
                {"access": f"gazette-{secrets.token_hex(4)}", "secret": secrets.token_urlsafe(24)},
                stream,
            )
    try:
        keys = json.loads(path.read_text("utf-8"))
        return {
            "AWS_ACCESS_KEY_ID": str(keys["access"]),
            "AWS_SECRET_ACCESS_KEY": str(keys["secret"]),
            "AWS_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{path} does not hold the keys of the S3 server: {error!r} (remove it, and the server "
            "gets new ones)"
        ) from error


def s3_component(folder: Path, *, port: int) -> Component:
    """A server with its objects in `folder`, and one bucket.

    Raises: SetupError: it cannot be built: Go is missing.
    """
    objects, attributes, users = (folder / name for name in ("objects", "attributes", "users"))
    for each in (objects / _BUCKET, attributes, users):
        each.mkdir(parents=True, exist_ok=True)
    keys = read_keys(folder)
    command = (
        str(tools.s3_server()),
        "--quiet",
        "--port",
        f"{HOST}:{port}",
        "--iam-dir",
        str(users),
        "posix",
        # Not every file system keeps extended attributes, so they lie in files of their own.
        "--sidecar",
        str(attributes),
        str(objects),
    )
    return Component(
        name=S3,
        command=command,
        ports=(port,),
        environment={
            "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
        },
        ready=lambda: answers_tcp(HOST, port),
        start_timeout_s=60.0,
        stop_timeout_s=10.0,
    )


TYPED: Final = "typed"


def typed_component(
    layout: PlatformDir, *, environment: Mapping[str, str], requires: tuple[str, ...]
) -> Component:
    """The component. It is ready at once: until a table spec says `every` it does nothing.

    Args:
        layout: folders of the platform.
        environment: variables that let programs find the platform.
        requires: what runs call.
    """
    return Component(
        name=TYPED,
        command=(
            sys.executable,
            "-m",
            "gazette_platform.platform.programs.typed",
            str(layout.tables),
            str(layout.logs / f"{TYPED}.log"),
        ),
        requires=requires,
        environment=environment,
        ready=lambda: True,
        stop_timeout_s=60.0,
        restartable=True,
    )
