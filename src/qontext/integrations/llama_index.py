"""A LlamaIndex retriever.

from qontext.integrations.llama_index import QontextRetriever
retriever = QontextRetriever("runs/mine", k=5)
retriever.retrieve("how do I reset my password?")
"""

from __future__ import annotations

from qontext.frame.errors import missing_extra
from qontext.integrations.results import SearchSource

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError:
    raise missing_extra("llama-index-core", "llama-index", "the LlamaIndex retriever") from None


class QontextRetriever(BaseRetriever):
    """Returns the best passages of a directory as nodes with scores."""

    def __init__(
        self,
        directory: str,
        *,
        k: int = 5,
        system: str | None = None,
        folder: str | None = None,
        device: str = "auto",
    ) -> None:
        self._source, self.k, self.folder = SearchSource(directory, system, device), k, folder
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=TextNode(id_=r.id, text=r.text, metadata=r.metadata), score=r.score)
            for r in self._source.results(query_bundle.query_str, self.k, self.folder)
        ]
