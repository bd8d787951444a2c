"""Loads all that a life needs, so that what is forked from here begins at once. Leaves no thread, and no channel of gRPC."""

from __future__ import annotations

import importlib

from gazette_platform.codecs import decompressor
from gazette_platform.hive.model import ttypes
from gazette_platform.ops.extras import required
from gazette_platform.protocol import CompressionCodec
from tests.typed_crash import life

__all__ = ["warm_up"]


def warm_up() -> None:
    """Name what is loaded late: Thrift's module of the metastore alone takes a second."""
    importlib.import_module("pyspark.sql.connect.session")
    required("hive_metastore.ThriftHiveMetastore", extra="lake", by="lives")
    assert ttypes.Table is not None
    assert life.live is not None
    decompressor(CompressionCodec.GZIP)


warm_up()
