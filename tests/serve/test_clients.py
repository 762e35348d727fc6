"""The clients that people have: openai, LangChain and LlamaIndex against the server and beside it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.conftest import Running, World

from qontext.frame.errors import QontextError
from qontext.models.retriever import Retriever
from qontext.retrieve.searcher import Searcher

QUESTION = "Which lamp was repaired by masons after a storm?"


def test_openai(site: Running, world: World) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
    texts = ["A lamp.", "A storm."]
    retriever = Retriever(str(world / "mine" / "model"), device="cpu", precision="fp32", max_length=80)
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="mine", input=texts, **encoding)
        assert len(answer.data) == 2 and answer.usage.total_tokens > 0
        if encoding.get("encoding_format") != "base64":
            vectors = np.array([row.embedding for row in answer.data], np.float32)
            np.testing.assert_allclose(vectors, retriever.encode(texts, "passage"), atol=1e-5)
    assert len(client.embeddings.create(model="mine", input="A lamp.", dimensions=8).data[0].embedding) == 8
    assert "mine" in {model.id for model in client.models.list()}
    assert client.models.retrieve("mine-query").id == "mine-query"
    with pytest.raises(openai.NotFoundError, match="unknown model 'gpt'"):
        client.embeddings.create(model="gpt", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="token ids"):
        client.embeddings.create(model="mine", input=[1, 2, 3])


def test_langchain_embeddings(site: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    embeddings = langchain.OpenAIEmbeddings(
        model="mine", base_url=f"{site.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    vectors = embeddings.embed_documents(["A lamp.", "A storm."])
    assert len(vectors) == 2 and len(vectors[0]) == 16
    assert embeddings.embed_query("A lamp.") == pytest.approx(vectors[0], abs=1e-5)


def test_llama_index_embeddings(site: Running) -> None:
    module = pytest.importorskip(
        "llama_index.embeddings.openai", reason="llama-index-embeddings-openai is not installed"
    )
    model = module.OpenAIEmbedding(model_name="mine", api_base=f"{site.url}/v1", api_key="none")
    assert len(model.get_text_embedding("A lamp.")) == 16
    assert len(model.get_text_embedding_batch(["A lamp.", "A storm."])) == 2


@pytest.fixture
def expected(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    return [answer.passage for answer in Searcher(world / "mine", device="cpu").search(QUESTION, 4)]


def test_langchain_retriever(world: World, expected: list[str]) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from qontext.integrations.langchain import QontextRetriever

    retriever = QontextRetriever(directory=str(world / "mine"), k=4, device="cpu")
    documents = retriever.invoke(QUESTION)
    assert [document.id for document in documents] == expected
    assert documents[0].metadata["document"] and documents[0].page_content
    assert len(retriever.batch([QUESTION, "boat"])) == 2
    tool = retriever.as_tool(name="reports", description="Reports about lighthouses.")
    assert documents[0].page_content == tool.invoke(QUESTION)[0].page_content
    words = QontextRetriever(
        directory=str(world / "mine"), system="bm25", where=("document=south/*",), device="cpu"
    )
    assert {d.metadata["document"].split("/")[0] for d in words.invoke("boat")} == {"south"}
    with pytest.raises(QontextError, match="empty"):
        retriever.invoke(" ")


def test_llama_index_retriever(world: World, expected: list[str]) -> None:
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    from qontext.integrations.llama_index import QontextRetriever

    retriever = QontextRetriever(str(world / "mine"), k=4, device="cpu")
    nodes = retriever.retrieve(QUESTION)
    assert [node.node_id for node in nodes] == expected
    scores = [node.score for node in nodes]
    assert scores == sorted(scores, reverse=True)
    assert nodes[0].metadata["title"] and nodes[0].text
