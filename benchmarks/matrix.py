"""Appends of each size by so many callers: an RPC for each append, and through the append service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.append_service import through_service
from benchmarks.appends import WARM_UP_S, append_cases, append_figures, measure_case
from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.appends import AppendCase
    from benchmarks.bench import Bench, Scale
    from benchmarks.figures import Figures

__all__ = ["matrix_cases", "measure_matrix", "service_figure"]

_CODEC = "raw"
_CONCURRENCY = (1, 8, 64)


def matrix_cases(scale: Scale) -> list[AppendCase]:
    """Those cases of appends that are measured both ways."""
    return [
        case
        for case in append_cases(scale)
        if case.codec == _CODEC and case.concurrency in _CONCURRENCY
    ]


def service_figure(case: AppendCase) -> str:
    """What names of a case's figures begin with when its appends share an append service.

    >>> from benchmarks.appends import AppendCase
    >>> service_figure(AppendCase("raw", "1mib", 8))
    'append_service_1mib_c8_raw'
    """
    return case.figure.replace("append_", "append_service_", 1)


async def measure_matrix(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields each case's label and figures, first with an RPC each, then through the service."""
    cases = matrix_cases(bench.scale)
    journal = "bench/matrix-rpc"
    await create(bench.client, journal_spec(journal, _CODEC))
    for case in cases:
        yield case.label, await measure_case(bench, case, journal)
    await delete(bench, journal)
    journal = "bench/matrix-service"
    await create(bench.client, journal_spec(journal, _CODEC))
    for case in cases:
        yield f"{case.label}, through the service", await _through_service(bench, case, journal)
    await delete(bench, journal)


async def _through_service(bench: Bench, case: AppendCase, journal: str) -> Figures:
    size, concurrency = SIZES[case.size], case.concurrency

    async def run(window_s: float = bench.scale.window_s) -> Figures:
        spent = await through_service(
            bench, journal, size=size, concurrency=concurrency, window_s=window_s
        )
        return append_figures(
            case, service_figure(case), spent.load, broker_s=spent.broker_s, client_s=spent.client_s
        )

    await run(WARM_UP_S)
    return await bench.repeat(run)
