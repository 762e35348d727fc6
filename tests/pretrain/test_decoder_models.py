"""Decoders as encoders: the equation of CoT-LM, and what stands around a text; prompts in pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.conftest import SENTENCES, save_checkpoint
from tests.models.test_families import save_family
from tests.pretrain.steps import load_method, loss_of

from qontext.models.encoder import Encoder, load_encoder
from qontext.pretrain.masking import Vocabulary

QUERIES = ["Why did the ferries stay?", "Ice and winter", "who knows the river", "What stayed?"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(save_family("llama", tmp_path_factory.mktemp("llama")))


def test_cot_lm_is_its_equation(llama: Encoder) -> None:
    """One text at a time, by the library's own language model."""
    method = load_method("cot-lm", llama, has_queries=True, late_mlm_weight=0.5)
    loss = loss_of(method, SENTENCES, QUERIES)
    model: Any = llama.model
    passage_losses, query_losses = [], []
    for passage, query in zip(SENTENCES, QUERIES):
        a, b = (torch.tensor(llama.tokenizer(text)["input_ids"]) for text in (passage, query))
        hidden = model.model(a[None]).last_hidden_state[0]
        passage_losses += F.cross_entropy(model.lm_head(hidden[:-1]), a[1:], reduction="none")
        vector = method.head(hidden[-1] / hidden[-1].square().mean().sqrt())
        embeddings = torch.cat([vector[None], model.model.embed_tokens(b[:-1])])
        query_losses += F.cross_entropy(model(inputs_embeds=embeddings[None]).logits[0], b, reduction="none")
    expected = 0.5 * torch.stack(passage_losses).mean() + torch.stack(query_losses).mean()
    torch.testing.assert_close(loss, expected)


def test_the_context_learns_of_the_passage_through_the_vector_alone(llama: Encoder) -> None:
    method = load_method("cot-lm", llama, has_queries=True, late_mlm_weight=0.0)
    one, other = (loss_of(method, texts, QUERIES) for texts in (SENTENCES, SENTENCES[::-1]))
    assert not torch.isclose(one, other)
    with torch.no_grad():
        method.head.weight.zero_()
    one, other = (loss_of(method, texts, QUERIES) for texts in (SENTENCES, SENTENCES[::-1]))
    torch.testing.assert_close(one, other)


def test_a_prompt_stands_before_a_text_and_is_neither_masked_nor_predicted(tmp_path: Path) -> None:
    save_checkpoint("bert", tmp_path)
    encoder = load_encoder(tmp_path)
    encoder.prompts |= {"passage": "ice: ", "query": "why "}
    words, tokenizer = Vocabulary.of(encoder.tokenizer, encoder.prompts), encoder.tokenizer
    passage, query = words.frames()
    assert passage.before == (
        tokenizer.cls_token_id,
        *tokenizer("ice:", add_special_tokens=False)["input_ids"],
    )
    assert query.before == (tokenizer.cls_token_id, *tokenizer("why", add_special_tokens=False)["input_ids"])
    read: list[Any] = []
    method = load_method("cocondenser", encoder, has_queries=True)
    method.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].encoder))
    loss_of(method, SENTENCES, QUERIES)
    texts = {tuple(ids[mask].tolist()): ids for part in read for ids, mask in zip(part.ids, part.mask)}
    assert len(texts) == 8 and all(ids[-1] == tokenizer.sep_token_id for ids in texts)
    fronts = [ids[: len(passage.before)] == passage.before for ids in texts]
    assert sum(fronts) == 4 and sum(ids[: len(query.before)] == query.before for ids in texts) == 4
    for part in read:
        _, column = part.positions // part.ids.shape[1], part.positions % part.ids.shape[1]
        assert (column >= min(len(passage.before), len(query.before))).all()
