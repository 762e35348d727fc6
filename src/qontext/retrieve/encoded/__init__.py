"""The output of `encode`, and its readers: vectors, windows, postings, vectors or bits of tokens; and their passages."""
