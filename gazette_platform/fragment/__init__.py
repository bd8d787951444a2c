"""The fragments of a journal: which ones exist, local and stored, and which may be removed.

The *index* knows every fragment that a process can serve; its *cover sets* keep those that are not superfluous.
It lists the stores, too. `cover_set` also decides, without I/O, what prunes remove and on what stores and brokers
disagree. Spools, whose fragments are still open, are the broker's (`broker.spool`).
"""
