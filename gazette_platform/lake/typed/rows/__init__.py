"""Blocks of lines as typed rows: parsed at once, bad records told by themselves with a reason, each with its place in its journal."""
