"""One contract for every family: a folder is encoded as sentence-transformers does, trained one step each way, saved, and
loaded elsewhere. Models are tiny and random; layouts are those of published models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.finetune.conftest import write_groups
from tests.models.conftest import BERT_STYLE, ROBERTA_STYLE, SENTENCES, SMALL, wordpiece
from tests.pretrain.steps import load_method, loss_of
from tests.tiny import write_collection
from tokenizers import processors

from qontext import api
from qontext.frame.errors import QontextError
from qontext.models.cross_encoder import CrossEncoder
from qontext.models.encoder import load_encoder
from qontext.models.families import FAMILIES
from qontext.models.retriever import Retriever
from qontext.pretrain.objectives import METHODS

TINY = {**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 130}
DECODER = {
    **TINY,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


def _config(name: str, **changes: Any) -> Any:
    return getattr(transformers, name)(**changes)


def _t5(name: str) -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": 160}
    return _config(name, **sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)


def _embedding_gemma2() -> Any:
    text = {**DECODER, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    text |= {"embedding_dim": 24, "ple_hidden_size": 8}
    return _config("EmbeddingGemma2Config", text_config=text, vision_config=None, audio_config=None)


def _t5gemma2() -> Any:
    """Without the decoder; its images are not read."""
    text = {**DECODER, "sliding_window": 4, "dropout_rate": 0.0}
    images = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config: Any = transformers.AutoConfig.for_model(
        "t5gemma2_encoder", text_config=text, vision_config={**images, "image_size": 28, "patch_size": 14}
    )
    return config


CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": lambda: _config("BertConfig", **TINY),
    "ernie": lambda: _config("ErnieConfig", **TINY),
    "roberta": lambda: _config("RobertaConfig", **TINY),
    "xlm-roberta": lambda: _config("XLMRobertaConfig", **TINY),
    "camembert": lambda: _config("CamembertConfig", **TINY),
    "xlm-roberta-xl": lambda: _config("XLMRobertaXLConfig", **TINY),
    "distilbert": lambda: _config(
        "DistilBertConfig", vocab_size=160, dim=32, n_heads=2, n_layers=2, hidden_dim=48
    ),
    "electra": lambda: _config("ElectraConfig", **TINY, embedding_size=16),
    "albert": lambda: _config("AlbertConfig", **TINY, embedding_size=16),
    "mpnet": lambda: _config("MPNetConfig", **TINY),
    "deberta": lambda: _config("DebertaConfig", **TINY, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta-v2": lambda: _config(  # as DeBERTa-v3
        "DebertaV2Config", **TINY, relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
        conv_kernel_size=3,
    ),
    "modernbert": lambda: _config("ModernBertConfig", **TINY, pad_token_id=0, local_attention=6),
    "nomic_bert": lambda: _config("NomicBertConfig", **TINY, pad_token_id=0),
    "gte": lambda: _config("GteConfig", **TINY, pad_token_id=0),
    "jina_embeddings_v3": lambda: _config("JinaEmbeddingsV3Config", **TINY, pad_token_id=1),
    "eurobert": lambda: _config("EuroBertConfig", **DECODER, mask_token_id=4),
    "llama": lambda: _config("LlamaConfig", **DECODER),
    "qwen2": lambda: _config("Qwen2Config", **DECODER),
    "qwen3": lambda: _config("Qwen3Config", **DECODER),
    "mistral": lambda: _config("MistralConfig", **DECODER),
    "gemma": lambda: _config("GemmaConfig", **DECODER),
    "gemma2": lambda: _config("Gemma2Config", **DECODER, sliding_window=4),
    "gemma3_text": lambda: _config(  # as EmbeddingGemma
        "Gemma3TextConfig", **DECODER, sliding_window=8, use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "granite": lambda: _config("GraniteConfig", **DECODER, logits_scaling=4.0),
    "t5": lambda: _t5("T5Config"),
    "mt5": lambda: _t5("MT5Config"),
    "umt5": lambda: _t5("UMT5Config"),
    "t5gemma2_encoder": _t5gemma2,
    "embedding_gemma2": _embedding_gemma2,
    "smollm3": lambda: _config("SmolLM3Config", **DECODER),  # without an entry
    "roformer": lambda: _config("RoFormerConfig", **TINY),
}  # fmt: skip
OTHERS = ["smollm3", "roformer"]
OF_IMAGES = ("t5gemma2_encoder", "embedding_gemma2")
ENTRIES = [n for n in CONFIGS if n in OTHERS or next(m for m in FAMILIES if FAMILIES[m] == FAMILIES[n]) == n]
"""A family of each entry of the table: those with the same one are read alike, and only saved by other classes."""
MASKED = [name for name in CONFIGS if name in FAMILIES and FAMILIES[name].auto == "AutoModelForMaskedLM"]


def sentencepiece(*, begins: bool = False) -> Any:
    """A tokenizer of words and their pieces, with an end token after the text, as those of decoders for retrieval."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>" if begins else "$A <eos>",
        pair="$A <eos> $B <eos>",
        special_tokens=[(name, words.token_to_id(name)) for name in special],
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names, model_max_length=128)


def tokenizer_for(name: str) -> Any:
    if name in ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "jina_embeddings_v3"):
        return wordpiece(ROBERTA_STYLE)
    if name in MASKED or name == "roformer":
        return wordpiece(BERT_STYLE)
    tokenizer = sentencepiece(begins="gemma" in name)
    tokenizer.padding_side = "left" if name in ("qwen3", "mistral") else "right"
    return tokenizer


def save_family(
    name: str, folder: Path, *, dense: bool | None = None, prompts: dict[str, str] | None = None
) -> Path:
    """A random model in the layout of sentence-transformers: last token for decoders, Dense layers as in sentence-T5 and
    EmbeddingGemma."""
    from safetensors.torch import save_file
    from transformers import AutoModel, AutoModelForTextEncoding

    torch.manual_seed(7)
    config = CONFIGS[name]()
    auto: Any = AutoModelForTextEncoding if name in ("t5", "mt5", "umt5") else AutoModel
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    tokenizer = tokenizer_for(name)
    tokenizer.save_pretrained(folder)
    has_dense = name in ("t5", "gemma3_text") if dense is None else dense
    is_causal = name not in MASKED and name not in (
        "roformer",
        "t5",
        "mt5",
        "umt5",
        *OF_IMAGES,
        "gemma3_text",
    )
    width = 24 if name == "embedding_gemma2" else 32
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Dense", "2_Dense")] if has_dense else []
    modules += [("Normalize", "3_Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    flags = {
        f"pooling_mode_{key}": key == ("lasttoken" if is_causal else "mean_tokens")
        for key in ("cls_token", "mean_tokens", "lasttoken")
    }
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": width, **flags})
    )
    if has_dense:
        about = {"in_features": width, "out_features": 40, "bias": False}
        about["activation_function"] = "torch.nn.modules.linear.Identity"
        (folder / "2_Dense" / "config.json").write_text(json.dumps(about))
        save_file({"linear.weight": torch.randn(40, width)}, folder / "2_Dense" / "model.safetensors")
    said = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 60, "do_lower_case": False})
    )
    return folder


def elsewhere(
    folder: Path, texts: list[str], kind: str = "document", **settings: Any
) -> np.ndarray[Any, Any]:
    """The vectors of sentence-transformers; of models that need processors of images there, of transformers."""
    from sentence_transformers import SentenceTransformer

    if json.loads((folder / "config.json").read_text())["model_type"] in OF_IMAGES:
        return _mean_vectors(folder, texts)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encode = model.encode_query if kind == "query" else model.encode_document
    return np.asarray(encode(texts, batch_size=3, **settings))


def _mean_vectors(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, padding_side="right", return_tensors="pt"
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    return np.asarray(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, written once."""
    return cache(lambda name: save_family(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(params=CONFIGS)
def family(request: pytest.FixtureRequest, saved: Callable[[str], Path]) -> tuple[str, Path]:
    return request.param, saved(request.param)


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest, saved: Callable[[str], Path]) -> tuple[str, Path]:
    return request.param, saved(request.param)


def test_vectors_equal_those_of_sentence_transformers(family: tuple[str, Path]) -> None:
    _, folder = family
    retriever = Retriever(folder, device="cpu", precision="fp32")
    np.testing.assert_allclose(retriever.encode_passages(SENTENCES), elsewhere(folder, SENTENCES), atol=1e-5)


def test_vectors_in_bf16_are_near_those_in_fp32(family: tuple[str, Path]) -> None:
    exact, near = (
        Retriever(family[1], device="cpu", precision=format).encode_passages(SENTENCES)
        for format in ("fp32", "bf16")
    )
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(near, axis=1)
    assert ((exact * near).sum(1) / lengths > 0.999).all()


def test_hidden_states_and_heads_equal_the_librarys(family: tuple[str, Path]) -> None:
    name, folder = family
    encoder = load_encoder(folder, dropout=0.0)
    texts = encoder.tokenizer(SENTENCES, padding=True, padding_side="right", return_tensors="pt")
    ids, mask = texts["input_ids"], texts["attention_mask"]
    with torch.no_grad():
        (last,) = encoder(ids, mask.bool())
        expected = encoder.backbone(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        torch.testing.assert_close(last[mask.bool()], expected.last_hidden_state[mask.bool()])
        if encoder.family.has_layers:
            early, first = encoder(ids, mask.bool(), layers=(1, 0))
            torch.testing.assert_close(early[mask.bool()], expected.hidden_states[1][mask.bool()])
            torch.testing.assert_close(encoder.embed(ids)[mask.bool()], first[mask.bool()])
            head = encoder.fresh_layers(1, copy_from=(1,)).eval()
            if not encoder.family.whole or name == "albert":
                torch.testing.assert_close(head(early, mask.bool())[mask.bool()], last[mask.bool()])
        if encoder.predicts != "nothing":
            logits = encoder.model(input_ids=ids, attention_mask=mask).logits
            torch.testing.assert_close(encoder.mlm_logits(last)[mask.bool()], logits[mask.bool()])


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labeled set of eight passages."""
    texts = [f"{text} Number {number}." for number in range(2) for text in SENTENCES]
    passages = [{"_id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": text[:30]} for i, text in enumerate(texts)]
    relevant = {"train": {f"q{i}": f"p{i}" for i in range(len(texts))}}
    return write_collection(tmp_path_factory.mktemp("labeled") / "data", passages, queries, relevant)


ONE_STEP: dict[str, Any] = {"steps": 1, "device": "cpu", "precision": "fp32", "dropout": 0.0, "lr": 1e-2}


def test_a_step_of_fine_tuning_is_saved_and_loaded_elsewhere(
    entry: tuple[str, Path], labeled: Path, tmp_path: Path
) -> None:
    _, folder = entry
    out = tmp_path / "retriever"
    settings = {"batch_size": 4, "passages_per_query": 2, "query_length": 16, "passage_length": 40}
    api.finetune(labeled, encoder=folder, out=out, **settings, **ONE_STEP)
    vectors = Retriever(out, device="cpu", precision="fp32").encode_passages(SENTENCES)
    np.testing.assert_allclose(vectors, elsewhere(out, SENTENCES), atol=1e-5)
    before = Retriever(folder, device="cpu", precision="fp32").encode_passages(SENTENCES)
    assert vectors.shape == before.shape and np.abs(vectors - before).max() > 1e-3
    assert load_encoder(out).is_causal == load_encoder(folder).is_causal


@pytest.mark.parametrize("method", METHODS.own)
def test_every_method_trains_the_families_that_it_fits_and_refuses_the_others(
    entry: tuple[str, Path], method: str
) -> None:
    _, folder = entry
    encoder = load_encoder(folder, dropout=0.0)
    options: dict[str, Any] = {
        "cocondenser": {"head_weight": float(encoder.family.has_layers), "temperature": 10.0},
        "simlm": {"generator": str(folder), "decoder_init": "random"},
        "bow": {"target": "both", "contrastive_weight": 0.1, "temperature": 10.0},
        "cot-lm": {"contrastive_weight": 0.1, "temperature": 10.0},
    }
    layered, masked = encoder.family.has_layers, encoder.predicts == "masked"
    fits = {
        "cocondenser": True,
        "bow": True,
        "cot-lm": encoder.family.auto == "AutoModelForCausalLM",
        **dict.fromkeys(("mlm", "retromae", "dupmae", "seed", "costa"), masked),
        **dict.fromkeys(("condenser", "cot-mae", "simlm"), layered and masked),
    }[method]
    if not fits:
        with pytest.raises(QontextError, match=f"the method {method} needs"):
            load_method(method, encoder, **options.get(method, {}))
        return
    objective = load_method(method, encoder, **options.get(method, {}))
    alone = ("mlm", "condenser", "retromae", "dupmae", "seed", "simlm", "costa")
    contexts = None if method in alone else SENTENCES[::-1]
    loss = loss_of(objective, SENTENCES, contexts, max_tokens=40)
    loss.backward()
    assert torch.isfinite(loss) and loss > 0
    trained = [*encoder.backbone.named_parameters(), *objective.head_parameters()]
    learned = [
        p
        for n, p in trained
        if p.ndim == 2 and not any(part in n for part in ("pooler", "vision", "multi_modal"))
    ]
    assert sum(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in learned) >= 0.7 * len(learned)


def test_a_step_of_pre_training_is_saved_and_loaded_elsewhere(
    entry: tuple[str, Path], passages: Path, tmp_path: Path
) -> None:
    name, folder = entry
    out = tmp_path / "encoder"
    settings = {"method": "bow", "target": "both", "batch_size": 4, "max_tokens": 30, "context": "rand"}
    api.pretrain(passages, encoder=folder, out=out, workers=1, **settings, **ONE_STEP)
    vectors = Retriever(out, device="cpu", precision="fp32").encode_passages(SENTENCES)
    if name not in OF_IMAGES:  # whose means alone are compared
        np.testing.assert_allclose(vectors, elsewhere(out, SENTENCES), atol=1e-5)
    assert load_encoder(out).predicts == load_encoder(folder).predicts
    card = (out / "README.md").read_text()
    assert ("the last layer's last token" in card) == load_encoder(out).is_causal


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("passages")
    lines = [json.dumps({"_id": f"d{i}", "text": " ".join(SENTENCES)}) for i in range(3)]
    (folder / "docs.jsonl").write_text("\n".join(lines))
    api.split(folder / "docs.jsonl", out=folder / "out", max_tokens=30, workers=1)
    return folder / "out"


def test_a_step_of_reranker_training_is_saved_and_loaded_elsewhere(
    entry: tuple[str, Path], labeled: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name, folder = entry
    out = tmp_path / "reranker"
    rows = [(f"q{i}", SENTENCES[i][:30], [f"p{i}"], ["p7"]) for i in range(4)]
    groups = write_groups(tmp_path / "groups.parquet", rows)
    settings = {"passages": labeled, "batch_size": 4, "candidates": 2, "max_length": 48}

    def train() -> None:
        api.train_reranker(groups, encoder=folder, out=out, **settings, **ONE_STEP)

    if name in ("granite", "t5", "t5gemma2_encoder", "embedding_gemma2"):
        with pytest.raises(QontextError, match=r"Unrecognized configuration|weights do not belong"):
            train()
        return
    train()
    pairs = [(SENTENCES[3], text) for text in SENTENCES[:3]]
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForSequenceClassification.from_pretrained(out).eval()
    with torch.no_grad():
        alone = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]
    scores = CrossEncoder(out, device="cpu", precision="fp32").score(pairs)
    np.testing.assert_allclose(scores, alone, atol=1e-5)


@pytest.mark.parametrize("name", ["roberta", "mpnet"])
def test_reserved_positions_are_not_for_tokens(name: str, tmp_path: Path) -> None:
    folder = save_family(name, tmp_path / "retriever")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 130}))
    config = CONFIGS[name]()
    config.num_labels = 1
    classifier: Any = transformers.AutoModelForSequenceClassification
    classifier.from_config(config).save_pretrained(tmp_path / "reranker")
    tokenizer_for(name).save_pretrained(tmp_path / "reranker")
    text, settings = "ice " * 200, {"device": "cpu", "precision": "fp32"}
    retriever = Retriever(folder, **settings)
    assert retriever.max_length == 128 and np.isfinite(retriever.encode_passages([text])).all()
    reranker = CrossEncoder(tmp_path / "reranker", **settings)
    assert reranker.max_length == 128 and np.isfinite(reranker.score([("ice", text)])).all()
    with pytest.raises(QontextError, match="the encoder's limit is 128 tokens, got 129"):
        Retriever(folder, **settings, max_length=129)


def test_a_bare_decoder_ends_its_texts_and_pools_the_last_token(tmp_path: Path) -> None:
    """As from the Hub: a language model without the layout of sentence-transformers."""
    words = sentencepiece()
    words.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    config = CONFIGS["llama"]()
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "start")
    words.pad_token = None
    words.save_pretrained(tmp_path / "start")
    retriever = Retriever(tmp_path / "start", device="cpu", precision="fp32")
    assert retriever.layout.pooling == "lasttoken"
    assert all(ids[-1] == words.eos_token_id for ids in retriever.tokenize(SENTENCES, "passage"))
    encoder = load_encoder(tmp_path / "start")
    (tmp_path / "saved").mkdir()
    encoder.save(tmp_path / "saved", max_length=60, pooling=encoder.pooling("cls"), mlm_head=False)
    vectors = Retriever(tmp_path / "saved", device="cpu", precision="fp32").encode_passages(SENTENCES)
    np.testing.assert_allclose(vectors, retriever.encode_passages(SENTENCES), atol=1e-5)
    np.testing.assert_allclose(vectors, elsewhere(tmp_path / "saved", SENTENCES), atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_decoder_made_bidirectional_stays_so_wherever_it_is_loaded(
    name: str, labeled: Path, tmp_path: Path
) -> None:
    start = save_family(name, tmp_path / "start")
    settings = {"batch_size": 4, "passages_per_query": 2, "attention": "bidirectional", "pooling": "mean"}
    settings |= {"passage_length": 60}
    api.finetune(labeled, encoder=start, out=tmp_path / "out", **settings, **ONE_STEP)
    encoder = load_encoder(tmp_path / "out")
    assert not encoder.is_causal and encoder.predicts == "nothing"
    ids = encoder.tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
    changed = torch.cat([ids[:, :-2], ids[:, -2:-1] + 1, ids[:, -1:]], 1)
    with torch.no_grad():
        (first,), (second,) = encoder(ids, None), encoder(changed, None)
    assert not torch.allclose(first[0, 0], second[0, 0], atol=1e-6), "the first token sees the others"
    vectors = Retriever(tmp_path / "out", device="cpu", precision="fp32").encode_passages(SENTENCES)
    np.testing.assert_allclose(vectors, elsewhere(tmp_path / "out", SENTENCES), atol=1e-5)
    loss = loss_of(load_method("cot-lm", encoder), SENTENCES, SENTENCES[::-1])
    assert torch.isfinite(loss)


INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PUBLISHED = {
    # As in the config_sentence_transformers.json of these models.
    "qwen3": {"query": INSTRUCT, "document": ""},
    "mistral": {
        "web_search_query": f"{INSTRUCT} ",
        "sts_query": "Instruct: Retrieve semantically similar text.\nQuery: ",
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_instructions_are_those_of_the_published_folders(name: str, labeled: Path, tmp_path: Path) -> None:
    """Qwen3-Embedding calls its instruction `query`; e5-mistral-7b-instruct has one for each task, chosen by its name."""
    folder = save_family(name, tmp_path / "model", prompts=PUBLISHED[name])
    queries, chosen = ["why did the ferries stay?", "ice"], None if name == "qwen3" else "web_search_query"
    form: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
    retriever = Retriever(folder, **form, prompts={"query": chosen} if chosen else None)
    expected = elsewhere(folder, queries, "query", prompt_name=chosen)
    np.testing.assert_allclose(retriever.encode_queries(queries), expected, atol=1e-5)
    np.testing.assert_allclose(retriever.encode_passages(SENTENCES), elsewhere(folder, SENTENCES), atol=1e-5)
    settings: dict[str, Any] = {
        "batch_size": 4,
        "passages_per_query": 2,
        "query_length": 16,
        "query_prompt": chosen,
        "passage_length": 60,
    }
    api.finetune(labeled, encoder=folder, out=tmp_path / "out", **settings, **ONE_STEP)
    trained = Retriever(tmp_path / "out", **form)
    assert trained.layout.prompt("query") == PUBLISHED[name][chosen or "query"] and not trained.layout.prompt(
        "passage"
    )
    np.testing.assert_allclose(
        trained.encode_queries(queries), elsewhere(tmp_path / "out", queries, "query"), atol=1e-5
    )
    assert trained.max_length > len(retriever.tokenize([""], "query")[0]) + 10, (
        "instructions do not take a query's room"
    )


def test_the_page_about_models_has_a_row_for_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "models.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    assert named == FAMILIES.keys() and named | {*OTHERS} == CONFIGS.keys()
