"""Retrievers for other frameworks, for directories that `qontext serve` can open. Each needs its own package."""
