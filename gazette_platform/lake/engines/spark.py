"""The Spark session of the lake: raw tables by name, Iceberg tables under ``iceberg.``, typed ones there or in their own catalog.

By its master it is in this process (``local[2]``), drives a cluster from here (``spark://…``), or is that of a server of
Spark Connect (``sc://…``), where nothing needs Java, and jars and servers are whatever that server was given.

Users add properties in a file like Spark's own ``spark-defaults.conf``, which wins over what the platform sets. Secrets may be
in it: it is read when a session starts, and its content is shown nowhere.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gazette_platform.errors import LakeError, SetupError, ValidationError
from gazette_platform.lake.catalog_settings import ICEBERG, CatalogLogin, IcebergCatalog
from gazette_platform.lake.settings import S3Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from gazette_platform.lake.settings import LakeSettings

# Of these a user's value says what is wanted besides: without ours, Iceberg or the store would be gone.
_ADDED: Final = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraClassPath": ":",
    "spark.executor.extraClassPath": ":",
    "spark.driver.extraJavaOptions": " ",
}
_LINE: Final = re.compile(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")


def parse_properties(text: str, where: str) -> dict[str, str]:
    """The properties of `text`: a line each, ``name value`` or ``name=value``; ``#`` begins a comment line.

    A line that ends in a backslash goes on in the next one.

    Args:
        where: for messages.

    Raises: ValidationError: a line is none of these, names no property of Spark, or the master.
    """
    found: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        pending = ""
        if not line or line[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        place = f"{where}:{number}"
        if match is None or not match[2]:
            # Not the value found instead, which may be a secret.
            raise ValidationError(
                "expected a property and its value, such as spark.executor.memory 2g", path=place
            )
        name, value = match[1], match[2].strip()
        if not name.startswith("spark."):
            raise ValidationError(
                f"{name} is not a property of Spark (those of Hadoop begin with spark.hadoop.)",
                path=place,
            )
        if name == "spark.master":
            raise ValidationError("the master is set by GAZETTE_SPARK_MASTER", path=place)
        found[name] = value
    if pending:
        raise ValidationError("the last line ends in a backslash", path=where)
    return found


def read_properties(path: str) -> dict[str, str]:
    """The properties of a file; none for "".

    Raises: SetupError: it cannot be read. ValidationError: see `parse_properties`.
    """
    if not path:
        return {}
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise SetupError(f"cannot read GAZETTE_SPARK_PROPERTIES={path}: {err}") from err
    return parse_properties(text, path)


def combined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Our properties with a user's: theirs win, and lists of jars, extensions and options are joined."""
    found = {**ours, **given}
    for name, separator in _ADDED.items():
        if ours.get(name) and given.get(name):
            found[name] = f"{ours[name]}{separator}{given[name]}"
    return found


# For an Iceberg jar that Spark's own installation has.
PROVIDED = "provided"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_HOST = "127.0.0.1"
_CATALOGS = "spark.sql.catalog."
# Properties of ours: catalogs whose secrets a session is given when it starts, by their names.
_TYPED = "spark.gazette.catalog."
# What a cluster has by default; a local Spark gives up a job with the first worker that is killed.
_ATTEMPTS: Final = 4
_CONNECT_PORT: Final = 15002
_CONNECT_TIMEOUT_S: Final = 10.0


def is_connect(master: str) -> bool:
    """Whether `master` is a server of Spark Connect."""
    return master.startswith("sc://")


# What rows a query gives. Spark's reader of JSON applies pushed filters as soon as it has their columns: it drops
# a row before it sees that the rest of the line is not JSON, which without the filter is a row of NULLs.
_ANSWERS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.json.filterPushdown.enabled": "false",
}


def is_local(master: str) -> bool:
    """Whether the Spark of `master` is this process, or on this machine with it."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def spark_configuration(settings: LakeSettings, *, memory: str = "1g") -> dict[str, str]:
    """Configuration for ``SparkSession.builder``: Hive support, Iceberg catalog, jars.

    A local Spark is on loopback only. On a cluster, executors find the driver by the name of its
    machine, or by `spark.driver.host` of the file of properties, and fetch the jars from it.
    A server of Spark Connect is configured for catalogs only.
    Properties of that file are not among those returned: see `open_session`.

    Args:
        settings: `metastore` is required.
        memory: heap of the driver, which with a local master does all work.

    Raises: SetupError: the metastore is not known, or the Iceberg jar is not there. ValidationError:
        the store is not one that Spark can use, or the master has a token in it.
    """
    metastore = settings.required("metastore")
    if is_connect(settings.spark_master):
        return _connect_configuration(settings, metastore)
    configuration = {
        "spark.master": _with_attempts(settings.spark_master),
        "spark.app.name": "gazette-platform",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_ANSWERS,
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
        # A session that lives longer than a query must see new fragments: no cached listings.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.sql.filesourceTableRelationCacheSize": "0",
        # What Python's workers receive may hold credentials: above this size it would be left in files.
        "spark.broadcast.UDFCompressionThreshold": "100m",
    }
    if is_local(settings.spark_master):
        configuration |= {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.sql.shuffle.partitions": "4",
        }
    if settings.store.startswith("s3:"):
        access = S3Access.of(settings.store, os.environ)
        configuration |= {f"spark.hadoop.{name}": value for name, value in access.hadoop().items()}
    if settings.warehouse:
        configuration["spark.sql.warehouse.dir"] = f"{settings.warehouse}/spark"
    if settings.iceberg_jar:
        configuration["spark.sql.extensions"] = (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        )
        configuration |= _iceberg_catalogs(settings, metastore)
    return configuration | _jars(settings)


def _connect_configuration(settings: LakeSettings, metastore: str) -> dict[str, str]:
    """What a session of a server can set; all else was set when the server started."""
    if re.search(r"[;/]token=", settings.spark_master):
        raise ValidationError(
            "has a token in it, and masters are shown: give it by SPARK_CONNECT_AUTHENTICATE_TOKEN",
            path="GAZETTE_SPARK_MASTER",
        )
    configuration = {"spark.master": settings.spark_master, **_ANSWERS}
    return configuration | (_iceberg_catalogs(settings, metastore) if settings.iceberg_jar else {})


def _with_attempts(master: str) -> str:
    """A local master that tries a task again whose worker was killed, as clusters do."""
    if master == "local":
        return f"local[1,{_ATTEMPTS}]"
    return re.sub(r"\Alocal\[\s*(\d+|\*)\s*\]\Z", rf"local[\1,{_ATTEMPTS}]", master)


def _iceberg_catalogs(settings: LakeSettings, metastore: str) -> dict[str, str]:
    catalog = f"{_CATALOGS}{ICEBERG}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hive",
        f"{catalog}.uri": metastore,
        f"{catalog}.warehouse": settings.required("warehouse"),
        f"{catalog}.cache-enabled": "false",
        **_typed_catalog(settings),
    }


def _typed_catalog(settings: LakeSettings) -> dict[str, str]:
    """The catalog of typed tables, if that is another one; without the secrets of `_secrets`."""
    catalog = settings.iceberg_catalog
    if catalog.kind == "hive":
        return {}
    prefix = f"{_CATALOGS}{catalog.name}"
    location = settings.required("warehouse")
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in catalog.spark(location).items()},
        f"{_TYPED}{catalog.name}": str(catalog),
        # What Spark shows of itself, with one word more than by default.
        "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key",
    }


def _secrets(configuration: Mapping[str, str]) -> dict[str, str]:
    """What `configuration` lacks of catalogs, from the environment. It is to be shown nowhere."""
    found = {}
    for property_name, address in configuration.items():
        if property_name.startswith(_TYPED):
            catalog = IcebergCatalog.parse(address)
            login = CatalogLogin.from_environment(catalog, os.environ)
            for name, value in login.spark(catalog).items():
                found[f"{_CATALOGS}{catalog.name}.{name}"] = value
    return found


def _jars(settings: LakeSettings) -> dict[str, str]:
    """How driver and executors get the jars that they lack."""
    folder = settings.s3_jars if settings.store.startswith("s3:") else ""
    iceberg = settings.iceberg_jar if settings.iceberg_jar != PROVIDED else ""
    if iceberg and not Path(iceberg).is_file():
        raise SetupError(
            f"there is no Iceberg runtime at GAZETTE_ICEBERG_JAR={iceberg} (set it to `{PROVIDED}` "
            "if your Spark has it already)"
        )
    jdbc = settings.jdbc_jar
    if jdbc and not Path(jdbc).is_file():
        raise SetupError(
            f"there is no driver of a database at GAZETTE_JDBC_JAR={jdbc} (leave it unset if your Spark has it already)"
        )
    # Where Java looks for drivers of databases; no executor asks one.
    asks = [jdbc] if jdbc else []
    if is_local(settings.spark_master):
        files = ([f"{folder}/*"] if folder else []) + ([iceberg] if iceberg else [])
        return _class_path("driver", files + asks) | _class_path("executor", files)
    # Machines of executors have no such files: they get them from the driver.
    jars = sorted(map(str, Path(folder).glob("*.jar"))) if folder else []
    jars += [iceberg] if iceberg else []
    return _class_path("driver", asks) | ({"spark.jars": ",".join(jars)} if jars else {})


def _class_path(side: str, files: list[str]) -> dict[str, str]:
    return {f"spark.{side}.extraClassPath": os.pathsep.join(files)} if files else {}


def prepare_environment() -> None:
    """Make Spark's workers run this interpreter; others lack the packages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def start_session(settings: LakeSettings, *, memory: str = "1g") -> SparkSession:
    """A new Spark session, or the one of this process. The caller stops it.

    Raises: see `open_session` and `spark_configuration`.
    """
    return open_session(spark_configuration(settings, memory=memory), settings.spark_properties)


@contextmanager
def running_session(settings: LakeSettings) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end.

    Raises: as `start_session`.
    """
    with keeping_interrupt():
        session = start_session(settings)
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def keeping_interrupt() -> Iterator[None]:
    """Have SIGINT do at the end what it did at the beginning, whatever sessions started and stopped meanwhile.

    PySpark's handler stays behind a session that was stopped, and fails as it asks that one to cancel its jobs.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Nowhere else PySpark sets its own; and what was not set by Python cannot be set again.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def open_session(configuration: Mapping[str, str], properties: str = "") -> SparkSession:
    """A new Spark session, or the one of this process, whose configuration then stays. The caller stops it.

    Args:
        configuration: ours.
        properties: path of a user's file, which wins; or empty. A server of Spark Connect passes over what can
            only be said where it is started.

    Raises: LakeError: the JVM did not start, or the cluster cannot be reached. SetupError: the file, or one of
        `CatalogLogin`, cannot be read, or Spark Connect is not installed. ValidationError: something is wrong in it.
    """
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415  slow to import
        Py4JError,
        Py4JJavaError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415  slow to import
    from pyspark.sql import SparkSession  # noqa: PLC0415

    all_of_it = combined({**configuration, **_secrets(configuration)}, read_properties(properties))
    master = configuration.get("spark.master", "")
    if is_connect(master):
        return _connected(master, all_of_it)
    prepare_environment()
    builder = SparkSession.builder
    for key, value in all_of_it.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as err:
        # The text of the last kind is a whole trace of Java's.
        why = err.java_exception if isinstance(err, Py4JJavaError) else err
        raise LakeError(
            f"Spark did not start: {why} (JAVA_HOME={os.environ.get('JAVA_HOME', '')!r} must be a "
            f"Java 17 or 21; the master is {master})"
        ) from err


def _connected(master: str, configuration: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException, PySparkImportError  # noqa: PLC0415  slow to import
    from pyspark.sql import SparkSession  # noqa: PLC0415  likewise

    at = urlsplit(master)
    address = at.hostname or "", at.port or _CONNECT_PORT
    try:
        # Its client would try again for ten minutes.
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
        builder = SparkSession.builder.remote(master)
        for key, value in configuration.items():
            if key != "spark.master":
                builder = builder.config(key, value)
        return builder.getOrCreate()
    except PySparkImportError as err:
        raise SetupError(
            f"Spark Connect needs more packages ({err}): pip install 'gazette-platform[connect]'"
        ) from err
    except (PySparkException, OSError) as err:
        raise LakeError(
            f"Spark Connect cannot be reached at {address[0]}:{address[1]}: {err} (see that its server runs, and "
            "correct GAZETTE_SPARK_MASTER)"
        ) from err
