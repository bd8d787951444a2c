"""`gazctl journals`: create, list, append to and read journals, and maintain their fragments.

A module for each verb, or for two that share most of their code. A module is imported when its verb is named.
"""

from __future__ import annotations

from gazette_platform.cli.gazctl.connection import connect, noun

__all__ = ["app"]

app = noun(
    "journals",
    connect,
    __name__,
    {
        "list": "specs:list_journals",
        "describe": "describe:describe",
        "top": "describe:top",
        "create": "create:create",
        "delete": "upkeep:delete",
        "apply": "specs:apply",
        "edit": "specs:edit",
        "append": "append:append",
        "read": "read:read",
        "fragments": "fragments:fragments",
        "prune": "prune:prune",
        "verify": "fragments:verify",
        "reset-head": "upkeep:reset_head",
        "flush": "upkeep:flush",
        "suspend": "upkeep:suspend",
        "store-health": "upkeep:store_health",
    },
    help_text="Create, list, append to and read journals, and keep their fragments.",
)
