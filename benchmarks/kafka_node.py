"""One node of Apache Kafka, broker and controller in one process, with the settings that it comes with."""

from __future__ import annotations

import base64
import subprocess
import uuid
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.component import answers_tcp
from gazette_platform.testing.servers import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KafkaNode"]

_HOST = "127.0.0.1"
_FORMAT_S = 60.0
_RECORD_BYTES_MAX = 16 << 20
# As its own scripts start it.
_OPTIONS = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)


@final
class KafkaNode(ServerProcess):
    """A node of its own cluster (KRaft), from `start` to `kill`.

    Args:
        folder: for its log segments and settings.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__("Kafka", log=folder / "kafka.log", temporary=folder)
        self._folder = folder
        self._jars = tools.kafka_server_jars()
        self._java = tools.java(21) / "bin" / "java"

    @property
    def server(self) -> str:
        """What clients are configured with."""
        return f"{_HOST}:{self.port}"

    @property
    def version(self) -> str:
        """Of Kafka."""
        (jar,) = self._jars.glob("kafka-clients-*.jar")
        return jar.stem.removeprefix("kafka-clients-")

    @override
    def start(self, *, timeout_s: float = 60.0) -> None:
        settings = self._folder / "server.properties"
        settings.write_text(self._settings())
        java = [str(self._java), *_OPTIONS, "-cp", f"{self._jars}/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
            capture_output=True,
            text=True,
            timeout=_FORMAT_S,
            check=False,
        )
        if done.returncode:
            raise SetupError(f"Kafka cannot format its folder: {done.stderr[-2000:]}")
        self.run([*java, "kafka.Kafka", str(settings)], timeout_s=timeout_s)

    @override
    def _is_ready(self) -> bool:
        return answers_tcp(_HOST, self.port)

    def _settings(self) -> str:
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{_HOST}:{self.http_port}",
            "listeners": f"PLAINTEXT://{self.server},CONTROLLER://{_HOST}:{self.http_port}",
            "advertised.listeners": f"PLAINTEXT://{self.server}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "segments"),
            "message.max.bytes": str(_RECORD_BYTES_MAX),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())
