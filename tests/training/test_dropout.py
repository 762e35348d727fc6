"""The CPU's dropout does what PyTorch's does (share, scale, gradient, attention), and depends on row and place alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.models.conftest import batch
from tests.models.test_families import save_family
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qontext.models.encoder import load_encoder
from qontext.training import dropout
from qontext.training.dropout import CheapDropout, attend, draw_kept, drawn_for, drop, use_cheap_dropout
from qontext.training.randomness import U64, hashed
from qontext.training.step import recompute_layers

CPU = torch.device("cpu")


def keys(rows: int, step: int = 0) -> U64:
    return hashed(42, "dropout", step, np.arange(rows))


def drawn(*shapes: tuple[int, ...], p: float = 0.1, step: int = 0) -> list[Tensor]:
    """The masks of one forward pass, one after the other."""
    with drawn_for(keys(shapes[0][0], step)):
        return [draw_kept(shape, p, CPU).bool() for shape in shapes]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_is_p_and_the_expectation_is_kept(p: float) -> None:
    x = torch.ones(1_000, 401)  # not a multiple of four
    with drawn_for(keys(1_000)):
        y = drop(x, p)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert y[y != 0].unique().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)


def test_the_gradient_is_the_mask() -> None:
    x = torch.randn(7, 13, requires_grad=True)
    with drawn_for(keys(7)):
        y = drop(x, 0.3)
    y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad * x, y)
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_none_all_and_evaluation() -> None:
    x = torch.randn(5)
    with drawn_for(keys(5)):
        assert torch.equal(drop(x, 0.0), x)
        assert torch.equal(drop(x, 1.0), torch.zeros(5))
        assert torch.equal(CheapDropout(0.5).eval()(x), x)


def deviations(p: float, *pairs: tuple[Tensor, Tensor]) -> list[float]:
    """The distance of two masks from independence, in standard deviations."""
    values = []
    for one, other in pairs:
        product = (one.double() - (1 - p)) * (other.double() - (1 - p))
        values.append(abs(product.sum().item()) / (product.numel() ** 0.5 * p * (1 - p)))
    return values


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_are_independent_of_each_other(p: float) -> None:
    """Other dropouts of the model, steps, rows, heads, tokens and channels: they agree as often as chance has it."""
    rows, t, h = 48, 64, 96
    hidden, again, attention = drawn((rows, t, h), (rows, t, h), (rows, 4, t, t), p=p)
    (later,) = drawn((rows, t, h), p=p, step=1)
    pairs = [(hidden, again), (hidden, later)]
    pairs += [(hidden[..., d:], hidden[..., :-d]) for d in (*range(1, 9), 16, 32, 64)]
    pairs += [(hidden[:, d:], hidden[:, :-d]) for d in (1, 2, 4, 32)]
    pairs += [(hidden[d:], hidden[:-d]) for d in (1, 2, 4, 32)]
    pairs += [(attention[:, d:], attention[:, :-d]) for d in (1, 2)]
    pairs += [(attention[:, :, d:], attention[:, :, :-d]) for d in (1, 4, 32)]
    pairs += [(attention[:, :, d:, d:], attention[:, :, :-d, :-d]) for d in (1, 4, 32)]
    assert max(deviations(p, *pairs)) < 4.5
    shares = [mask.double().sum((1, 2)).flatten() for mask in (hidden, again, later)]
    spread = torch.cat(shares).sub(t * h * (1 - p)).square().mean() / (t * h * p * (1 - p))
    assert spread.item() == pytest.approx(1, abs=0.4), "rows differ by as much as chance has it"


def test_a_mask_depends_on_the_row_and_the_place_and_not_on_the_shape() -> None:
    for wide, narrow in [((6, 24, 10), (6, 17, 10)), ((6, 3, 24, 24), (6, 3, 17, 17)), ((6, 9), (6, 9))]:
        (whole,), (part,) = drawn(wide), drawn(narrow)
        assert torch.equal(whole[tuple(map(slice, narrow))], part)
        with drawn_for(keys(6)[[4, 1]]):
            assert torch.equal(draw_kept((2, *wide[1:]), 0.1, CPU).bool(), whole[[4, 1]])


def test_large_masks_are_drawn_in_blocks_that_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn((5, 7, 9))
    monkeypatch.setattr(dropout, "_HASHES_AT_A_TIME", 8)
    assert torch.equal(drawn((5, 7, 9))[0], whole[0])


@pytest.fixture
def twins(checkpoint: tuple[Path, Any]) -> tuple[Any, Any]:
    """An encoder of some architecture while it is trained, with dropout and without."""
    noisy, still = (load_encoder(str(checkpoint[0]), dropout=rate).train() for rate in (0.1, 0.0))
    use_cheap_dropout(noisy)
    return noisy, still


def test_in_every_architecture_a_rows_dropout_depends_on_the_row_alone(twins: tuple[Any, Any]) -> None:
    noisy, still = twins
    ids, mask = batch(noisy.tokenizer)
    with drawn_for(keys(len(ids))):
        before = torch.get_rng_state()
        together = noisy(ids, mask)[0]
        assert torch.equal(torch.get_rng_state(), before), "nothing is drawn by PyTorch"
    for row, key in enumerate(keys(len(ids))):
        real = mask[row]
        with drawn_for(np.array([key])):
            alone = noisy(ids[row : row + 1, real], None)[0]
        assert torch.allclose(together[row, real], alone[0], atol=1e-5)
    assert (together - still(ids, mask)[0])[mask].abs().max() > 0.01


@pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
def test_a_table_that_rows_share_is_dropped_alike_in_both_passes_of_the_gradient_cache(
    kind: str, tmp_path: Path
) -> None:
    noisy, still = (load_encoder(save_family(kind, tmp_path), dropout=rate).train() for rate in (0.1, 0.0))
    use_cheap_dropout(noisy)
    ids, mask = batch(noisy.tokenizer)
    passes = []
    for step, has_gradient in ((3, False), (3, True), (4, True)):
        with torch.set_grad_enabled(has_gradient), drawn_for(keys(len(ids), step)):
            passes.append(noisy(ids, mask)[0][mask])
    assert torch.equal(passes[0], passes[1]) and not torch.equal(passes[1], passes[2])
    passes[1].sum().backward()
    assert (passes[1] - still(ids, mask)[0][mask]).abs().max() > 0.01


@pytest.mark.parametrize("draws_by_rows", [False, True])
def test_recomputed_layers_are_compiled_on_gpus_and_draw_the_same_again(draws_by_rows: bool) -> None:
    """With PyTorch's dropout, as on a GPU, and with that of this module."""

    class Layer(GradientCheckpointingLayer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.dropout = CheapDropout(0.5) if draws_by_rows else nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            dropped: Tensor = self.dropout(self.linear(x).tanh())
            return dropped

    def gradient(*, is_compiled: bool, is_recomputed: bool) -> Tensor:
        torch.manual_seed(0)
        model, x = nn.Sequential(Layer(), Layer()), torch.randn(3, 5, 8)
        if is_compiled:
            model.compile(dynamic=True, backend="aot_eager")
        if is_recomputed:
            recompute_layers(model, draws_by_rows=draws_by_rows)
        with drawn_for(keys(len(x))):
            y = model(x)
        y.square().sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]

    plain = gradient(is_compiled=False, is_recomputed=False)
    for is_compiled in (False, not draws_by_rows):
        assert torch.allclose(gradient(is_compiled=is_compiled, is_recomputed=True), plain, atol=1e-6)


def test_attention_is_the_librarys_apart_from_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "drop", lambda x, p: x)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    mask = torch.arange(5)[None, None, None] < torch.tensor([5, 2, 3, 4])[:2, None, None, None]
    ours, _ = attend(nn.Module(), q, k, v, mask.expand(2, 1, 5, 5), dropout=0.1)
    theirs = F.scaled_dot_product_attention(q, k, v, mask.expand(2, 1, 5, 5)).transpose(1, 2)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_place_that_sees_nothing_stays_finite() -> None:
    q = torch.randn(1, 1, 3, 4)
    with drawn_for(keys(1)):
        out, _ = attend(nn.Module(), q, q, q, torch.zeros(1, 1, 3, 3, dtype=torch.bool), dropout=0.1)
    assert torch.isfinite(out).all()


def test_a_model_keeps_its_weights_names_and_outputs(bert: Path) -> None:
    encoder = load_encoder(str(bert), dropout=0.1)
    ids, mask = batch(encoder.tokenizer)
    before, names = encoder(ids, mask)[0], list(encoder.state_dict())
    use_cheap_dropout(encoder)
    assert list(encoder.state_dict()) == names
    assert not any(type(module) is nn.Dropout for module in encoder.modules())
    assert torch.allclose(encoder(ids, mask)[0], before, atol=1e-6)
    encoder.train()

    def trained(step: int) -> Tensor:
        with drawn_for(keys(len(ids), step)):
            return encoder(ids, mask)[0]  # type: ignore[no-any-return]

    assert torch.equal(trained(3), trained(3))
    assert not torch.equal(trained(3), trained(4))
