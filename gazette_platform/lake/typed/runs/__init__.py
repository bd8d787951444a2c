"""Runs of typed tables: everything that turns content of journals into rows, in one commit.

A run has one driver and workers (threads, or tasks of Spark), which share a *job*. `running` is the usual run; `backfilling`
makes rows of journals again, and `amending` those of quarantine; `amending` also publishes both. `journals` asks brokers for
heads and fragments, and measures the lag; `working` carries out an order; `tail` gives rows that no run has published yet.

Guarantee: rows, quarantine and state are published together or not at all; of two runs that overlap one is refused.
"""
