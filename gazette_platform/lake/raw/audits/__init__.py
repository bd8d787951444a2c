"""Audits of raw tables: do brokers, files and accounts agree, and do records fit their specs?

`audit` compares one journal from an offset on, within a bound, as a tick does; `audit_index` compares all, for a person who
asks. `fit` reports how fragments depart from the spec, and `findings` words what that means. `status` sums a table up.
An audit changes nothing: it returns findings, each with the next step.

Cost: a page of brokers' listings, two or three metastore calls, and listings of directories; a full audit reads all content.
"""
