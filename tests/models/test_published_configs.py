"""Models whose config.json has the keys of a published one, also those of earlier versions of transformers: sizes are
shrunk, weights are random.

The keys of mmBERT and those that ModernBERT's relatives share agree with copies of configurations in public repositories,
those of jina-embeddings-v3 with its class in transformers. Token ids and rotary bases of Ettin and Granite are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.models.conftest import SENTENCES
from tests.models.test_families import ONE_STEP, elsewhere, sentencepiece, tokenizer_for

from qontext import api
from qontext.frame.errors import QontextError
from qontext.models.encoder import load_encoder
from qontext.models.retriever import Retriever

SIZES = {"vocab_size": 160, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
MODERNBERT = {
    "attention_bias": False, "attention_dropout": 0.0, "classifier_activation": "gelu", "classifier_bias": False,
    "classifier_dropout": 0.0, "classifier_pooling": "mean", "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "global_attn_every_n_layers": 3, "hidden_activation": "gelu", "initializer_range": 0.02,
    "initializer_cutoff_factor": 2.0, "layer_norm_eps": 1e-05, "local_attention": 6, "max_position_embeddings": 130,
    "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
    "num_hidden_layers": 4,
}  # fmt: skip
GTE = {
    "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02, "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "logn_attention_clip1": False,
    "logn_attention_scale": False, "max_position_embeddings": 130, "num_hidden_layers": 2, "pack_qkv": True,
    "pad_token_id": 0, "position_embedding_type": "rope", "rope_theta": 160000, "type_vocab_size": 1,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    # jhu-clsp/ettin-encoder-17m, with the keys of transformers 4
    "ettin": {
        **MODERNBERT, "architectures": ["ModernBertForMaskedLM"], "bos_token_id": 2, "cls_token_id": 2,
        "causal_mask": False, "eos_token_id": 3, "global_rope_theta": 160000.0, "local_rope_theta": 160000.0,
        "is_causal": False, "pad_token_id": 0, "position_embedding_type": "sans_pos", "sep_token_id": 3,
        "gradient_checkpointing": False, "tie_word_embeddings": True,
    },
    # jhu-clsp/mmBERT, as saved again: the keys of transformers 4, and those of transformers 5 for the same thing
    "mmbert": {
        **MODERNBERT, "architectures": ["ModernBertForMaskedLM"], "bos_token_id": 2, "cls_token_id": 1,
        "eos_token_id": 1, "global_rope_theta": 160000, "gradient_checkpointing": False, "local_rope_theta": 160000,
        "mask_token_id": 4, "pad_token_id": 0, "position_embedding_type": "sans_pos", "sep_token_id": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_theta": 160000, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 160000, "rope_type": "default"},
        },
    },
    # ibm-granite/granite-embedding-english-r2: without a head
    "granite-r2": {
        **MODERNBERT, "architectures": ["ModernBertModel"], "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3,
        "global_rope_theta": 80000.0, "local_rope_theta": 10000.0, "pad_token_id": 0, "sep_token_id": 3,
        "position_embedding_type": "absolute", "reference_compile": None, "repad_logits_with_grad": False,
        "sparse_pred_ignore_index": -100, "sparse_prediction": False,
    },
    # google/embeddinggemma-300m
    "embeddinggemma": {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "max_position_embeddings": 130, "model_type": "gemma3_text", "num_hidden_layers": 6,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 8,
        "use_bidirectional_attention": True, "use_cache": True,
    },
    # Snowflake/snowflake-arctic-embed-m-v2.0: its code is part of transformers now, and is not executed
    "gte": {
        **GTE, "architectures": ["GteModel"], "model_type": "gte", "rope_scaling": None, "unpad_inputs": "true",
        "use_memory_efficient_attention": "true",
        "auto_map": {
            "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
            "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
        },
    },
    # jinaai/jina-embeddings-v3-hf
    "jina-v3": {
        "architectures": ["JinaEmbeddingsV3Model"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
        "classifier_dropout": None, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-05, "max_position_embeddings": 130,
        "model_type": "jina_embeddings_v3", "num_hidden_layers": 2, "pad_token_id": 1, "type_vocab_size": 1,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}, "tie_word_embeddings": True,
        "use_cache": True,
    },
}  # fmt: skip
NEED_CODE = {
    # Alibaba-NLP/gte-multilingual-base
    "new": {
        **GTE, "architectures": ["NewModel"], "model_type": "new",
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    },
    # jinaai/jina-embeddings-v3: its `model_type` is that of another architecture
    "xlm-roberta": {
        "architectures": ["XLMRobertaLoRA"], "model_type": "xlm-roberta", "hidden_act": "gelu",
        "auto_map": {
            "AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA",
        },
        "lora_adaptations": ["retrieval.query", "retrieval.passage"], "lora_alpha": 1, "lora_rank": 4,
        "max_position_embeddings": 130, "num_hidden_layers": 2, "pad_token_id": 1, "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0, "type_vocab_size": 1,
    },
}  # fmt: skip


def _tokenizer(name: str) -> Any:
    if name == "embeddinggemma":
        return sentencepiece(begins=True)
    return tokenizer_for("jina_embeddings_v3" if name == "jina-v3" else "bert")


def save_published(name: str, folder: Path) -> Path:
    """The model in the layout of sentence-transformers: pooled as the published one, with the Dense layers of
    EmbeddingGemma."""
    from transformers import AutoModel

    folder.mkdir()
    config = {**PUBLISHED[name], **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(3)
    from transformers import AutoConfig

    model = AutoModel.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))  # as published, not as saved
    _tokenizer(name).save_pretrained(folder)
    pooling = "mean_tokens" if name in ("embeddinggemma", "jina-v3", "mmbert") else "cls_token"
    layers = [(32, 64), (64, 32)] if name == "embeddinggemma" else []
    modules = ["Transformer", "Pooling", *["Dense"] * len(layers), "Normalize"]
    listed = [
        {
            "idx": n,
            "name": str(n),
            "path": f"{n}_{kind}" if n else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for entry in listed[1:]:
        (folder / entry["path"]).mkdir()
    flags = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens")}
    about: dict[str, Any] = {"word_embedding_dimension": 32, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(about))
    for number, (width, out) in enumerate(layers, 2):
        about = {"in_features": width, "out_features": out, "bias": False}
        about["activation_function"] = "torch.nn.modules.linear.Identity"
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(about))
        save_file(
            {"linear.weight": torch.randn(out, width)}, folder / f"{number}_Dense" / "model.safetensors"
        )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 60, "do_lower_case": false}')
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_encoded_trained_and_saved(name: str, tmp_path: Path) -> None:
    """Once trained, the folder has the keys of this version, and says the same."""
    folder = save_published(name, tmp_path / "model")
    form: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
    before = Retriever(folder, **form).encode_passages(SENTENCES)
    np.testing.assert_allclose(before, elsewhere(folder, SENTENCES), atol=1e-5)
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(SENTENCES * 2)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    passages = api.split(tmp_path / "docs.jsonl", out=tmp_path / "passages", keep=True, workers=1)
    settings: dict[str, Any] = {"method": "bow", "target": "both", "batch_size": 4, "max_tokens": 30}
    settings |= {"vector": Retriever(folder, **form).layout.pooling}
    api.pretrain(passages, encoder=folder, out=tmp_path / "out", workers=1, **settings, **ONE_STEP)
    after = Retriever(tmp_path / "out", **form).encode_passages(SENTENCES)
    size = max(
        1.0, np.abs(after).max()
    )  # a vector that is not normalized is as long as its dense layers make it
    np.testing.assert_allclose(after / size, elsewhere(tmp_path / "out", SENTENCES) / size, atol=1e-5)
    assert np.abs(after - before).max() > 1e-3
    assert load_encoder(tmp_path / "out").predicts == load_encoder(folder).predicts


@pytest.mark.parametrize("name", NEED_CODE)
def test_a_model_whose_architecture_is_its_own_code_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**NEED_CODE[name], **SIZES}))
    weights = {f"layer.{n}.weight": torch.zeros(160) for n in range(2)} | {"position": torch.zeros(130, 32)}
    save_file(weights, folder / "model.safetensors")
    tokenizer_for("bert").save_pretrained(folder)
    for load in (load_encoder, Retriever):
        with pytest.raises(QontextError, match="needs code from its folder, which is never executed"):
            load(folder)
