"""Applications to try out, and to begin from. Run them from a checkout; see the README of each."""
