"""The embedded Hive Metastore as a process of its own: ``python -m gazette_platform.platform.metastore``.

Hive's own main class cannot bind to one address, and the metastore has no authentication, so its
classes are driven from here over py4j: the handler, the lock tables, and a Thrift server on
127.0.0.1. All classes come out of PySpark's jars; nothing is compiled or downloaded for it.

The JVM dies with this process, however it ends: py4j's gateway exits when its standard input
breaks. Derby is one process only; a lock file of a killed JVM is taken over by the next.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import Jvm, root_cause
from gazette_platform.platform.layout import package_data, pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType


_log = logging.getLogger(__name__)

# Enough for tens of thousands of partitions: 250-330 MB resident were measured.
_HEAP = "-Xmx256m"
# Dropping a table with 500 partitions overflows the default stack of 512k.
_STACK = "-Xss8m"
_THREADS_MIN = 4
_THREADS_MAX = 64
# Between looks at locks, and at whether the server still serves.
_POLL_S = 2.0


class MetastoreServer:
    """A metastore in a JVM of ours, listening on one address.

    Args:
        state_dir: Derby's database lives in its subfolder ``db``.
        warehouse: location of databases that name none, a URL.
        java_home: of a runtime from 17 to 21.
        jars: folders of jars beside PySpark's.
        settings: of Hive and Hadoop, over those of hive-site.xml.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        warehouse: str,
        java_home: Path,
        jars: Sequence[Path] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._warehouse = warehouse
        self._settings = dict(settings or {})
        self._jvm = Jvm(
            java_home=java_home,
            classpath=(
                str(package_data("hive_metastore")),
                f"{pyspark_jars()}/*",
                *(f"{folder}/*" for folder in jars),
            ),
            options=self._java_options(),
            cwd=state_dir,
        )
        self._view: Any = None
        self._server: Any = None
        self._locks: Any = None

    def open(self, host: str, port: int) -> None:
        """Start the JVM, make the schema if there is none, and bind.

        Raises: SetupError: the JVM did not start, or the address is taken.
        """
        from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra
            Py4JError,
        )

        self._state_dir.mkdir(parents=True, exist_ok=True)
        jvm = self._jvm.open()
        try:
            self._server = self._thrift_server(jvm, host, port)
        except Py4JError as error:
            raise SetupError(
                f"the Hive Metastore could not start on {host}:{port} with its data in "
                f"{self._state_dir}: {root_cause(error)} "
                "(is the port in use, or another one running?)"
            ) from error
        self._view = jvm

    def _java_options(self) -> list[str]:
        return [
            _HEAP,
            _STACK,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # it starts in half the time, and Derby is the bottleneck
            "--add-opens=java.base/java.net=ALL-UNNAMED",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            f"-Dgazette.metastore.dir={self._state_dir}",
            f"-Dgazette.warehouse={self._warehouse}",
            f"-Dderby.stream.error.file={self._state_dir / 'derby.log'}",
            f"-Djava.io.tmpdir={self._state_dir}",
            f"-Dlog4j2.configurationFile={package_data('hive_metastore') / 'log4j2.properties'}",
        ]

    def _thrift_server(self, jvm: Any, host: str, port: int) -> Any:
        metastore = jvm.org.apache.hadoop.hive.metastore
        conf = jvm.org.apache.hadoop.hive.conf.HiveConf()
        for name, value in self._settings.items():
            conf.set(name, value)
        handler = metastore.HiveMetaStore.newRetryingHMSHandler(
            metastore.HiveMetaStore.HMSHandler("gazette", conf, False), conf
        )
        if not self._has_lock_tables(jvm, conf):
            # autoCreateAll does not make the tables of locks and transactions; all come in one
            # transaction, and making them twice fails.
            metastore.txn.TxnDbUtil.prepDb(conf)
        self._locks = metastore.txn.TxnUtils.getTxnStore(conf)
        thrift = jvm.org.apache.thrift
        transport = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress(host, port))
        args = (
            thrift.server.TThreadPoolServer.Args(transport)
            .processor(metastore.TSetIpAddressProcessor(handler))
            .transportFactory(thrift.transport.TTransportFactory())
            .protocolFactory(thrift.protocol.TBinaryProtocol.Factory())
            .minWorkerThreads(_THREADS_MIN)
            .maxWorkerThreads(_THREADS_MAX)
        )
        return thrift.server.TThreadPoolServer(args)

    def _has_lock_tables(self, jvm: Any, conf: Any) -> bool:
        url = conf.get("javax.jdo.option.ConnectionURL")
        connection = jvm.java.sql.DriverManager.getConnection(url)
        try:
            found = connection.getMetaData().getTables(None, "APP", "NEXT_LOCK_ID", None)
            return bool(found.next())
        finally:
            connection.close()

    def serve(self) -> None:
        """Answer calls until `stop`. Blocks."""
        self._server.serve()

    def drop_dead_locks(self) -> None:
        """Drop locks whose holders have said nothing for ``hive.txn.timeout``.

        Hive's main class would start a thread for it. Without, what is killed as it commits to a table has others wait for ever.
        """
        self._locks.performTimeOuts()

    def stop(self) -> None:
        """Stop taking calls; `serve` returns. Safe to call from another thread."""
        self._server.stop()

    def close(self) -> None:
        """Close Derby, so that the next start needs no recovery, and end the JVM."""
        from py4j.protocol import (  # noqa: PLC0415  an extra
            Py4JError,
        )

        if self._view is not None:
            try:
                self._view.java.sql.DriverManager.getConnection("jdbc:derby:;shutdown=true")
            except Py4JError:
                # Derby reports its own orderly end as an SQLException.
                _log.info("derby is closed")
            self._view = None
        self._jvm.close()


def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns: the exit code."""
    parser = argparse.ArgumentParser(description="Run the embedded Hive Metastore.")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, required=True, help="TCP port to bind")
    parser.add_argument("--dir", type=Path, required=True, help="folder of its database")
    parser.add_argument("--warehouse", required=True, help="URL of the default warehouse")
    parser.add_argument("--java-home", type=Path, required=True, help="a Java 17 or 21 runtime")
    parser.add_argument("--jars", type=Path, action="append", default=[], help="folder of jars")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)

    server = MetastoreServer(
        state_dir=options.dir.resolve(),
        warehouse=options.warehouse,
        java_home=options.java_home,
        jars=options.jars,
        settings=dict(options.set),
    )
    stopping = threading.Event()

    def ask_to_stop(_signum: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    try:
        server.open(options.host, options.port)
    except SetupError as error:
        server.close()
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the log of this process
        return 1
    serving = threading.Thread(target=server.serve, name="metastore-serve", daemon=True)
    serving.start()
    _log.info("hive metastore on thrift://%s:%s", options.host, options.port)
    # Wakes up now and then: a thread that died must end the process, and locks outlive who held them.
    while serving.is_alive() and not stopping.wait(_POLL_S):
        server.drop_dead_locks()
    if stopping.is_set():
        server.stop()
        serving.join(timeout=5)
        server.close()
        return 0
    _log.error("the thrift server ended by itself")
    return 1


if __name__ == "__main__":
    sys.exit(main())
