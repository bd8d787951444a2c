"""The Hive Metastore as a component; see `metastore_main` for the process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gazette_platform.embedded import tools
from gazette_platform.embedded.component import Component, answers_tcp
from gazette_platform.embedded.layout import pyspark_jars
from gazette_platform.embedded.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gazette_platform.lake.s3 import S3Access

__all__ = ["NAME", "metastore_component"]

NAME = "metastore"


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
        "gazette_platform.embedded.metastore_main",
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
        name=NAME,
        command=command,
        ports=(port,),
        environment=dict(environment or {}),
        requires=requires,
        # It binds after its schema is made, and answers from then on.
        ready=lambda: answers_tcp(HOST, port),
        stop_timeout_s=20.0,
    )
