"""Runs of typed tables: everything that turns content of journals into rows, in one commit.

A run has one driver and workers (threads, or tasks of Spark), which share a *job*. `running` is the usual run; `backfilling`
and `reprocessing` are amendments, which make rows of journals or of quarantine again. `journals` asks brokers for heads and
fragments, `working` carries out an order, `tail` gives rows that no run has published yet, `lag` measures what is missing.

Guarantee: rows, quarantine and state are published together or not at all; of two runs that overlap one is refused.
"""
