"""A real HDFS of one NameNode and one DataNode, for tests.

PySpark brings Hadoop's client along; the servers are in one more Maven artifact, and the two beside it
hold classes that Java has not had of its own since 11.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from lake_servers import running

from gazette_platform.platform import tools
from gazette_platform.platform.component import HOST, Component, answers_http, choose_ports
from gazette_platform.platform.download import MavenArtifact, fetch_maven, show_step
from gazette_platform.platform.layout import pyspark_jars
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Hdfs", "hdfs_servers"]

_ARTIFACTS = (
    MavenArtifact(
        group="org.apache.hadoop",
        artifact="hadoop-client-minicluster",
        version="3.4.2",
        extension="jar",
        size_bytes=40_068_257,
        sha256="ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77",
    ),
    MavenArtifact(
        group="javax.xml.bind",
        artifact="jaxb-api",
        version="2.3.1",
        extension="jar",
        size_bytes=128_076,
        sha256="88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06",
    ),
    MavenArtifact(
        group="javax.activation",
        artifact="javax.activation-api",
        version="1.2.0",
        extension="jar",
        size_bytes=56_674,
        sha256="43fdef0b5b6ceb31b0424b208b930c74ab58fac2ceeb7b3f6fd3aeb8b5ca4393",
    ),
)
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_FORMAT_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdfs:
    """Where an HDFS is."""

    webhdfs: str
    """Address of its NameNode's REST interface, without a slash at the end."""
    superuser: str
    """Who may do everything."""


@contextmanager
def hdfs_servers(folder: Path) -> Iterator[Hdfs]:
    """An empty HDFS with its files below `folder`, which takes about 600 MB of memory.

    Raises: SetupError: its servers could not be installed or started.
    """
    ports = choose_ports(["rpc", "web", "data", "data-web", "data-ipc"])
    configuration = folder / "conf"
    configuration.mkdir(parents=True)
    _write(
        configuration / "core-site.xml",
        {"fs.defaultFS": f"hdfs://{HOST}:{ports['rpc']}", "hadoop.tmp.dir": str(folder / "data")},
    )
    _write(
        configuration / "hdfs-site.xml",
        {
            "dfs.namenode.http-address": f"{HOST}:{ports['web']}",
            "dfs.datanode.address": f"{HOST}:{ports['data']}",
            "dfs.datanode.http.address": f"{HOST}:{ports['data-web']}",
            "dfs.datanode.ipc.address": f"{HOST}:{ports['data-ipc']}",
            "dfs.datanode.hostname": HOST,
            "dfs.replication": "1",
            # So that listings of a few files have more than one page.
            "dfs.ls.limit": "3",
        },
    )
    superuser = "hdfs"
    environment = {"HADOOP_USER_NAME": superuser}
    java = [str(tools.java(21) / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC"]
    java += ["-cp", ":".join([str(configuration), *_classpath()])]
    subprocess.run(
        [*java, _NAMENODE, "-format", "-force"],
        check=True,
        capture_output=True,
        timeout=patient(_FORMAT_TIMEOUT_S),
        cwd=folder,
        env={**os.environ, **environment},
    )
    hdfs = Hdfs(webhdfs=f"http://{HOST}:{ports['web']}", superuser=superuser)
    listing = f"{hdfs.webhdfs}/webhdfs/v1/?op=LISTSTATUS&user.name={superuser}"
    namenode = Component(
        name="namenode",
        command=(*java, _NAMENODE),
        environment=environment,
        ready=lambda: answers_http(listing),
        start_timeout_s=_START_TIMEOUT_S,
    )
    datanode = Component(
        name="datanode",
        command=(*java, _DATANODE),
        environment=environment,
        ready=lambda: _takes_content(hdfs),
        start_timeout_s=_START_TIMEOUT_S,
    )
    with ExitStack() as stack:
        for component in (namenode, datanode):
            stack.enter_context(running(component, folder / f"{component.name}.log"))
        yield hdfs


def _takes_content(hdfs: Hdfs) -> bool:
    """Whether a NameNode knows a DataNode to send content to: it refuses to name one before."""
    import urllib.request

    where = f"{hdfs.webhdfs}/webhdfs/v1/.ready?op=CREATE&noredirect=true&user.name={hdfs.superuser}"
    request = urllib.request.Request(where, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=5.0) as response:
            return b"Location" in response.read()
    except OSError:
        return False


def _classpath() -> list[str]:
    jars = pyspark_jars()
    found = []
    for artifact in _ARTIFACTS:
        target = tools.cache_dir() / "jars" / artifact.file_name
        with show_step(f"downloading {artifact.artifact}", artifact.size_bytes) as step:
            repository = os.environ.get("GAZETTE_MAVEN_REPOSITORY", "")
            fetch_maven(
                artifact, target, java_home=tools.java(21), step=step, repository=repository
            )
        found.append(str(target))
    # Hadoop's own come first: Spark has other versions of some of their libraries.
    hadoop = sorted(str(jar) for jar in jars.glob("hadoop-client-*.jar"))
    return [*found, *hadoop, f"{jars}/*"]


def _write(path: Path, settings: dict[str, str]) -> None:
    properties = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>{''.join(properties)}</configuration>\n", "utf-8")
