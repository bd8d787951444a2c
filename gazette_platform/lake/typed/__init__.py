"""Typed tables: each committed message of their journals exactly once, as a typed row of an Iceberg table.

Nouns: a *run* reads of each journal a *range* of bytes, in *tasks* that run side by side; *screening* tells
which of their messages are committed and new; the *state* says how far a table has come, and is published
with the rows or not at all. Cost of a run: what it reads, and a state that is written anew.
"""
