"""Sampling by counters: the same queries in any batch, and the distribution that was asked for."""

import numpy as np
import pytest
import torch

from qontext import api
from qontext.queries.generators.sampling import Sampler


@pytest.mark.parametrize(("precision", "least"), [("fp32", 1.0), ("bf16", 0.9)])
def test_the_batch_does_not_matter(passages, tmp_path, tiny_t5, rows_of, precision, least):
    """In bf16 nearly all queries are the same: where the draw falls close to a boundary, rounding decides."""
    same = {"model": tiny_t5, "max_new_tokens": 10, "temperature": 0.8, "precision": precision}
    large = api.generate(passages, out=tmp_path / "large", **same)
    small = api.generate(passages, out=tmp_path / "small", batch_tokens=80, part_passages=7, **same)
    assert len({query for _, query, _ in rows_of(large.path)}) > 50
    assert large.meta["computed"] == precision
    one, other = set(rows_of(large.path)), set(rows_of(small.path))
    assert len(one & other) >= least * len(one | other)


def test_fewer_samples_are_the_first_ones(passages, tmp_path, tiny_t5, rows_of):
    same = {"model": tiny_t5, "max_new_tokens": 10, "temperature": 0.8}
    two = rows_of(api.generate(passages, out=tmp_path / "two", per_passage=2, **same).path)
    five = rows_of(api.generate(passages, out=tmp_path / "five", per_passage=5, **same).path)
    assert {(p, q) for p, q, _ in two} <= {(p, q) for p, q, _ in five}


def test_another_seed_gives_others(passages, tmp_path, tiny_t5, rows_of):
    same = {"model": tiny_t5, "max_new_tokens": 10}
    one = rows_of(api.generate(passages, out=tmp_path / "one", seed=1, **same).path)
    assert one != rows_of(api.generate(passages, out=tmp_path / "two", seed=2, **same).path)


def test_cache_masks_and_leaving_rows_change_nothing(tiny_t5):
    """Every token is the one that is drawn from the model's plain output for the passage alone, without a cache."""
    from qontext.models.language import load_seq2seq, seq2seq_folder
    from qontext.queries.generators.sampling import Seq2SeqDecoder, draw, end_tokens, start_token

    model, tokenizer = load_seq2seq(seq2seq_folder(tiny_t5))
    texts = ["bees dance", "a glacier is a slow river of ice and carries stones", "bread"]
    tokens = tokenizer(texts, return_tensors="pt", padding=True)
    sampler = Sampler(samples=8, max_new_tokens=12, temperature=2.5)
    with torch.inference_mode():
        decoder = Seq2SeqDecoder(model, tokens.input_ids, tokens.attention_mask)
    drawn = draw(decoder, texts, sampler, end_tokens(model, torch.device("cpu")))
    dice = torch.from_numpy(sampler.dice(texts)).float().reshape(3, 8, -1)
    lengths = set()
    for passage, text in enumerate(texts):
        for number, query in enumerate(drawn[passage]):
            decoder_ids = torch.tensor([[start_token(model), *query]])
            with torch.inference_mode():
                logits = model(**tokenizer(text, return_tensors="pt"), decoder_input_ids=decoder_ids).logits[
                    0
                ]
            again = sampler.pick(logits[:12], dice[passage, number, : len(logits[:12])]).tolist()
            assert again == [*query, tokenizer.eos_token_id][:12]
            lengths.add(len(query))
    assert len(lengths) > 2  # rows did leave at different steps


def test_pick_draws_by_the_truncated_distribution():
    """By hand: p = .5 .3 .15 .05; of the top three, those before which less than .8 lies: .5/.95, .3/.95 → two."""
    logits = torch.log(torch.tensor([0.15, 0.5, 0.05, 0.3])).repeat(20_000, 1)
    u = torch.from_numpy(np.random.default_rng(0).random(20_000)).float()
    drawn = Sampler(top_k=3, top_p=0.8).pick(logits, u)
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert shares[[0, 2]].sum() == 0
    assert torch.allclose(shares[[1, 3]], torch.tensor([0.625, 0.375]), atol=0.02)
