"""What changes a typed table out of journals: runs, backfills, reprocessing, and what their workers do."""
