"""What is reported of a typed table, and what keeps it in order: completeness, status, upkeep."""
