"""The generated Thrift client that PyIceberg installs, behind names that type checkers know.

It is loaded by name because this repository has a folder ``hive_metastore`` too (IDL and templates,
no Python), which tools that look at the source tree would take for the package. And only when it is
used: that takes a second, and whoever wants table specs alone may not have it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # type: ignore[import-untyped]
    from thrift.Thrift import TException  # type: ignore[import-untyped]
    from thrift.transport.TSocket import TSocket  # type: ignore[import-untyped]
    from thrift.transport.TTransport import (  # type: ignore[import-untyped]
        TBufferedTransport,
        TTransportException,
    )
else:
    try:
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.Thrift import TException
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport, TTransportException
    except ImportError:

        class TException(Exception):
            """Never raised."""

        class TTransportException(TException):
            """Never raised."""

        def TSocket(*_: object) -> Any:  # noqa: N802  Thrift's name
            """Raises: SetupError: there is no Thrift."""
            return required("thrift", extra="lake", by="Metastore clients")

        TBinaryProtocol = TBufferedTransport = TSocket


# It logs each failure to connect that it raises, too, as an error: what is raised is reported, and once.
logging.getLogger("thrift.transport.TSocket").setLevel(logging.CRITICAL)

__all__ = [
    "TBinaryProtocol",
    "TBufferedTransport",
    "TException",
    "TSocket",
    "TTransportException",
    "hive_client",
    "ttypes",
]


@final
class _Types:
    """The module of generated types, once the first is asked for."""

    def __getattr__(self, name: str) -> Any:
        module = required("hive_metastore.ttypes", extra="lake", by="Metastore clients")
        return getattr(module, name)


ttypes: Any = _Types()


def hive_client(protocol: Any) -> Any:
    """A generated client that speaks `protocol`."""
    module = required("hive_metastore.ThriftHiveMetastore", extra="lake", by="Metastore clients")
    return module.Client(protocol)
