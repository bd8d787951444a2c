"""Prunes of raw tables: accounts follow fragments that brokers deleted, and an empty Hive partition is dropped."""
