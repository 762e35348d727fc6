"""A LangChain retriever.

from qontext.integrations.langchain import QontextRetriever
retriever = QontextRetriever(directory="runs/mine", k=5)
retriever.invoke("how do I reset my password?")
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from qontext.frame.errors import missing_extra
from qontext.integrations.results import SearchSource

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError:
    raise missing_extra("langchain-core", "langchain", "the LangChain retriever") from None


class QontextRetriever(BaseRetriever):
    """Returns the best passages of a directory as documents, with id, title and score in their metadata."""

    directory: str
    """Output directory of adapt, encode or index."""
    system: str | None = None
    """One of the directory's systems, such as NAME/bm25. Default: the best one."""
    k: int = Field(5, ge=1)
    """Number of passages to return."""
    folder: str | None = None
    """Return only passages of documents in this folder."""
    device: str = "auto"

    @cached_property
    def _source(self) -> SearchSource:
        return SearchSource(self.directory, self.system, self.device)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        results = self._source.results(query, self.k, self.folder)
        return [Document(id=r.id, page_content=r.text, metadata={**r.metadata, "id": r.id}) for r in results]
