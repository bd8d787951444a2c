"""Rows of typed tables: blocks of lines become Arrow columns, and bad records keep their place and reason.

`parsing` reads a block at once with Arrow's JSON reader and falls back to single lines (`records`) where that reader is
more lenient, or stricter, than docs/internals/typed-parsing.md. `changes` takes Debezium envelopes apart first. `placing`
adds the journal and offset of each row, and `reasons` words why a line is not a record.

Guarantee: both paths give the same rows.
"""
