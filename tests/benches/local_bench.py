"""The handlers of `Echo` in this process, without a connection."""

from __future__ import annotations

from h2_server_bench import Echo

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.serving.in_process import LocalChannel


class LocalBench:
    """A channel to the handlers of `Echo`, or of a kind of it."""

    def __init__(self, *, echo=None, recv_bytes_max=8 << 20):
        self.echo = echo or Echo()
        self.metrics = BrokerMetrics()
        self.channel = LocalChannel(
            self.echo.rpcs(), self.metrics.calls, recv_bytes_max=recv_bytes_max
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        await self.channel.close()
        assert not self.channel.tasks
        assert not self.channel.calls
        assert not self.channel.unstarted
        assert not self.channel.deadlines._steps
