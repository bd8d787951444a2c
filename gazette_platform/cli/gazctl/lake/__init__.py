"""`gazctl lake`: describe journals as tables, see how these stand, and run typed ones.

`commands` and `typed_commands` have the options; the work is in the other modules, since the lake is an extra and slow
to import.
"""

from __future__ import annotations

from gazette_platform.cli.gazctl.connection import connect, noun

__all__ = ["app"]

app = noun(
    "lake",
    connect,
    __name__,
    {
        "create": "commands:create",
        "apply": "commands:apply",
        "list": "commands:list_tables",
        "describe": "commands:describe",
        "infer": "commands:infer",
        "drop": "commands:drop",
        "ddl": "commands:ddl",
        "check": "commands:check",
        "run": "commands:run",
        "backfill": "commands:backfill",
        "reprocess": "commands:reprocess",
        "register": "commands:register",
        "flush": "commands:flush",
        "repair": "commands:repair",
        "set-aside": "commands:set_aside",
        "quarantine": "commands:quarantine",
        "doctor": "commands:doctor",
    },
    help_text="Create tables over journals, check and maintain them. Gazette's own tools do not have these commands.",
)
