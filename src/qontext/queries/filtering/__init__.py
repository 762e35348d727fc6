"""Judges of queries: which of them belong to their passages."""
