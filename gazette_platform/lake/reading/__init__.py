"""Content of journals for tables: where each byte is, how to fetch it, and whether its values fit.

A *segment* is a span of a journal that one fragment file holds, or that a broker must be asked for. Files are read where
engines read them; a broker is the fallback. Cost: one listing of a journal, and one read of each file that is needed.
"""
