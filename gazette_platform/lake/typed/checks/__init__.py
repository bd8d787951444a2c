"""What is told of a typed table, and what keeps it in order: completeness, standing, upkeep."""
