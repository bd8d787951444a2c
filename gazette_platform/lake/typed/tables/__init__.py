"""The typed table and its quarantine, together: opened, read back, rows replaced, merged and settled."""
