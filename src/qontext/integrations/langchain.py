"""A LangChain retriever.

from qontext.integrations.langchain import QontextRetriever
retriever = QontextRetriever(directory="runs/mine", k=5)
retriever.invoke("how do I reset my password?")
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from qontext.frame.errors import missing_extra
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import SystemName

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError:
    raise missing_extra("langchain-core", "langchain", "the LangChain retriever") from None


class QontextRetriever(BaseRetriever):
    """Returns the best passages as documents, with id, title, place and score in their metadata."""

    directory: str
    """The directory to search; see `qontext.Searcher`."""
    system: SystemName | None = None
    """Another system than the recommended one, such as bm25."""
    k: int = Field(5, ge=1)
    """Number of passages to return."""
    where: tuple[str, ...] = ()
    """Conditions on the metadata, such as folder=guide."""
    device: str = "auto"

    @cached_property
    def _searcher(self) -> Searcher:
        searcher = Searcher(self.directory, device=self.device)
        if self.system is not None:
            searcher.system = self.system
        return searcher

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(id=answer.id, page_content=answer.text, metadata=answer.metadata)
            for answer in self._searcher(query, self.k, self.where)
        ]
