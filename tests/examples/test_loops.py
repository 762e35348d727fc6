"""The loops in `examples/`: their losses and gradients are those of the methods, and they train."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretrain.steps import batch_of, load_method
from tests.tiny import bert_config
from torch import Tensor

from qontext.models.encoder import load_encoder

FOLDER = Path(__file__).parents[2] / "examples"
TEXTS = [
    "The old mill by the river grinds wheat for the bakers of three villages.",
    "A lighthouse keeper counts ships at night.",
    "Bees find their way home by the sun and by landmarks.",
    "The library lends instruments as well as books.",
]
QUERIES = ["who grinds the wheat", "what does a keeper count", "how do bees find home", "borrow instruments"]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A random BERT with its MLM head."""
    from transformers import AutoTokenizer, BertForMaskedLM

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertForMaskedLM(bert_config()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


def tensors(text: Any) -> dict[str, Tensor]:
    labels = torch.full(text.ids.shape, -100).view(-1)
    labels[text.positions] = text.labels
    return {"ids": text.ids, "mask": text.mask, "labels": labels.view(text.ids.shape)}


def test_the_loss_of_cotmae_is_that_of_the_method(bert: Path) -> None:
    loop = example("cotmae_loop")
    method = load_method("cot-mae", load_encoder(str(bert), dropout=0.0), has_queries=True)
    (rows,) = batch_of(method, TEXTS, QUERIES).micro
    expected = sum(method(rows).losses.values())
    expected.backward()
    model, decoder = copies(loop.Decoder, bert, method)
    loss = loop.loss_of(model, decoder, tensors(rows.encoder), tensors(rows.decoder))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    same_gradients(model, method)


def test_the_loss_of_cocondenser_is_that_of_the_method(bert: Path) -> None:
    loop = example("cocondenser_loop")
    method = load_method("cocondenser", load_encoder(str(bert), dropout=0.0), has_queries=True)
    batch = batch_of(method, TEXTS, QUERIES)
    (rows,) = batch.micro
    output = method(rows)
    contrast = method.contrast(output.vectors, batch.keys, slice(0, len(output.vectors)))
    expected = sum([*output.losses.values(), *contrast.values()])
    expected.backward()
    model, head = copies(loop.Head, bert, method)
    order = batch.keys.pair.argsort(stable=True).view(-1, 2).T.flatten()  # first members, then their partners
    loss = loop.loss_of(model, head, {name: value[order] for name, value in tensors(rows.encoder).items()})
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    same_gradients(model, method)


def copies(kind: Any, bert: Path, method: Any) -> tuple[Any, Any]:
    """The example's model and head with the weights of the method."""
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(bert, dtype=torch.float32).eval()
    head = kind(model.config, len(method.head.layers)).eval()
    head.layers.load_state_dict(method.head.layers.state_dict())
    return model, head


def same_gradients(model: Any, method: Any) -> None:
    theirs = {name: p.grad for name, p in method.encoder.backbone.named_parameters()}
    ours = {name: p.grad for name, p in model.bert.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["cotmae_loop", "cocondenser_loop"])
def test_the_loop_trains_an_encoder(bert: Path, tmp_path: Path, name: str) -> None:
    lines = [json.dumps({"text": t, "query": q}) for t, q in zip(TEXTS, QUERIES)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--encoder", str(bert), "--out", str(tmp_path / "out"), "--batch-size", "4", "--lr", "1e-3"]
    losses = example(name).main([str(tmp_path / "pairs.jsonl"), *arguments, "--steps", "30"])
    assert sum(losses[-5:]) < sum(losses[:5])
    assert load_encoder(str(tmp_path / "out")).num_layers == 2
