from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from qontext.models import products
from qontext.models.precision import Fp32Linear
from qontext.models.products import StoredLinear, scores, use_where_faster

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["onednn", "pytorch"])
def is_faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways, on every machine."""
    monkeypatch.setattr(products, "fp32_is_faster", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5, 48), (1, 48), (48,), (0, 48)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_stored_layer_computes_what_the_layer_computed(
    is_faster: bool, dtype: torch.dtype, shape: tuple[int, ...], bias: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 80, bias=bias))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    x = torch.randn(*shape)
    expected = nn.functional.linear(
        x.to(dtype), weights["0.weight"].to(dtype), weights["0.bias"].to(dtype) if bias else None
    )
    use_where_faster(model, CPU, dtype)
    assert (type(model[0]) is StoredLinear) == (is_faster or dtype == torch.bfloat16)
    with torch.inference_mode():
        found = model(x)
    assert found.dtype == dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name])


def test_layers_that_always_compute_in_fp32_stay() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].__class__ = Fp32Linear
    use_where_faster(model, CPU, torch.bfloat16)
    assert [type(layer) for layer in model] == [StoredLinear, Fp32Linear]


@pytest.mark.usefixtures("is_faster")
@pytest.mark.parametrize("rows", [1, 1_100])
def test_scores_of_a_block_equal_the_product(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    queries, block = (torch.randn(n, 48, generator=generator) for n in (8, rows))
    out = torch.full((8, rows), torch.nan)
    assert scores(queries, block, out) is out
    torch.testing.assert_close(out, queries @ block.T)


class _FeedForward(nn.Module):
    """The first half of BERT's feed-forward part."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.dense = nn.Linear(48, 80)
        self.intermediate_act_fn = ACT2FN[activation]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.intermediate_act_fn(self.dense(x))
        return out


@pytest.mark.usefixtures("is_faster")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_activation_is_computed_once(dtype: torch.dtype, activation: str) -> None:
    torch.manual_seed(0)
    part, x = _FeedForward(activation), torch.randn(7, 48)
    expected = part(x)
    use_where_faster(part, CPU, dtype)
    with torch.inference_mode():
        found = part(x).float()
    torch.testing.assert_close(
        found, expected, **({} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02})
    )


@pytest.mark.usefixtures("is_faster")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_compute_the_same(dtype: torch.dtype, keep: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(48, 80)), torch.randn(7, 48)
    use_where_faster(model, CPU, dtype, keep=keep)
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_weights_are_let_go_unless_they_are_shared() -> None:
    torch.manual_seed(0)
    embedding, layers = nn.Embedding(80, 48), nn.Sequential(nn.Linear(48, 80), nn.Linear(80, 8))
    layers[0].weight = embedding.weight
    model, x = nn.ModuleList([embedding, layers]), torch.randn(7, 48)
    expected = layers(x)
    use_where_faster(model, CPU, torch.bfloat16, keep=False)
    assert layers[1].weight.numel() == 0 and embedding.weight.shape == (80, 48)
    with torch.inference_mode():
        torch.testing.assert_close(layers(x).float(), expected, rtol=0.05, atol=0.05)


def test_gradients_of_stored_weights_are_refused() -> None:
    model = nn.Sequential(nn.Linear(48, 80))
    use_where_faster(model, CPU, torch.bfloat16)
    with pytest.raises(RuntimeError, match="does not require grad"):
        model(torch.randn(7, 48)).sum().backward()
