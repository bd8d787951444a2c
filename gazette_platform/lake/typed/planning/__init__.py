"""Decisions of a typed run: which task reads what, and which messages become rows. No I/O.

A *state* says how far a table has come. From it and the write heads `ranges` plans spans of bytes, split into tasks;
`screening` decides which messages are committed and new, by columns where producers behave (`columnar_sequencer`), else
one by one; `rounds` gives orders to workers until that is known. `last_rows` picks the last message of a key, and
`row_ranges` names rows that an amendment removes.

Guarantee: from the same state and journals follow the same rows, so a repeated run makes no others.
"""
