"""Blocks of lines as typed rows: parsed at once, bad records kept apart with a reason, each with its place in its journal."""
