"""A summer that publishes some sums twice: both are right, and one is too many."""

import msgspec

from examples.stream_sum.messages import SUMS, id_of
from gazette_platform.app import run
from gazette_platform.message import Flags
from tests.soak.summer import SoakSummer


class DoubledSums(SoakSummer):
    async def consume(self, txn, envelope):
        await super().consume(txn, envelope)
        chunk = envelope.message
        if (
            envelope.uuid.flags != Flags.ACK_TXN
            and envelope.journal != SUMS
            and not chunk.Data
            and chunk.ID[0] < 128
        ):
            total = self._open[txn.shard.id][id_of(chunk)]
            await txn.publisher.publish(SUMS, msgspec.structs.replace(total))


run(DoubledSums())
