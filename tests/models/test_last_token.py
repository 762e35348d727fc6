"""A decoder's last token alone, after a prompt that is computed once: the vectors are those of the plain way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.conftest import SENTENCES
from tests.models.test_families import CONFIGS, DECODER, INSTRUCT, save_family, sentencepiece

from qontext.models.attention import LEAST
from qontext.models.retriever import Retriever

NAMES = ["llama", "qwen2", "qwen3", "mistral", "gemma", "granite", "gemma3_text"]
FORM: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A decoder with an instruction before queries; of Gemma 3, one that is causal and looks no farther than 8 tokens."""
    import transformers

    if request.param == "gemma3_text":
        kinds = ["full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(**{**DECODER, "sliding_window": 8, "layer_types": kinds})
        monkeypatch.setitem(CONFIGS, "gemma3_text", lambda: config)
    return save_family(request.param, tmp_path, dense=False, prompts={"query": INSTRUCT})


def plain_vectors(folder: Path, ids: list[Any]) -> np.ndarray[Any, Any]:
    """Text by text, by the library."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        rows = [model(input_ids=torch.tensor(row[None])).last_hidden_state[0, -1] for row in ids]
    return torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()


def opened(folder: Path) -> Retriever:
    return Retriever(folder, **FORM, pooling="lasttoken", batch_tokens=128, max_length=128)


def test_vectors_are_those_of_the_plain_way(folder: Path) -> None:
    retriever = opened(folder)
    assert retriever.last is not None
    for kind in ("query", "passage"):
        ids = retriever.tokenize(SENTENCES, kind)  # type: ignore[arg-type]
        assert len({len(row) for row in ids}) > 2, "some are padded"
        vectors = retriever.encode_tokens(ids, kind)  # type: ignore[arg-type]
        expected = plain_vectors(folder, ids)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_each_call_computes_no_more_than_it_needs(folder: Path) -> None:
    """The instruction once, however often is asked; the last layer's feed-forward part of one token for each text."""
    retriever = opened(folder)
    first: list[int] = []
    last: list[int] = []
    retriever.model.layers[0].register_forward_pre_hook(lambda m, args: first.append(args[0].shape[1]))
    retriever.model.layers[-1].mlp.register_forward_pre_hook(lambda m, args: last.append(args[0].shape[1]))
    length = len(retriever.tokenize([""], "query")[0]) - 1
    assert length > LEAST
    retriever.encode_queries(["Ice.", "Why?"])
    before, *after = first
    assert abs(before - length) <= 1 and all(width < length for width in after)
    first.clear()
    retriever.encode_queries(["Ice."])
    assert first and all(width < length for width in first)
    assert set(last) == {1}


def test_each_tokens_vectors_are_of_the_whole_layer(folder: Path) -> None:
    retriever, whole = opened(folder), Retriever(folder, **FORM, pooling="mean", max_length=128)
    ids = retriever.tokenize(SENTENCES, "query")
    vectors = retriever.encode_tokens(ids, "query")
    both, tokens = retriever.encode_with_tokens(ids, lambda rows: rows)
    np.testing.assert_allclose(both, vectors, atol=1e-5)
    np.testing.assert_allclose(tokens.values, whole.encode_each_token(ids).values, atol=1e-5)


def test_a_prompt_is_shared_as_far_as_texts_begin_alike(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    last = opened(tmp_path).last
    assert last is not None
    prompt = tuple(range(10, 22))
    texts = [np.array([*prompt, 5]), np.array([*prompt[:10], 6, 7, 8])]
    with torch.inference_mode():
        assert last.shared(texts, prompt) == prompt[:10]
        assert last.shared([*texts, np.array([*prompt[: LEAST - 1], 5, 6])], prompt) == ()
        assert last.shared([np.array(prompt)], prompt) == prompt[:-1], "a text keeps a token"
        assert last.shared(texts, prompt[: LEAST - 1]) == ()


@pytest.mark.parametrize("name", ["gemma2", "smollm3"])
def test_other_decoders_stay_whole(name: str, tmp_path: Path) -> None:
    """Gemma 2's attention has no boolean masks; SmolLM3 is of no known architecture."""
    retriever = opened(save_family(name, tmp_path))
    assert retriever.last is None
    ids = retriever.tokenize(SENTENCES, "passage")
    np.testing.assert_allclose(
        retriever.encode_tokens(ids, "passage"), plain_vectors(tmp_path, ids), atol=1e-5
    )


def test_a_bidirectional_decoder_stays_whole(tmp_path: Path) -> None:
    import transformers

    sentencepiece().save_pretrained(tmp_path)
    config = transformers.LlamaConfig(**DECODER)
    transformers.LlamaModel(config).save_pretrained(tmp_path)
    assert opened(tmp_path).last is not None
    config.is_causal = False
    transformers.LlamaModel(config).save_pretrained(tmp_path)
    assert opened(tmp_path).last is None
