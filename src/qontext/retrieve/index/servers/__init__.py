"""Vectors on a server: Milvus, and PostgreSQL with pgvector. Whoever searches files need not read this folder."""
