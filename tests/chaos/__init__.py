"""Breaks a cluster on purpose while clients use it, and checks what they saw.

A *run* starts etcd and brokers in zones, *writers* and *readers* whose every operation is recorded,
and a *nemesis* that executes a *plan* of faults, which overlap. Plan and payloads follow from the
seed; when which append meets which fault does not. Afterwards everything is mended, all journals
are read, of the cluster, of each replica and of the store alone, and
`tests.checker` says whether the history is one that journals may show. The
*verdict* is good only of a run that did something. A *watchdog* distinguishes a machine that is starved
from a fault.

    make chaos SEED=7 MINUTES=10
"""

from __future__ import annotations

from tests.chaos.plan import ALL_KINDS, Fault, FaultKind, make_plan
from tests.chaos.runner import ChaosConfig, run_chaos
from tests.chaos.scene import WorkloadConfig
from tests.chaos.verdict import ChaosResult

__all__ = [
    "ALL_KINDS",
    "ChaosConfig",
    "ChaosResult",
    "Fault",
    "FaultKind",
    "WorkloadConfig",
    "make_plan",
    "run_chaos",
]
