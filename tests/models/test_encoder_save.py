"""A saved encoder is what transformers and sentence-transformers load as it is, with the same vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.models.conftest import SENTENCES, batch, save_checkpoint
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from qontext.models.encoder import Encoder, load_encoder


def saved(encoder: Encoder, folder: Path, **options: Any) -> Path:
    folder.mkdir()
    encoder.save(folder, max_length=options.pop("max_length", 64), **options)
    return folder


def cls_vectors(encoder: Encoder) -> torch.Tensor:
    with torch.no_grad():
        return encoder(*batch(encoder.tokenizer))[0][:, 0]


def sentence_transformer(folder: Path) -> Any:
    package = pytest.importorskip("sentence_transformers")
    return package.SentenceTransformer(str(folder), device="cpu")


def test_both_libraries_give_the_same_vectors(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    folder = saved(encoder, tmp_path / "saved")
    expected = cls_vectors(encoder)
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[:, 0]
    torch.testing.assert_close(theirs, expected, atol=1e-5, rtol=0)
    model = sentence_transformer(folder)
    torch.testing.assert_close(torch.tensor(model.encode(SENTENCES)), expected, atol=1e-5, rtol=0)
    assert model.similarity_fn_name == "dot" and model.max_seq_length == 64
    similarity = model.similarity(model.encode(SENTENCES[:1]), model.encode(SENTENCES))
    torch.testing.assert_close(similarity, expected[:1] @ expected.T, atol=1e-4, rtol=1e-4)


def test_loading_again_gives_the_same_encoder(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    with torch.no_grad():  # training moves everything, the head's own parameters too
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    folder = saved(encoder, tmp_path / "saved")
    again = load_encoder(str(folder))
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        assert torch.equal(cls_vectors(again), cls_vectors(encoder))
        assert torch.equal(again.mlm_logits(hidden), encoder.mlm_logits(hidden))
        ids, mask = batch(encoder.tokenizer)
        theirs = AutoModelForMaskedLM.from_pretrained(folder).eval()(ids, attention_mask=mask.long()).logits
        torch.testing.assert_close(theirs[mask], encoder.mlm_logits(encoder(ids, mask)[0][mask]))
    assert again.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()


def test_the_same_encoder_gives_the_same_bytes(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    encoder = load_encoder(str(checkpoint[0]))
    first = saved(encoder, tmp_path / "first")
    encoder.tokenizer(SENTENCES, padding=True, truncation=True, max_length=9)  # leaves its marks
    used, again = saved(encoder, tmp_path / "used"), saved(load_encoder(str(first)), tmp_path / "again")
    for other in (used, again):
        assert contents(other) == contents(first)
    assert "is_local" not in json.loads(contents(first)["tokenizer_config.json"])
    assert not any(str(tmp_path).encode() in content for content in contents(first).values())


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_mean_and_cosine_encoder_says_so(bert: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(bert))
    model = sentence_transformer(saved(encoder, tmp_path / "saved", pooling="mean", similarity="cosine"))
    ids, mask = batch(encoder.tokenizer)
    with torch.no_grad():
        (hidden,) = encoder(ids, mask)
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(torch.tensor(model.encode(SENTENCES)), mean, atol=1e-5, rtol=0)
    assert model.similarity_fn_name == "cosine"


def test_longer_texts_are_cut_at_max_length(bert: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(bert))
    folder = saved(encoder, tmp_path / "saved", max_length=9)
    cut = encoder.tokenizer(SENTENCES[2], truncation=True, max_length=9, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = encoder(cut, None)[0][0, 0]
    vector = torch.tensor(sentence_transformer(folder).encode(SENTENCES[2]))
    torch.testing.assert_close(vector, expected, atol=1e-5, rtol=0)
    assert len(AutoTokenizer.from_pretrained(folder)(SENTENCES[2], truncation=True)["input_ids"]) == 9
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None


def test_a_model_without_head_gets_one_and_keeps_its_pooler(
    minilm: Path, tmp_path: Path, capsys: Any
) -> None:
    encoder, same, other = (load_encoder(str(minilm), seed=seed) for seed in (1, 1, 2))
    said = capsys.readouterr().err
    assert "all-MiniLM-L6-v2 has no MLM head" in said and str(minilm) not in said
    hidden = torch.randn(3, 384)
    with torch.no_grad():
        logits = encoder.mlm_logits(hidden)
        assert torch.equal(logits, same.mlm_logits(hidden))
        assert not torch.equal(logits, other.mlm_logits(hidden))
        assert torch.equal(cls_vectors(encoder), cls_vectors(other))
    assert encoder.model.get_output_embeddings().weight is encoder.model.get_input_embeddings().weight
    assert not any("pooler" in name for name, _ in encoder.named_parameters())
    folder = saved(encoder, tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(load_encoder(str(folder)).mlm_logits(hidden), logits)
    written, original = load_file(folder / "model.safetensors"), load_file(minilm / "model.safetensors")
    assert torch.equal(written["bert.pooler.dense.weight"], original["pooler.dense.weight"])


def test_a_new_head_is_tied_even_where_the_configuration_unties_it(tmp_path: Path) -> None:
    save_checkpoint("bert", tmp_path, head=False)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    encoder = load_encoder(str(tmp_path))
    words = encoder.model.get_input_embeddings().weight
    assert encoder.model.get_output_embeddings().weight is words
    again = load_encoder(str(saved(encoder, tmp_path / "saved")))
    hidden = torch.randn(2, 32)
    assert torch.equal(again.mlm_logits(hidden), encoder.mlm_logits(hidden))
    assert again.model.get_output_embeddings().weight is again.model.get_input_embeddings().weight


def test_a_preset_has_the_named_size_and_is_loadable(bert: Path, tmp_path: Path) -> None:
    from qontext.models.folder import PRESETS

    one, same, other = (load_encoder("tiny", tokenizer=str(bert), seed=seed) for seed in (1, 1, 2))
    assert (one.num_layers, one.hidden_size, one.max_length) == (2, 128, 512)
    assert one.config.intermediate_size == 512 and one.vocab_size == len(one.tokenizer)
    assert torch.equal(cls_vectors(one), cls_vectors(same))
    assert not torch.equal(cls_vectors(one), cls_vectors(other))
    assert torch.equal(cls_vectors(load_encoder(str(saved(one, tmp_path / "saved")))), cls_vectors(one))
    sizes = {name: (p.layers, p.hidden, p.hidden // p.heads) for name, p in PRESETS.items()}
    assert sizes == {"tiny": (2, 128, 64), "mini": (4, 256, 64), "small": (6, 384, 64), "base": (12, 768, 64)}


def test_half_precision_weights_become_masters_in_fp32(tmp_path: Path) -> None:
    save_checkpoint("bert", tmp_path).half().save_pretrained(tmp_path)
    assert {p.dtype for p in load_encoder(str(tmp_path)).parameters()} == {torch.float32}
