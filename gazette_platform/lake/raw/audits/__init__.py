"""Audits of raw tables: do brokers, files and accounts agree, and do records fit their specs? They change nothing."""
