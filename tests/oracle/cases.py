"""The same losses as Qontext computes them: its own batches and its own training step, on drawn weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tests.oracle import reference
from tests.tiny import with_keys
from torch import Tensor

from qontext.contexts import Context, Sources
from qontext.corpus.store import TokenStore
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.finetune import batches, listwise
from qontext.finetune.bi_encoder import BiEncoder
from qontext.finetune.config import FinetuneConfig
from qontext.finetune.examples import Examples
from qontext.finetune.losses import LOSSES
from qontext.finetune.negatives.groups import Group as Labels
from qontext.models.encoder import Encoder
from qontext.models.representations.vector import Vector
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import RankGroup
from qontext.training.optimizer import Optimizer
from qontext.training.randomness import EpochSampler
from qontext.training.step import Stepper
from qontext.training.texts import TokenizedTexts, text_key

SEED = 7
VOCABULARY = Vocabulary(size=60, mask=4, cls=2, sep=3, pad=0, special=(0, 1, 2, 3, 4))
ALONE = RankGroup(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Case:
    """A method with its settings, and the reference's function for it."""

    loss: Callable[..., dict[str, Tensor]]
    settings: dict[str, Any] = field(default_factory=dict)


PRETRAINING = {
    "mlm": Case(reference.mlm, {"method": "mlm"}),
    "condenser": Case(reference.condenser, {"method": "condenser"}),
    "cocondenser": Case(
        reference.cocondenser, {"method": "cocondenser", "context": "rand", "gradient_cache": "off"}
    ),
    "cocondenser, queries, cache": Case(
        reference.cocondenser, {"method": "cocondenser", "context": "query", "gradient_cache": "on"}
    ),
    "cot-mae": Case(reference.cot_mae, {"method": "cot-mae", "context": "near+olap+rand"}),
    "cot-mae, queries": Case(reference.cot_mae, {"method": "cot-mae", "context": "query"}),
    "cot-mae, autoregressive": Case(
        reference.autoregressive, {"method": "cot-mae", "context": "query", "decoder": "autoregressive"}
    ),
    "retromae": Case(reference.retromae, {"method": "retromae", "decoder_mask": 0.0}),
    "bow": Case(reference.bow, {"method": "bow"}),
    "bow, queries": Case(reference.bow, {"method": "bow", "context": "query", "target": "context"}),
}
FINETUNING = {
    "infonce": Case(reference.infonce, {"loss": "contrastive", "gradient_cache": "off"}),
    "infonce, cache": Case(reference.infonce, {"loss": "contrastive", "gradient_cache": "on"}),
    "kl": Case(reference.distillation, {"loss": "kl"}),
    "margin-mse": Case(reference.margin_mse, {"loss": "margin-mse"}),
    "rank": Case(reference.rank, {"loss": "rank"}),
    "reranker": Case(reference.listwise),
}
CASES = {**PRETRAINING, **FINETUNING}


@dataclass
class Setup:
    """A trainee with drawn weights, its step, and the rows of its batch in an order that does not depend on cuts."""

    stepper: Stepper
    batch: Any
    rows: list[dict[str, Any]]
    weights: dict[str, Tensor]

    def gradients(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """The named losses, and the gradient of their sum."""
        losses = self.stepper.backward(self.batch)
        gradients = {
            _name(name): torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in self.stepper.model.named_parameters()
        }
        return {name: loss.item() for name, loss in losses.items()}, gradients


def build(name: str, micro_tokens: int) -> Setup:
    """The case's setup; batches are cut by `micro_tokens`."""
    if name == "reranker":
        return _reranker(micro_tokens)
    make = _pretraining if name in PRETRAINING else _finetuning
    return make(CASES[name].settings, micro_tokens)


def _pretraining(settings: dict[str, Any], micro_tokens: int) -> Setup:
    config = PretrainConfig.make(
        {
            "passages": "passages",
            "queries": "queries",
            "batch_size": 6,
            "dropout": 0.0,
            "precision": "fp32",
            **settings,
        },
        where="oracle",
    )
    trainee = config.objective(_encoder())
    layout = config.layout()
    sources, anchors = _sources(), np.arange(0, 18, 3)
    context = Context(config.context_name(), sources) if layout.needs_context else None
    plan = BatchPlan(
        sources, layout, context, VOCABULARY, anchors, None, config.batch_size, micro_tokens, config.seed
    )
    batch = plan(0)
    rows = []
    for micro, keys in with_keys(batch):
        texts, contexts = _texts(micro.encoder), _texts(micro.decoder) if micro.decoder else None
        for n, pair in enumerate(keys.pair.tolist()):
            row = {"pair": pair, **texts[n], "context": contexts[n] if contexts else None}
            if micro.bag:
                row["bags"] = [micro.bag.labels[micro.bag.texts[micro.bag.rows] == n].tolist()]
            rows.append(row)
    return _setup(trainee, config, config.gradient_cache, batch, rows)


def _finetuning(settings: dict[str, Any], micro_tokens: int) -> Setup:
    trainee = BiEncoder(
        _encoder(), Vector(), 1.0, LOSSES.load(settings["loss"])(LOSSES.options(settings["loss"])())
    )
    examples, count = _examples()
    examples.attach_passage_keys(np.array([text_key(f"passage {n % 13}") for n in range(count)]))
    rng = np.random.default_rng(2)
    queries = _tokens(rng.integers(3, 9, len(examples)), rng)
    passages = _tokens(rng.integers(3, 22, count), rng, examples.passage_keys)
    sampler = EpochSampler(len(examples), 4, seed=42)
    texts = batches.Tokenized(queries, passages, VOCABULARY.pad)
    plan = batches.RetrieverPlan(examples, texts, sampler, 4, micro_tokens)
    batch = plan(0)
    rows = []
    ids = [row for micro in batch.micro for row in _unpadded(micro.ids, micro.mask)]
    keys = batch.keys
    for n, own in enumerate(ids):
        row = {"is_query": keys.is_query[n].item(), "query": keys.query[n].item(), "ids": own}
        if row["is_query"]:
            row |= {"known": sorted(set(keys.known[n].tolist()) - {-1})}
        else:
            row |= {"positive": keys.is_positive[n].item(), "text": keys.text[n].item()}
            score = keys.teacher[n].item()
            row |= {"teacher": None if math.isnan(score) else round(score, 4)}
        rows.append(row)
    config = FinetuneConfig.make({"groups": "groups", "precision": "fp32"}, where="oracle")
    return _setup(trainee, config, settings.get("gradient_cache", "auto"), batch, rows)


def _reranker(micro_tokens: int) -> Setup:
    from transformers import BertForSequenceClassification, BertTokenizerFast

    words = [
        "ice",
        "winter",
        "harbour",
        "pilot",
        "river",
        "water",
        "gravel",
        "ferries",
        "moorings",
        "surface",
        "deep",
        "bar",
        "smooth",
        "query",
    ]
    words += [str(n) for n in range(10)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizerFast(vocab={word: n for n, word in enumerate([*special, *words])})
    configuration = _configuration(vocab_size=len(tokenizer), num_labels=1, classifier_dropout=0.0)
    trainee = listwise.Listwise(BertForSequenceClassification(configuration))
    examples, count = _examples()
    examples.attach_passage_keys(np.arange(count))
    texts = [" ".join(words[(n * k) % 13] for k in range(1, 3 + n % 9)) for n in range(count)]
    sampler = EpochSampler(len(examples), 4, seed=42)
    batch = listwise.ListPlan(examples, texts, tokenizer, sampler, 3, 60, micro_tokens)(0)
    rows = []
    for micro in batch.micro:
        mask = micro.inputs["attention_mask"].bool()
        pairs = [
            {"ids": ids, "types": types}
            for ids, types in zip(
                _unpadded(micro.inputs["input_ids"], mask),
                _unpadded(micro.inputs["token_type_ids"], mask),
                strict=True,
            )
        ]
        rows += [{"pairs": pairs[n : n + 3]} for n in range(0, len(pairs), 3)]
    config = FinetuneConfig.make({"groups": "groups", "precision": "fp32"}, where="oracle")
    return _setup(trainee, config, "off", batch, rows)


def _setup(trainee: Any, config: Any, cache: Any, batch: Any, rows: list[Any]) -> Setup:
    parameters = dict(trainee.named_parameters())
    weights = reference.draw({_name(name): tuple(p.shape) for name, p in parameters.items()}, SEED)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[_name(name)])
    optimizer = Optimizer(trainee, config, 1, torch.float32, ALONE.device)
    stepper = Stepper(trainee.train(), optimizer, ALONE, torch.float32, cache=cache)
    return Setup(stepper, batch, sorted(rows, key=repr), weights)


def _name(parameter: str) -> str:
    return parameter.removeprefix("encoder.").removeprefix("model.")


def _configuration(**settings: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        **{
            "vocab_size": VOCABULARY.size,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": reference.HEADS,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **settings,
        }
    )


def _encoder() -> Encoder:
    from transformers import BertForMaskedLM

    return Encoder(BertForMaskedLM(_configuration()), tokenizer=None)


def _sources() -> Sources:
    """Six documents of three passages, 3 to 22 tokens long, and two queries of each passage, 2 to 6 tokens long."""
    rng = np.random.default_rng(1)
    passages = _store(rng.integers(3, 23, 18), np.arange(0, 19, 3), rng)
    queries = _store(rng.integers(2, 7, 36), np.arange(0, 37, 2), rng)
    return Sources(passages, 30, queries, np.arange(18))


def _store(lengths: Any, groups: Any, rng: Any) -> TokenStore:
    offsets = np.cumsum([0, *lengths])
    ids = rng.integers(5, VOCABULARY.size, offsets[-1])
    starts = rng.random(len(ids)) < 0.7
    starts[offsets[:-1]] = True
    names = pa.array([str(n) for n in range(len(lengths))])
    return TokenStore(ids, starts, offsets[:-1], offsets, groups, names)


def _examples() -> tuple[Examples, int]:
    """Five queries with a positive, two or three negatives and a teacher's scores; and how many passages there are."""
    rng = np.random.default_rng(3)
    groups = [
        Labels(f"q{n}", f"query {n}", [f"p{3 * n}"], [f"p{3 * n + k}" for k in range(1, 3 + n % 2)])
        for n in range(5)
    ]
    hits = [
        Hit(group.query, passage, round(float(rng.normal()), 4))
        for group in groups
        for passage in (*group.positives, *group.negatives)
    ]
    examples = Examples(groups, "oracle", Run.of(hits))
    return examples, len(examples.number)


def _tokens(lengths: Any, rng: Any, keys: Any = None) -> TokenizedTexts:
    """Random texts with [CLS] and [SEP]."""
    ids = [[VOCABULARY.cls, *rng.integers(5, VOCABULARY.size, n - 2), VOCABULARY.sep] for n in lengths]
    begin = np.cumsum(lengths) - lengths
    return TokenizedTexts(
        np.concatenate(ids).astype(np.int32), begin, lengths, np.zeros(0) if keys is None else keys
    )


def _unpadded(values_NT: Tensor, mask_NT: Tensor) -> list[list[int]]:
    return [row[mask].tolist() for row, mask in zip(values_NT, mask_NT, strict=True)]


def _texts(text: Any) -> list[dict[str, Any]]:
    """Each row's ids without padding, and the (place, label) of what is predicted."""
    width = text.ids.shape[1]
    texts = []
    for n, ids in enumerate(_unpadded(text.ids, text.mask)):
        mine = text.positions // width == n
        places, labels = (text.positions[mine] % width).tolist(), text.labels[mine].tolist()
        texts.append({"ids": ids, "predict": [list(pair) for pair in sorted(zip(places, labels))]})
    return texts
