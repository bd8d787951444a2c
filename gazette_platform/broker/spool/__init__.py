"""Spools: the newest content of journals on the local disk, from its first byte until stores have it.

Nouns: a *home* is a folder that one process holds by a lock; a *tenure* in it is one broker's holding of one journal;
a *spool* is the open fragment of a tenure; a *record* (`head_records`) says how much of a spool counts; a
*completed* spool is closed, and on its way to the store (`persister`); *leftovers* are tenures of processes that
ended, for which `verdicts` decides what becomes of them.

Guarantee: what was acknowledged is on this disk, under a record that says so, until a store is known to hold it. It
survives the process however that ends, and with ``--broker.fsync`` the machine. Content without such a record
never belonged to the journal.

Cost: an append writes its content and one record of a disk block; digest and compression trail it in threads.
"""
