"""A process of an application: from its start until it has to leave, or fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_platform.consumer.process.serve import ConsumerProcess
from gazette_platform.serving.process.running import run_server

if TYPE_CHECKING:
    from gazette_platform.consumer.application import Application
    from gazette_platform.consumer.process.config import ConsumerConfig

__all__ = ["run"]


def run(application: Application[Any, Any], config: ConsumerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then hand over.

    A second signal ends it at once, and --consumer.drain-timeout within some time, whatever hangs.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    run_server(lambda: ConsumerProcess(application, config), flag="consumer.drain-timeout")
