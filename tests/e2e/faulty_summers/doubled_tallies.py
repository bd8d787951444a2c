"""A summer whose shard behind the sums counts some of them twice, and passes each on once."""

from gazette_platform.app import run
from tests.soak.summer import SoakSummer


class DoubledTallies(SoakSummer):
    async def _pass_on(self, txn, total):
        await super()._pass_on(txn, total)
        if total.ID[0] < 128:
            txn.store.state["sums"] += 1


run(DoubledTallies())
