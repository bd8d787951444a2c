"""The generated Thrift client that PyIceberg installs, behind names that type checkers know.

It is loaded by name because this repository has a folder ``hive_metastore`` too (IDL and templates,
no Python), which tools that look at the source tree would take for the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # type: ignore[import-untyped]
from thrift.Thrift import TException  # type: ignore[import-untyped]
from thrift.transport.TSocket import TSocket  # type: ignore[import-untyped]
from thrift.transport.TTransport import (  # type: ignore[import-untyped]
    TBufferedTransport,
    TTransportException,
)

__all__ = [
    "TBinaryProtocol",
    "TBufferedTransport",
    "TException",
    "TSocket",
    "TTransportException",
    "hive_client",
    "ttypes",
]

ttypes: Any = import_module("hive_metastore.ttypes")
hive_client: Any = import_module("hive_metastore.ThriftHiveMetastore").Client
