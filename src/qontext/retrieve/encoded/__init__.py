"""What `encode` writes, and how it is read: vectors, windows, postings, vectors or bits of tokens; and their passages."""
