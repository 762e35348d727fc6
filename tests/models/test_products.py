from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.models.test_families import CONFIGS
from tests.tiny import Server
from torch import Tensor, nn
from transformers.activations import ACT2FN

from qontext.frame import machine
from qontext.models import products
from qontext.models.precision import Fp32Linear
from qontext.models.products import StoredLinear, StoredNorm, scores, use_where_faster

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
@pytest.mark.parametrize("rows", [1, 64, 1_024, 1_100, 3_000])
def test_scores_of_a_block_equal_the_product(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    queries, block = (torch.randn(n, 48, generator=generator) for n in (8, rows))
    out = torch.full((8, rows), torch.nan)
    assert scores(queries, block, out) is out
    torch.testing.assert_close(out, queries @ block.T)


@pytest.mark.parametrize(
    ("vendor", "flags", "highest", "is_faster"),
    [
        ("AuthenticAMD", "avx2 avx512f", "", True),
        ("AuthenticAMD", "avx2 avx512f", "AVX512_CORE", True),
        ("AuthenticAMD", "avx2 avx512f", "AVX2", False),
        ("AuthenticAMD", "avx2", "", False),
        ("GenuineIntel", "avx2 avx512f amx_bf16", "", False),
        ("", "", "", False),
    ],
)
def test_the_processor_decides(
    monkeypatch: pytest.MonkeyPatch, vendor: str, flags: str, highest: str, is_faster: bool
) -> None:
    lines = {"vendor_id": vendor, "flags": flags}
    monkeypatch.setattr(machine, "_cpu_line", lines.__getitem__)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", highest)
    products.fp32_is_faster.cache_clear()
    try:
        assert products.fp32_is_faster() == is_faster
    finally:
        products.fp32_is_faster.cache_clear()


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
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
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


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "eurobert", "modernbert"])
def test_a_decoder_rounds_once_between_products(name: str) -> None:
    """Norms in the stack are the library's, rounded; those after it are in fp32; rotations are rounded."""
    from transformers import AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    fast = copy.deepcopy(model)
    use_where_faster(fast, CPU, torch.bfloat16)
    norms = [one for one in model.layers.modules() if type(one).__name__.endswith("RMSNorm")]
    found = [one for one in fast.layers.modules() if type(one) is StoredNorm]
    assert len(norms) == len(found) and bool(found) == (name != "modernbert")
    for one, other in zip(norms, found):
        x = torch.randn(3, *one.weight.shape)
        torch.testing.assert_close(other(x), one(x).bfloat16(), rtol=0.01, atol=0.01)
    ids = torch.randint(5, 150, (3, 12))
    rotations: list[torch.dtype] = []
    fast.rotary_emb.register_forward_hook(lambda module, inputs, out: rotations.append(out[0].dtype))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        rounded = fast(input_ids=ids).last_hidden_state
        expected = model(input_ids=ids).last_hidden_state
    assert rounded.dtype == expected.dtype == torch.float32 and {*rotations} == {torch.bfloat16}
    assert torch.cosine_similarity(rounded, expected, dim=-1).min() > 0.999


@pytest.mark.usefixtures("is_faster")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gate_is_part_of_a_product(dtype: torch.dtype, bias: bool, activation: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    torch.manual_seed(0)
    part = LlamaMLP(
        LlamaConfig(
            hidden_size=48, intermediate_size=80, num_attention_heads=4, mlp_bias=bias, hidden_act=activation
        )
    )
    x = torch.randn(2, 7, 48)
    expected = part(x)
    use_where_faster(part, CPU, dtype)
    is_stored = isinstance(part.up_proj, StoredLinear) and part.up_proj.stored.is_mkldnn
    assert ("forward" in vars(part)) == (is_stored and activation == "silu")
    with torch.inference_mode():
        found = copy.deepcopy(part)(x).float()
    torch.testing.assert_close(
        found, expected, **({} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02})
    )


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


WITHOUT_UNITS = """
import torch
from torch import nn
from qontext.models.products import use_where_faster
layer = nn.Linear(48, 80)
x = torch.randn(7, 48)
expected = layer.bfloat16()(x.bfloat16())
model = nn.Sequential(layer.float())
use_where_faster(model, torch.device("cpu"), torch.bfloat16)
with torch.inference_mode():
    torch.testing.assert_close(model(x), expected)
print(model[0].stored.dtype)
"""


@pytest.mark.parametrize("highest", ["SSE41", "AVX2", "AVX512_CORE"])
def test_bf16_is_computed_by_every_processor(warm: Server, tmp_path: Path, highest: str) -> None:
    """The limit is read when a process computes for the first time."""
    order = {"code": WITHOUT_UNITS, "cwd": str(tmp_path)}
    running = warm.launch(order, tmp_path / "said", ONEDNN_MAX_CPU_ISA=highest)
    assert running.wait() == {0}, running.text()
    assert running.text().strip() == "torch.bfloat16"
