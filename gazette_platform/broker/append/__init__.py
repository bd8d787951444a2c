"""Appends to a journal whose primary we are: what one needs next, and how many are made in one step.

`events` and `fsm` decide, without clock or I/O. `content` receives what a client sends, at a fair pace; `batch` plans
the appends that are made together; `appender` carries out.

Guarantee: an append is checked as if it came alone, on top of all before it; it is answered once it is part of the
journal, or else its outcome is said to be unknown. Content that was taken is never asked for twice.

Cost: one write, one proposal and one index update a batch; a small append that has arrived whole needs no task.
"""
