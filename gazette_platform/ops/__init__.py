"""Foundations that every package shares: clocks, owned tasks, retries, durations, the process and its platform.

Rules that the other packages rely on: time comes from a `Clock`, every task has an owner (`tasks`), `faults` has the waits
between attempts, contains unforeseen errors and counts them, and optional packages are imported by `extras`,
which names the extra to install. Nothing here knows of journals or tables.
"""
