"""Asking: documents that nobody prepared, questions with sub-queries, and the evidence for what was found."""
