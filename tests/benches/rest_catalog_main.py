"""An Iceberg REST catalog as a process: ``python rest_catalog_main.py PORT JARS JDBC_URI USER WAREHOUSE``, password on stdin.

The servlet is that of Iceberg's own tests, which its clients are tested against, over a catalog in a database. It is driven
from here over py4j, as the embedded metastore is: the Jetty among PySpark's jars serves it on loopback. Iceberg's fixture would serve it to whoever
asks, and has 200 MB of jars.
"""

import signal
import sys
import threading

from gazette_platform.platform import tools
from gazette_platform.platform.component import Jvm
from gazette_platform.platform.layout import pyspark_jars

HOST = "127.0.0.1"


def main(port: str, jars: str, uri: str, user: str, warehouse: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    password = sys.stdin.readline().strip()
    machine = Jvm(
        java_home=tools.java(21),
        # Iceberg's come first: PySpark has others of the same libraries.
        classpath=[*jars.split(":"), f"{pyspark_jars()}/*"],
        options=["-Xmx256m", "-XX:+UseSerialGC"],
    )
    with machine as jvm:
        catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        settings = {"uri": uri, "warehouse": warehouse, "jdbc.schema-version": "V1"}
        login = {"jdbc.user": user, "jdbc.password": password}
        catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
        catalog.initialize("served", settings | login)
        jetty = jvm.org.sparkproject.jetty
        adapter = jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog)
        servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(adapter)
        context = jetty.servlet.ServletContextHandler()
        context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(jvm.java.net.InetSocketAddress(HOST, int(port)))
        server.setHandler(context)
        server.start()
        stop.wait()
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
