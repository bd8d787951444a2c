"""Finds loops in the rides of bikes, exactly once: CSV in, tables of a database, and a page over HTTP."""
