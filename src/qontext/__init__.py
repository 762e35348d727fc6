"""Qontext turns a pile of documents into a dense retriever. Python calls: `qontext.api`."""

__version__ = "0.1.0"
