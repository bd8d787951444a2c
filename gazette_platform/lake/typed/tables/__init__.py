"""The typed table and its quarantine: opened, written, read back, rows replaced and merged, settled, and their progress."""
