"""The encoder gives what the library's own forward gives, piece by piece, for every architecture."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder, load_encoder
from qontext.models.retriever import Retriever


def small_batch(encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Three random sequences of 20, 7 and 3 tokens, padded."""
    generator = torch.Generator().manual_seed(3)
    ids_NT = torch.randint(5, encoder.vocab_size, (3, 20), generator=generator)
    mask_NT = torch.arange(20)[None] < torch.tensor([20, 7, 3])[:, None]
    return ids_NT.masked_fill(~mask_NT, encoder.tokenizer.pad_token_id), mask_NT


def test_hidden_states_and_logits_equal_the_librarys(checkpoint: tuple[Path, Any]) -> None:
    folder, model = checkpoint
    encoder = load_encoder(str(folder))
    ids, mask = small_batch(encoder)
    with torch.no_grad():
        expected = model.base_model(ids, attention_mask=mask.long(), output_hidden_states=True)
        hidden = encoder(ids, mask, layers=(0, 1, 2, 3, 4, -1))
        for ours, theirs in zip(hidden, (*expected.hidden_states, expected.last_hidden_state), strict=True):
            torch.testing.assert_close(ours[mask], theirs[mask])
        last = AutoModel.from_pretrained(folder).eval()(ids, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(hidden[-1][mask], last[mask])
        logits = model(ids, attention_mask=mask.long()).logits
        torch.testing.assert_close(encoder.mlm_logits(hidden[-1][mask]), logits[mask])
    assert encoder.hidden_size == 32 and encoder.num_layers == 4 and encoder.vocab_size == 160


def test_padding_and_neighbors_change_nothing(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    ids, mask = small_batch(encoder)
    with torch.no_grad():
        (together,) = encoder(ids, mask)
        for row, length in enumerate((20, 7, 3)):
            alone = ids[row : row + 1, :length]
            for alone_mask in (torch.ones_like(alone, dtype=torch.bool), None):
                (hidden,) = encoder(alone, alone_mask)
                torch.testing.assert_close(hidden[0], together[row, :length])


def test_the_masks_made_for_gpus_hide_the_same(
    checkpoint: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    ids, mask = small_batch(encoder)
    for mask_NT in (mask, torch.ones_like(mask)):
        with torch.no_grad(), monkeypatch.context() as patch:
            (library,) = encoder(ids, mask_NT)
            patch.setattr("qontext.models.families._ready_made", lambda config, mask: True)
            if encoder.config._attn_implementation == "sdpa":
                (ours,) = encoder(ids, mask_NT)
                torch.testing.assert_close(ours[mask_NT], library[mask_NT])


def test_every_position_up_to_max_length_can_be_addressed(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    assert encoder.max_length == (8192 if encoder.config.model_type == "modernbert" else 512)
    ids = torch.full((1, min(encoder.max_length, 600)), 9)
    (h0,) = encoder(ids, None, layers=(0,))
    assert h0.shape == (1, ids.shape[1], 32)
    if encoder.config.model_type != "modernbert":
        with pytest.raises((IndexError, RuntimeError)):
            encoder.embed(torch.full((1, encoder.max_length + 1), 9))


def test_layers_above_the_highest_wanted_do_not_run(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    ids, mask = small_batch(encoder)
    ran = []
    layers = encoder.backbone.get_submodule(encoder.family.layers)
    for number, layer in enumerate(layers, start=1):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    encoder(ids, mask, layers=(2, 1))
    assert ran == [1, 2]


def test_copied_layers_continue_as_the_backbone_would(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    ids, mask = small_batch(encoder)
    head = encoder.fresh_layers(2, copy_from=(2, 3)).eval()
    with torch.no_grad():
        middle, last = encoder(ids, mask, layers=(2, 4))
        torch.testing.assert_close(head(middle, mask)[mask], last[mask])
    ours = {p.data_ptr() for p in encoder.parameters()}
    assert not ours & {p.data_ptr() for p in head.parameters()}


def test_fresh_layers_are_new_seeded_and_of_the_backbones_kind(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    ids, mask = small_batch(encoder)
    before = torch.random.get_rng_state()
    one, same, other = (encoder.fresh_layers(2, seed=seed).eval() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    backbone = encoder.backbone.get_submodule(encoder.family.layers)
    assert all(type(layer) is type(backbone[0]) for layer in one.layers)
    shapes = [p.shape for p in backbone[1].parameters()]
    assert all([p.shape for p in layer.parameters()] == shapes for layer in one.layers)
    weights = [p for p in one.parameters() if p.dim() == 2]
    assert all(0.001 < p.std() < 0.03 for p in weights), "initialized by the backbone's own rule"
    with torch.no_grad():
        hidden = encoder.embed(ids)
        out = one(hidden, mask)
        assert torch.equal(out, same(hidden, mask))
        assert not torch.allclose(out[mask], other(hidden, mask)[mask])
        for row, length in enumerate((20, 7, 3)):
            alone = one(hidden[row : row + 1, :length], None)
            torch.testing.assert_close(alone[0], out[row, :length])
    assert all(p.requires_grad for p in one.parameters())


def test_fresh_layers_see_in_both_directions_and_over_any_distance(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    head = encoder.fresh_layers(1).eval()
    hidden = torch.randn(1, 20, 32, requires_grad=True)
    for place in (0, 19):
        head(hidden, None)[0, place].square().sum().backward()
        assert hidden.grad is not None and (hidden.grad[0].abs().sum(-1) > 0).all()
        hidden.grad = None


def test_positions_reach_the_fresh_layers_where_they_belong_to_the_layers(
    checkpoint: tuple[Path, Any],
) -> None:
    """A layer without positions commutes with a permutation of its input; these two kinds must not."""
    encoder = load_encoder(str(checkpoint[0]))
    head = encoder.fresh_layers(1, copy_from=(1,)).eval()
    generator = torch.Generator().manual_seed(5)
    hidden, order = torch.randn(1, 20, 32, generator=generator), torch.randperm(20, generator=generator)
    with torch.no_grad():
        difference = (head(hidden[:, order], None) - head(hidden, None)[:, order]).abs().max()
    assert (difference > 1e-5) == (encoder.config.model_type in ("mpnet", "modernbert"))


def test_the_mlm_head_is_tied_to_the_word_embeddings(checkpoint: tuple[Path, Any]) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    words = encoder.model.get_input_embeddings().weight
    assert encoder.model.get_output_embeddings().weight is words
    assert words.requires_grad and sum(p is words for p in encoder.parameters()) == 1


def test_no_parameter_is_without_use(checkpoint: tuple[Path, Any]) -> None:
    """What no loss reaches would stall distributed training, and be decayed by the optimizer for nothing."""
    encoder = load_encoder(str(checkpoint[0]), dropout=0.0)
    ids, mask = small_batch(encoder)
    head = encoder.fresh_layers(1)
    (hidden,) = encoder(ids, mask)
    encoder.mlm_logits(head(hidden, mask)[mask]).logsumexp(-1).sum().backward()
    unused = [name for name, p in [*encoder.named_parameters(), *head.named_parameters()] if p.grad is None]
    assert unused == []


def test_dropout_can_be_replaced(checkpoint: tuple[Path, Any]) -> None:
    ids, mask = small_batch(load_encoder(str(checkpoint[0])))
    still = load_encoder(str(checkpoint[0]), dropout=0.0).train()
    noisy = load_encoder(str(checkpoint[0]), dropout=0.5).train()
    assert torch.equal(still(ids, mask)[0], still(ids, mask)[0])
    assert not torch.equal(noisy(ids, mask)[0], noisy(ids, mask)[0])
    head = noisy.fresh_layers(1).train()
    hidden = torch.randn(1, 4, 32)
    assert not torch.equal(head(hidden, None), head(hidden, None))


def test_eager_attention_gives_the_same(checkpoint: tuple[Path, Any]) -> None:
    fused, eager = (load_encoder(str(checkpoint[0]), attention=name) for name in ("sdpa", "eager"))
    ids, mask = small_batch(fused)
    with torch.no_grad():
        torch.testing.assert_close(fused(ids, mask)[0][mask], eager(ids, mask)[0][mask], atol=1e-5, rtol=1e-4)


def test_positions_are_those_that_the_embeddings_add(checkpoint: tuple[Path, Any]) -> None:
    folder, _ = checkpoint
    encoder = load_encoder(str(folder))
    ids = small_batch(encoder)[0][:1]  # a text without padding
    if encoder.config.model_type == "modernbert":
        assert encoder.positions(4) is None
        return
    added: list[torch.Tensor] = []
    table = encoder.backbone.embeddings.position_embeddings
    table.register_forward_hook(lambda module, inputs, output: added.append(output[-1]))
    encoder.embed(ids)
    (expected,) = added
    if encoder.config.model_type == "electra":
        expected = encoder.backbone.embeddings_project(expected)
    assert encoder.positions(ids.shape[1]).allclose(expected, atol=1e-6)


def test_a_retriever_without_all_weights_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights.pop("bert.encoder.layer.1.attention.self.key.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        QontextError, match=r"do not belong to this config.json: 1 are missing, such as .*key.weight"
    ):
        Retriever(folder, device="cpu")
