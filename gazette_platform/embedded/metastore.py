"""The Hive Metastore as a component; see `metastore_main` for the process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gazette_platform.embedded import tools
from gazette_platform.embedded.component import Component, answers_tcp
from gazette_platform.embedded.layout import pyspark_jars
from gazette_platform.embedded.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "metastore_component"]

NAME = "metastore"


def metastore_component(folder: Path, *, port: int, warehouse: Path) -> Component:
    """A metastore with its database in `folder`.

    Args:
        warehouse: folder of databases that name no location.
    """
    pyspark_jars()  # says what to install if they are missing
    command = (
        sys.executable,
        "-m",
        "gazette_platform.embedded.metastore_main",
        f"--host={HOST}",
        f"--port={port}",
        f"--dir={folder}",
        f"--warehouse={warehouse.as_uri()}",
        f"--java-home={tools.java(21)}",
    )
    return Component(
        name=NAME,
        command=command,
        ports=(port,),
        # It binds after its schema is made, and answers from then on.
        ready=lambda: answers_tcp(HOST, port),
        stop_timeout_s=20.0,
    )
