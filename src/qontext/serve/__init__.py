"""Serving: search page, HTTP API, MCP for agents, a page on which people judge.

systems      directories → searchable systems: rankers, with passages and models that they share
batching     concurrent requests → batches for one thread that computes
schemas      what the HTTP API reads and writes
security     checks on every request: host, origin, token, size
app, api     the ASGI application and its endpoints; pages and runs are its HTML side
mcp          the same search as tools for agents
judge        pairs of texts that people judge, one by one
"""
