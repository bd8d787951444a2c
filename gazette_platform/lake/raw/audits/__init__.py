"""Audits of raw tables: do brokers, files and accounts agree, and do records fit their specs?

`consistency` compares brokers, files and accounts: of one journal from an offset on, within a bound, as a tick does, or of all.
`fit` compares records with the spec, and words what unfit ones mean. `registration_status` says
how far a table is registered, and which fragments are overdue. An audit changes nothing: it returns findings, each with the next step.

Cost: a page of brokers' listings, two or three metastore calls, and listings of directories; a full audit reads all content.
"""
