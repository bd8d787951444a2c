"""A summer that adds some chunks twice to its sums, as if they had been delivered twice, and numbers them once."""

from examples.stream_sum.messages import SUMS, crc64, id_of
from gazette_platform.app import run
from gazette_platform.message import Flags
from tests.soak.summer import SoakSummer


class DoubleCounting(SoakSummer):
    async def consume(self, txn, envelope):
        await super().consume(txn, envelope)
        chunk = envelope.message
        if (
            envelope.uuid.flags != Flags.ACK_TXN
            and envelope.journal != SUMS
            and chunk.SeqNo == 7
            and chunk.ID[0] < 64
        ):
            total = self._open[txn.shard.id][id_of(chunk)]
            total.Value = crc64(chunk.Data, total.Value)


run(DoubleCounting())
