"""Serving: search page, HTTP API, MCP for agents, annotation studies.

systems      directories → searchable systems: rankers, with passages and models that they share
batching     concurrent requests → batches for one thread that computes
schemas      what the HTTP API reads and writes
security     checks on every request: host, origin, token, size
app, api     the ASGI application and its endpoints; pages and runs are its HTML side
mcp          the same search as tools for agents
annotate/    a study in which people judge pairs of texts
"""
