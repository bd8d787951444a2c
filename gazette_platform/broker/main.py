"""The process of a broker: from its start until it has to leave, or fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.broker.serve import Broker
from gazette_platform.ops.process import settle_memory, tune_malloc
from gazette_platform.serving.process import run_server

if TYPE_CHECKING:
    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.serve import Pages
    from gazette_platform.serving.members.line import SupervisorLine


def run(config: BrokerConfig, pages: Pages | None, line: SupervisorLine | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    A second signal ends it at once, and --broker.drain-timeout within some time, whatever hangs.

    Args:
        pages: the console, which `config` may switch off.
        line: to the supervisor of several brokers, if this is one of them.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """

    def settle(broker: Broker) -> None:
        settle_memory()
        broker.keep_small()
        if line is not None:
            line.serves(broker.metrics.exposition)

    tune_malloc()
    run_server(
        lambda: Broker(config, pages),
        flag="broker.drain-timeout",
        on_start=settle,
        overseer=line,
    )
