"""Counts n-grams of texts, exactly once, and returns the counts: a consumer with a gRPC API of its own."""
