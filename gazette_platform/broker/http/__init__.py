"""HTTP: the gateway to journals, live tails for browsers, and diagnostics."""
