"""The initial model of a generator: a sequence-to-sequence model, an encoder used twice or with an estimate for each token,
or a new T5."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from qontext.frame.errors import QontextError
from qontext.frame.files import opening
from qontext.models.encoder import UNLIMITED
from qontext.models.families import family_of
from qontext.models.folder import locate
from qontext.models.language_models import load_seq2seq, load_seq2seq_tokenizer, seq2seq_folder
from qontext.models.load import load, quiet, read_config, require_weights, seeded
from qontext.models.tokenizer import check_tokenizer, check_vocabulary, load_tokenizer


class GeneratorPreset(NamedTuple):
    """Layers of encoder and decoder, hidden size and heads of a T5 from scratch."""

    layers: int
    hidden: int
    heads: int


PRESETS = {
    "tiny": GeneratorPreset(2, 128, 2),
    "mini": GeneratorPreset(4, 256, 4),
    "small": GeneratorPreset(6, 512, 8),
}


def from_scratch(preset: str, texts: Iterable[str], vocabulary: int, seed: int) -> tuple[Any, Any]:
    """A new T5 and a tokenizer trained on the texts."""
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = train_tokenizer(texts, vocabulary)
    layers, hidden, heads = PRESETS[preset]
    build: Any = T5Config  # its signature lacks the common settings
    config = build(
        vocab_size=len(tokenizer), d_model=hidden, d_kv=hidden // heads, d_ff=4 * hidden, num_layers=layers,
        num_heads=heads, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    with seeded(seed):
        return T5ForConditionalGeneration(config), tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A BPE tokenizer with T5's special tokens: <pad> 0, </s> 1 at the end, <unk> 2.

    Not Unigram, as in T5: its trainer is not deterministic.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "</s>", "<unk>"],
        limit_alphabet=1000,
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    wrap: Any = PreTrainedTokenizerFast  # untyped
    return wrap(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def from_model(name: str, seed: int) -> tuple[Any, Any]:
    """A sequence-to-sequence model unchanged; a BERT encoder as encoder and decoder, with new cross-attention."""
    model_folder = locate(name)
    folder, config = model_folder.transformer, model_folder.config
    if config.get("is_encoder_decoder"):
        return load_seq2seq(seq2seq_folder(name))
    if config.get("model_type") != "bert":
        raise QontextError(
            f"is a {config.get('model_type')!r} model, not a sequence-to-sequence model or BERT encoder",
            place=name,
        )
    from transformers import EncoderDecoderModel

    # About checkpoints of 2021; emitted at every use of the class.
    warnings.filterwarnings("ignore", message="Version v4.12.0 introduces", category=FutureWarning)
    tokenizer = load_seq2seq_tokenizer(folder)
    with opening(folder, "a loadable BERT encoder"), seeded(seed), quiet():
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(str(folder), str(folder))
    for settings in (model.config, model.generation_config):
        settings.decoder_start_token_id = tokenizer.cls_token_id
        settings.eos_token_id = tokenizer.sep_token_id
        settings.pad_token_id = tokenizer.pad_token_id
    for half in (model.config.encoder, model.config.decoder):
        half._name_or_path = ""  # it would be saved: the model must not depend on the encoder's path
    return model, tokenizer


def load_terms(name: str, seed: int | None = None) -> tuple[Any, Any, Path, int]:
    """An encoder with one estimate for each token, its tokenizer, its folder, and the maximum length of a text. A missing
    head is initialized from `seed`; without one it is refused."""
    folder = locate(name).transformer
    settings = read_config(folder, num_labels=1)
    family = family_of(settings, name)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, folder, is_masked=family.auto == "AutoModelForMaskedLM")
    more: dict[str, Any] = {"config": settings, "ignore_mismatched_sizes": True}
    with seeded(seed or 0):
        model, missing = load("AutoModelForTokenClassification", folder, "encoder", **more)
    if missing and seed is None:
        raise QontextError(
            f"is no model of the weights of words: it has no weights for {min(missing)}",
            place=name,
            remedy="Train one: qontext train-generator DATA --learns terms --model ENCODER",
        )
    require_weights({key for key in missing if key.startswith(model.base_model_prefix + ".")}, folder)
    check_vocabulary(tokenizer, model.get_input_embeddings().num_embeddings, name)
    positions = getattr(settings.get_text_config(), "max_position_embeddings", None)
    longest = min(int(positions or tokenizer.model_max_length), UNLIMITED)
    return model, tokenizer, folder, longest - family.reserved_positions(settings)
