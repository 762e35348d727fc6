"""Training generators of queries from pairs of passages and queries."""
