"""Appends to a journal whose primary we are: what one needs next, and how many are made in one step.

`events`, `rules` and `fsm` decide, without clock or I/O. `appender` carries that out.
"""
