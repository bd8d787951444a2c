"""Counts n-grams of texts, exactly once, and tells the counts: a consumer with a gRPC API of its own."""
