"""Consumers: applications whose state is in step with what they have read of journals.

`recoverylog` keeps the files of a store in a journal, so that any process can go on with them.
"""

from __future__ import annotations
