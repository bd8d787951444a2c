"""Rows of typed tables: blocks of lines become Arrow columns, and bad records keep their place and reason.

`parsing` reads a block at once with the parser of `lake.reading`, which also finds the good lines of a block that is refused.
`debezium` takes Debezium's envelopes apart first. `placing` adds the journal and offset of each row, and `parsing` words why a line
is not a record.

Guarantee: a line is a row, or bad, whatever lines stand beside it.
"""
