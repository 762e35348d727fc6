"""A tiny encoder of every architecture, with a real tokenizer, as transformers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

SENTENCES = [
    "The harbour froze over in winter, and the ferries stayed at their moorings.",
    "Ice.",
    "A pilot who knows the river reads its surface: where it is smooth, the water is deep; where it "
    "wrinkles, there is a bar of gravel underneath.",
    "Why did the ferries stay?",
]

BERT_STYLE = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_STYLE = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}

SMALL = {
    "vocab_size": 160,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
}


def configuration(kind: str) -> Any:
    import transformers as t

    if kind == "distilbert":
        return t.DistilBertConfig(vocab_size=160, dim=32, n_heads=2, n_layers=4, hidden_dim=48)
    if kind == "modernbert":
        ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
        # A window of 3 to either side: local attention must matter on the short texts of a test.
        return t.ModernBertConfig(**SMALL, **ids, local_attention=6)
    configs = {
        "bert": lambda: t.BertConfig(**SMALL),
        "roberta": lambda: t.RobertaConfig(**SMALL, max_position_embeddings=514),
        "xlm-roberta": lambda: t.XLMRobertaConfig(**SMALL, max_position_embeddings=514),
        "camembert": lambda: t.CamembertConfig(**SMALL, max_position_embeddings=514),
        "electra": lambda: t.ElectraConfig(**SMALL, embedding_size=16),
        "mpnet": lambda: t.MPNetConfig(**SMALL, max_position_embeddings=514),
    }
    return configs[kind]()


KINDS = ("bert", "roberta", "distilbert", "electra", "mpnet", "modernbert")


def wordpiece(special: dict[str, str]) -> Any:
    """A WordPiece tokenizer trained on SENTENCES; its special tokens have the first ids, in their order."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordPiece(unk_token=special["unk"]))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=list(special.values()), show_progress=False
    )
    words.train_from_iterator(SENTENCES, trainer)
    cls, sep = special["cls"], special["sep"]
    words.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(name, words.token_to_id(name)) for name in (cls, sep)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, **{f"{name}_token": token for name, token in special.items()}
    )


def save_checkpoint(kind: str, folder: Path, *, head: bool = True, tokenizer: Any = None) -> Any:
    """Write a randomly initialized checkpoint; gives the model that was written."""
    from transformers import AutoModel, AutoModelForMaskedLM

    torch.manual_seed(7)
    auto = AutoModelForMaskedLM if head else AutoModel
    model = auto.from_config(configuration(kind)).eval()
    with torch.no_grad():  # as if trained: no bias is zero, no norm is one
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    style = ROBERTA_STYLE if kind in ("roberta", "xlm-roberta", "camembert", "mpnet") else BERT_STYLE
    (tokenizer or wordpiece(style)).save_pretrained(folder)
    return model


@pytest.fixture(scope="session", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a tiny model of each architecture, and the model itself."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_checkpoint(request.param, folder)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny BERT with its MLM head."""
    folder = tmp_path_factory.mktemp("bert")
    save_checkpoint("bert", folder)
    return folder


def batch(tokenizer: Any, texts: list[str] = SENTENCES) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of texts of mixed lengths."""
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"].bool()
