"""Files of a table: rows that are written by partition, read back, and rewritten."""
