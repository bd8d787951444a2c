"""The consumer of the soak as one that takes batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gazette_platform.app import run
from tests.soak.summer import SoakSummer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.app import Transaction
    from gazette_platform.message import Envelope


class BatchSummer(SoakSummer):
    """Sums streams of chunks, batch by batch."""

    @override
    async def consume_batch(
        self, txn: Transaction[Any], envelopes: Sequence[Envelope[Any]]
    ) -> None:
        for envelope in envelopes:
            await self.consume(txn, envelope)


if __name__ == "__main__":
    run(BatchSummer())
