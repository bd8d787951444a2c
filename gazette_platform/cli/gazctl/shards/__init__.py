"""`gazctl shards`: list, apply and unassign shards of consumers, and maintain their recovery logs.

A module for each verb, or for two that share most of their code. A module is imported when its verb is named.
"""

from __future__ import annotations

from gazette_platform.cli.gazctl.connection import connect_shards, noun

__all__ = ["app"]

app = noun(
    "shards",
    connect_shards,
    __name__,
    {
        "list": "specs:list_shards",
        "apply": "specs:apply",
        "edit": "specs:edit",
        "prune": "recovery:prune",
        "recover": "recovery:recover",
        "unassign": "recovery:unassign",
    },
    help_text="List, apply and unassign shards of consumers, and keep their recovery logs.",
)
