"""What Kubernetes does to brokers, played on processes of this machine while clients append and read.

A *play* updates, drains or loses brokers with the order, the signals and the grace of Kubernetes. Each journal
has two or three replicas. Clients have their default settings, and retry. Afterwards `tests.checker` judges the history, and
each replica and the store are read by themselves.

    python -m tests.rollouts --zones aabbcc
"""

from __future__ import annotations

from tests.rollouts.plays import Play
from tests.rollouts.run import RolloutConfig, RolloutResult, run_rollouts

__all__ = ["Play", "RolloutConfig", "RolloutResult", "run_rollouts"]
