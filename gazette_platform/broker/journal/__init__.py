"""A journal at this broker: who serves it (`resolver`), our part in it (`replica`), and what of its content is where (`gaps`).

Guarantee: a replica belongs to one assignment of one journal. When we are demoted, or the journal is made again, another
replica begins with a spool of its own. Before content counts, `claims` has written into etcd who holds it.

Cost: idle journals have no tasks, only timers (`pulses`) for windows, listings and syncs.
"""
