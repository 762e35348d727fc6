"""A LlamaIndex retriever.

from qontext.integrations.llama_index import QontextRetriever
retriever = QontextRetriever("runs/mine", k=5)
retriever.retrieve("how do I reset my password?")
"""

from __future__ import annotations

from collections.abc import Sequence

from qontext.frame.errors import missing_extra
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import SystemName

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError:
    raise missing_extra("llama-index-core", "llama-index", "the LlamaIndex retriever") from None


class QontextRetriever(BaseRetriever):
    """Returns the best passages as nodes with scores."""

    def __init__(
        self,
        directory: str,
        *,
        k: int = 5,
        system: SystemName | None = None,
        where: Sequence[str] = (),
        device: str = "auto",
    ) -> None:
        self._searcher, self.k, self.where = Searcher(directory, device=device), k, where
        if system is not None:
            self._searcher.system = system
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=answer.id, text=answer.text, metadata=answer.metadata), score=answer.score
            )
            for answer in self._searcher(query_bundle.query_str, self.k, self.where)
        ]
