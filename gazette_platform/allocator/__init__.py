"""Assigns the items of a cluster (journals, shards) to its members (brokers, consumers).

Nouns: item, member, assignment, slot (0 is the primary), zone, leader (the oldest member), shed
capacity (what an exiting member gives up). Guarantee: with the keys and the steps of Gazette's
allocator, so that brokers of both kinds may share a cluster. `solver` says who ought to hold
what (`max_flow` only finds a maximum flow), and which transactions
lead there without losing a consistent replica, `loop` runs them, `member` makes a process a
member and hands over what it holds when it leaves. Cost: in the number of items that change, and in slices of some milliseconds.
"""

from __future__ import annotations

from gazette_platform.allocator.loop import Allocator, AllocatorMetrics, DrainStatus
from gazette_platform.allocator.member import RETRY_S, Announcement, announce
from gazette_platform.allocator.solver import (
    Loads,
    Piece,
    Solver,
    batch_pieces,
    converge_dead_item,
    converge_item,
    effective_limits,
    load_ratio,
)

__all__ = [
    "RETRY_S",
    "Allocator",
    "AllocatorMetrics",
    "Announcement",
    "DrainStatus",
    "Loads",
    "Piece",
    "Solver",
    "announce",
    "batch_pieces",
    "converge_dead_item",
    "converge_item",
    "effective_limits",
    "load_ratio",
]
