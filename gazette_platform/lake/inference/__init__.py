"""Specs from samples: look at what journals hold, and propose a table spec with a report of each decision."""
