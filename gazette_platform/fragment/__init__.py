"""Fragments: how a journal's content becomes immutable files, and is found again.

The open *spool* of a journal holds its newest content on local disk. A closed one is *persisted*
to the journal's fragment store. The *index* knows every fragment that this broker can serve, local
and stored; its *cover sets* keep those that are not superfluous.

Guarantee: content is served from local disk until a store is known to hold it.
"""

from __future__ import annotations
