"""What is compared: start points, data sets, arms of pre-training, and the fine-tuning that follows.

An arm is a set of settings of `qontext pretrain`; everything else is equal for all arms. A cell is one arm on one
data set with one seed: it is pre-trained, measured without labels, fine-tuned, and measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from qontext.workflow.recipe import Recipe, Step

MEASURES = "MRR@10 nDCG@10 R@100"
WITH_BM25 = "+bm25"
BM25 = "bm25"


@dataclass(frozen=True)
class Arm:
    """One row of the tables. `source` names where its contexts' queries come from, if they are queries;
    `after` the arm whose encoder it starts from, instead of the language model.

    With `of`, it is the encoder of that arm, fine-tuned otherwise: with other settings (`finetune`), on negatives that the
    retriever of that arm mined, instead of BM25's (`mined`: stage 2), or towards the scores of a cross-encoder that learned
    from the same labels (`taught`), or, without labels, on keyphrases towards those of one that learned from another set's
    labels (`distilled`). `representation` is what fine-tuning trains, if it is not a vector."""

    name: str
    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    source: str | None = None
    after: str | None = None
    of: str | None = None
    mined: bool = False
    taught: bool = False
    distilled: bool = False
    finetune: dict[str, Any] = field(default_factory=dict)
    representation: str | None = None


def _query(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "context": "query", **more}


PASSAGES = "near+olap+rand"
LONG = {"steps": 1_500}
EIGHT = {"passages_per_query": 8}
GENERATORS = {
    "keyphrase": "keyphrase",
    "filtered": "keyphrase",
    "uncertain": "keyphrase",
    "span": "span",
    "causal": "causal",
    "causal-filtered": "causal",
}
"""The generator that a source's queries come from."""
CONTRASTIVE_ONLY = {"late_mlm_weight": 0.0, "head_weight": 0.0}

ARMS = (
    Arm(BM25, "BM25"),
    Arm("none", "no pre-training"),
    Arm("none-tokens", "no pre-training; ColBERT", representation="tokens"),
    Arm("none-sparse", "no pre-training; SPLADE", representation="sparse"),
    Arm("mlm", "MLM", {"method": "mlm"}),
    Arm("condenser", "Condenser", {"method": "condenser"}),
    Arm("retromae", "RetroMAE", {"method": "retromae"}),
    Arm("cocondenser-passage", "coCondenser, passages", {"method": "cocondenser", "context": "rand"}),
    Arm("cocondenser-query", "coCondenser, keyphrases", _query("cocondenser"), "keyphrase"),
    Arm("cocondenser-gold", "coCondenser, questions", _query("cocondenser"), "gold"),
    Arm("cocondenser-span", "coCondenser, random spans", _query("cocondenser"), "span"),
    Arm("cocondenser-filtered", "coCondenser, filtered", _query("cocondenser"), "filtered"),
    Arm("cocondenser-weighted", "coCondenser, weighted by score", _query("cocondenser", sampling="score"), "filtered"),
    Arm("cocondenser-causal", "coCondenser, SmolLM2's questions", _query("cocondenser"), "causal"),
    Arm("cocondenser-causal-filtered", "coCondenser, SmolLM2's, filtered", _query("cocondenser"), "causal-filtered"),
    Arm("cocondenser-one-query", "coCondenser, one keyphrase", _query("cocondenser", candidates=1), "keyphrase"),
    Arm("cocondenser-mixed", "coCondenser, mixed", _query("cocondenser", context="mixed"), "keyphrase"),
    Arm("contrastive-query", "contrastive, keyphrases", _query("cocondenser", **CONTRASTIVE_ONLY), "keyphrase"),
    Arm("contrastive-unmasked", "contrastive, keyphrases, nothing masked",
        _query("cocondenser", **CONTRASTIVE_ONLY, encoder_mask=0.0), "keyphrase"),
    Arm("contrastive-uncertain", "contrastive, uncertain keyphrases", _query("cocondenser", **CONTRASTIVE_ONLY),
        "uncertain"),
    Arm("contrastive-causal", "contrastive, SmolLM2's questions", _query("cocondenser", **CONTRASTIVE_ONLY), "causal"),
    Arm("cocondenser-warm", "Condenser, coCondenser", _query("cocondenser"), "keyphrase", "condenser"),
    Arm("cot-mae-passage", "CoT-MAE, passages", {"method": "cot-mae", "context": PASSAGES}),
    Arm("cot-mae-query", "CoT-MAE, keyphrases", _query("cot-mae"), "keyphrase"),
    Arm("cot-mae-gold", "CoT-MAE, questions", _query("cot-mae"), "gold"),
    Arm("cot-mae-mixed", "CoT-MAE, mixed", _query("cot-mae", context="mixed"), "keyphrase"),
    Arm("cot-mae-query-autoregressive", "CoT-MAE, autoregressive",
        _query("cot-mae", decoder="autoregressive"), "keyphrase"),
    Arm("bow-query", "words of keyphrases", _query("bow", target="context"), "keyphrase"),
    Arm("bow-passage", "words of the passage", {"method": "bow", "target": "passage"}),
    Arm("bow-both", "words of passage and keyphrases", _query("bow", target="both"), "keyphrase"),
    Arm("bow-contrastive", "words and contrastive",
        _query("bow", target="context", contrastive_weight=1.0), "keyphrase"),
    Arm("bow-contrastive-gold", "words, contrast, questions",
        _query("bow", target="context", contrastive_weight=1.0), "gold"),
    Arm("cot-mae-contrastive", "CoT-MAE and contrastive", _query("cot-mae", contrastive_weight=1.0), "keyphrase"),
    Arm("mlm-timed", "MLM, equal time", {"method": "mlm", "steps": 400}),
    Arm("cocondenser-query-timed", "coCondenser, keyphrases, equal time",
        _query("cocondenser", steps=180), "keyphrase"),
    Arm("contrastive-query-timed", "contrastive, keyphrases, equal time",
        _query("cocondenser", **CONTRASTIVE_ONLY, steps=300), "keyphrase"),
    Arm("mlm-long", "MLM, 1,500 steps", {"method": "mlm", **LONG}),
    Arm("cot-mae-passage-long", "CoT-MAE, passages, 1,500 steps", {"method": "cot-mae", "context": PASSAGES, **LONG}),
    Arm("cot-mae-query-long", "CoT-MAE, keyphrases, 1,500 steps", _query("cot-mae", **LONG), "keyphrase"),
    Arm("cocondenser-passage-long", "coCondenser, passages, 1,500 steps",
        {"method": "cocondenser", "context": "rand", **LONG}),
    Arm("cocondenser-query-long", "coCondenser, keyphrases, 1,500 steps", _query("cocondenser", **LONG), "keyphrase"),
    Arm("contrastive-query-long", "contrastive, keyphrases, 1,500 steps",
        _query("cocondenser", **CONTRASTIVE_ONLY, **LONG), "keyphrase"),
    Arm("contrastive-query-tokens", "contrastive, keyphrases; ColBERT", of="contrastive-query", representation="tokens"),
    Arm("cocondenser-query-stage-2", "coCondenser, stage 2", of="cocondenser-query", mined=True),
    Arm("cocondenser-query-eight", "coCondenser, seven negatives", of="cocondenser-query", finetune=EIGHT),
    Arm("none-distilled", "no pre-training, distilled", of="none", finetune=EIGHT, distilled=True),
    Arm("contrastive-query-distilled", "contrastive, keyphrases, distilled", of="contrastive-query", finetune=EIGHT,
        distilled=True),
    Arm("cocondenser-query-soft", "coCondenser, soft labels", of="cocondenser-query", finetune=EIGHT, taught=True),
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """What arms start from, and how much is computed. `small` only shows that everything runs."""

    title: str
    layers: int | None = None  # the first ones of the encoder; all, if None
    start_steps: int = 0  # of training it to predict masked words again; 0: it is used as it comes
    start_lr: float = 2e-4
    vector: str = "cls"
    similarity: str = "dot"
    temperature: float = 1.0
    steps: int = 150
    batch: int = 32
    tokens: int = 64
    lr: float = 1e-4
    labels: tuple[int, ...] = (1_000,)
    finetune_steps: int = 40
    finetune_batch: int = 32
    finetune_passages: int = 2
    finetune_lr: float = 5e-5
    reranker_steps: int = 125
    reranker_batch: int = 16
    teacher_labels: int = 4_000
    teacher_steps: int = 250
    distill_steps: int = 128
    queries_per_passage: int = 5
    split: str = "test"


@dataclass(frozen=True)
class Cell:
    """An arm that is trained on the data set `data`, and measured there or, zero-shot, on the set `target`."""

    scale: str
    data: str
    arm: Arm
    seed: int
    target: str | None = None

    @property
    def place(self) -> str:
        """The data set, as tables name it."""
        return f"{self.data} to {self.target}" if self.target else self.data

    @property
    def name(self) -> str:
        return f"{self.scale}/{self.place.replace(' ', '-')}/{self.arm.name}-{self.seed}"


def start_recipe(scale: Scale, model: str, documents: str) -> Recipe:
    """The plain language model that arms start from: the given encoder, trained to predict masked words again."""
    return Recipe(
        "A language model to start from",
        (
            Step.of("split", {"source": documents, "tokenizer": model, "max_tokens": scale.tokens}),
            Step.of(
                "pretrain",
                {
                    "passages": "@split",
                    "encoder": model,
                    "method": "mlm",
                    "steps": scale.start_steps,
                    "batch_size": scale.batch,
                    "max_tokens": scale.tokens,
                    "lr": scale.start_lr,
                },
            ),
        ),
    )


@dataclass(frozen=True)
class Places:
    """What a cell reads: a data set, the encoder that arms start from, the set's training questions as queries of their
    passages, the set to measure on, if it is another one, and, for the arms that need one, a language model that asks
    questions and a cross-encoder that learned from another set's labels."""

    data: str
    start: str
    gold: str
    target: str | None = None
    question_model: str | None = None
    teacher: str | None = None


def teacher_recipe(scale: Scale, start: str, data: str) -> Recipe:
    """A cross-encoder from the arms' start and the labels of a set that the arms are not measured on."""
    asked = {"data": data, "split": "train"}
    words = {"bm25": True, **asked, "limit": scale.teacher_labels, "k": 100}
    mined = {
        "run": "@bm25",
        "qrels": data,
        **asked,
        "depth": 100,
        "per_query": 8,
        "limit": scale.teacher_labels,
    }
    steps = (
        Step.of("bm25", words, verb="search"),
        Step.of("groups", mined, verb="mine"),
        _reranker("reranker", "@groups", start, data, scale, scale.teacher_steps, scale.reranker_batch),
    )
    return Recipe("A cross-encoder of another set", steps)


def recipe(cell: Cell, scale: Scale, places: Places) -> Recipe:
    """The steps of a cell. Cells of one data set share the steps that have no arm in their names; those that measure on
    another set, `target`, are named after it."""
    data, start = places.data, places.start
    arm, tag, measured = cell.arm, f"{cell.arm.name}-{cell.seed}", places.target or data
    end = f"-{cell.target}" if cell.target else ""
    words = Step.of(
        f"bm25{end}", {"bm25": True, "data": measured, "split": scale.split, "k": 100}, verb="search"
    )
    if arm.name == BM25:
        scored = {"run": f"@bm25{end}", "qrels": measured, "split": scale.split, "measures": MEASURES}
        return Recipe(arm.title, (words, Step.of(f"score-bm25-1{end}-0", scored, verb="evaluate")))
    trained = named(arm.of) if arm.of else arm
    steps = [words, *_shared(trained, scale, places)]
    encoder = start
    if trained.settings:
        first = start
        if trained.after:
            steps.append(_pretrain(named(trained.after), cell.seed, scale, start))
            first = f"@pretrain-{trained.after}-{cell.seed}"
        steps.append(_pretrain(trained, cell.seed, scale, first))
        encoder = f"@pretrain-{trained.name}-{cell.seed}"
    if not arm.of and not arm.representation:
        steps += _measured(f"{tag}{end}", 0, encoder, scale, measured, words.name)
    if arm.distilled:
        steps += _distilled(cell, encoder, scale, places)
        steps += _measured(f"{tag}{end}", 0, f"@finetune-{tag}-0", scale, measured, words.name)
    for labels in () if arm.distilled else scale.labels:
        steps += _finetuned(cell, labels, encoder, start, scale, data)
        retriever, is_vector = f"@finetune-{tag}-{labels}", arm.representation is None
        steps += _measured(f"{tag}{end}", labels, retriever, scale, measured, words.name, is_vector=is_vector)
    return Recipe(f"{arm.title} on {cell.place}", tuple(steps))


def _finetuned(cell: Cell, labels: int, encoder: str, start: str, scale: Scale, data: str) -> Iterator[Step]:
    """Fine-tuning of an arm, after what it needs: another retriever's negatives, or a cross-encoder's scores."""
    arm, tag, groups = cell.arm, f"{cell.arm.name}-{cell.seed}", f"@groups-{labels}"
    more = dict(arm.finetune)
    if arm.mined:
        first = f"{arm.of}-{cell.seed}"
        yield _finetune(first, labels, encoder, groups, cell, scale, data)
        yield from _mined(tag, first, labels, scale, data)
        groups = f"@groups-{tag}-{labels}"
    if arm.taught:
        yield from _teacher(labels, groups, start, cell.seed, scale, data)
        more |= {"teacher": f"@scores-train-{labels}-{cell.seed}", "distill": "kl"}
    yield _finetune(tag, labels, encoder, groups, cell, scale, data, more)


def _teacher(labels: int, groups: str, start: str, seed: int, scale: Scale, data: str) -> Iterator[Step]:
    """A cross-encoder from the same start and the same labels, and its scores of all passages of the groups."""
    name, batch = f"reranker-{labels}-{seed}", min(scale.reranker_batch, labels)
    yield _reranker(name, groups, start, data, scale, scale.reranker_steps, batch, seed=seed)
    scored = {"run": groups, "reranker": [f"@{name}"], "data": data}
    yield Step.of(f"scores-train-{labels}-{seed}", scored, verb="rerank")


def _reranker(
    name: str, groups: str, start: str, data: str, scale: Scale, steps: int, batch: int, *, seed: int = 1
) -> Step:
    of = {
        "groups": groups,
        "passages": data,
        "encoder": start,
        "candidates": 8,
        "max_length": scale.tokens + 32,
    }
    how = {"steps": steps, "batch_size": batch, "lr": 1e-4, "seed": seed}
    return Step.of(name, {**of, **how}, verb="train-reranker")


def _distilled(cell: Cell, encoder: str, scale: Scale, places: Places) -> Iterator[Step]:
    """Fine-tuning without labels: a keyphrase of each passage, BM25's negatives, and a cross-encoder's scores."""
    of = {"passages": "@passages", "per_passage": 1, "seed": 7}  # others than those of pre-training
    yield Step.of("queries-distilled", {**of, "generator": "keyphrase"}, verb="generate")
    texts = {"queries": "@queries-distilled", "passages": "@passages"}
    yield Step.of("bm25-distilled", {"bm25": True, **texts, "k": 50}, verb="search")
    mined = {"run": "@bm25-distilled", "qrels": "@queries-distilled", **texts, "depth": 50, "per_query": 8}
    yield Step.of("groups-distilled", mined, verb="mine")
    scored = {"run": "@groups-distilled", "reranker": [places.teacher], **texts}
    yield Step.of("scores-distilled", {**scored, "max_length": scale.tokens + 32}, verb="rerank")
    tag = f"{cell.arm.name}-{cell.seed}"
    more = {"teacher": "@scores-distilled", "distill": "kl", "steps": scale.distill_steps}
    yield _finetune(tag, 0, encoder, "@groups-distilled", cell, scale, "@passages", cell.arm.finetune | more)


def named(arm: str) -> Arm:
    return next(other for other in ARMS if other.name == arm)


def _shared(arm: Arm, scale: Scale, places: Places) -> Iterator[Step]:
    data, start = places.data, places.start
    yield Step.of("passages", {"source": data, "keep": True, "tokenizer": start}, verb="split")
    drawn = {"passages": "@passages", "per_passage": scale.queries_per_passage}
    generator = GENERATORS.get(arm.source or "")
    if generator == "causal":
        drawn |= {"per_passage": min(2, scale.queries_per_passage), "model": places.question_model}
    if generator:
        yield Step.of(f"queries-{generator}", {**drawn, "generator": generator}, verb="generate")
    if arm.source in ("filtered", "causal-filtered"):
        settings = {"queries": f"@queries-{generator}", "passages": "@passages", "keep_at_least": 1}
        yield Step.of(f"queries-{arm.source}", settings, verb="filter")
    if arm.source == "uncertain":
        settings = {"queries": "@queries-keyphrase", "passages": "@passages", "keep_at_least": 0}
        ranks = {"by": "retrieval", "retriever": start, "skip": 1, "top": 100}
        yield Step.of("queries-uncertain", settings | ranks, verb="filter")
    if arm.source == "gold":
        yield Step.of("queries-gold", {**drawn, "generator": "file", "queries": places.gold}, verb="generate")
    if scale.labels:
        of = {"bm25": True, "data": data, "split": "train", "limit": max(scale.labels), "k": 100}
        yield Step.of("bm25-train", of, verb="search")
    for labels in scale.labels:
        mined = {"run": "@bm25-train", "qrels": data, "data": data, "split": "train"}
        yield Step.of(
            f"groups-{labels}", {**mined, "depth": 100, "per_query": 8, "limit": labels}, verb="mine"
        )


def _finetune(
    tag: str,
    labels: int,
    encoder: str,
    groups: str,
    cell: Cell,
    scale: Scale,
    data: str,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Step:
    settings = {
        "groups": groups,
        "passages": data,
        "encoder": encoder,
        "steps": max(scale.finetune_steps, labels // scale.finetune_batch),
        "batch_size": min(scale.finetune_batch, labels or scale.finetune_batch),
        "passages_per_query": scale.finetune_passages,
        "passage_length": scale.tokens,
        "lr": scale.finetune_lr,
        "seed": cell.seed,
    }
    if cell.arm.representation:
        settings["representation"] = cell.arm.representation
    else:
        settings |= {
            "pooling": scale.vector,
            "similarity": scale.similarity,
            "temperature": scale.temperature,
        }
    return Step.of(f"finetune-{tag}-{labels}", {**settings, **more}, verb="finetune")


def _mined(tag: str, retriever: str, labels: int, scale: Scale, data: str) -> Iterator[Step]:
    """Negatives from what a retriever finds for the training questions, as many as from BM25."""
    end = f"{tag}-{labels}"
    texts = {
        "texts": data,
        "encoder": f"@finetune-{retriever}-{labels}",
        "max_length": scale.tokens,
        "storage": "fp16",
    }
    yield Step.of(f"vectors-train-{end}", texts, verb="encode")
    search = {"index": f"@vectors-train-{end}", "data": data, "split": "train", "limit": labels, "k": 100}
    yield Step.of(f"run-train-{end}", search, verb="search")
    of = {"run": f"@run-train-{end}", "qrels": data, "data": data, "split": "train"}
    yield Step.of(f"groups-{end}", {**of, "depth": 100, "per_query": 8, "limit": labels}, verb="mine")


def _pretrain(arm: Arm, seed: int, scale: Scale, start: str) -> Step:
    queries = {"queries": f"@queries-{arm.source}"} if arm.source else {}
    settings = {
        "passages": "@passages",
        "encoder": start,
        "steps": scale.steps,
        "batch_size": scale.batch,
        "max_tokens": scale.tokens,
        "lr": scale.lr,
        "vector": scale.vector,
        "similarity": scale.similarity,
        "seed": seed,
    }
    if arm.settings["method"] == "cocondenser" or "contrastive_weight" in arm.settings:
        settings["temperature"] = scale.temperature
    return Step.of(f"pretrain-{arm.name}-{seed}", {**settings, **queries, **arm.settings}, verb="pretrain")


def _measured(
    tag: str, labels: int, encoder: str, scale: Scale, data: str, bm25: str, *, is_vector: bool = True
) -> Iterator[Step]:
    """Steps that score an encoder on the test questions. Without pre-training for retrieval its vector is [CLS], too."""
    end = f"{tag}-{labels}"
    texts = {
        "texts": data,
        "encoder": encoder,
        "max_length": scale.tokens,
        "storage": "fp16",
    }
    if is_vector:
        texts["pooling"] = scale.vector
    yield Step.of(f"vectors-{end}", texts, verb="encode")
    yield Step.of(
        f"run-{end}",
        {"index": f"@vectors-{end}", "data": data, "split": scale.split, "k": 100},
        verb="search",
    )
    of = {"run": f"@run-{end}", "qrels": data, "split": scale.split, "measures": MEASURES}
    yield Step.of(f"score-{end}", of, verb="evaluate")
    yield Step.of(
        f"fused-{end}", {"runs": [f"@{bm25}", f"@run-{end}"], "method": "minmax", "k": 100}, verb="fuse"
    )
    yield Step.of(f"score-{end}{WITH_BM25}", {**of, "run": f"@fused-{end}"}, verb="evaluate")


SCALES = {
    "minilm": Scale("all-MiniLM-L6-v2 as it comes", vector="mean", similarity="cosine", temperature=0.05, lr=5e-5),
    "plain": Scale(
        "all-MiniLM-L6-v2 trained back into a language model", start_steps=600, start_lr=3e-4, vector="mean",
        similarity="cosine", temperature=0.05,
    ),
    "curve": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, fine-tuned on few and on many labels", start_steps=600,
        start_lr=3e-4, vector="mean", similarity="cosine", temperature=0.05, labels=(100, 8_000),
    ),
    "language-model": Scale("a language model", start_steps=20_000, steps=5_000, lr=3e-4),
    "small": Scale(
        "miniature", layers=1, start_steps=2, steps=2, batch=8, tokens=32, labels=(16,), finetune_steps=2,
        finetune_batch=8, reranker_steps=2, reranker_batch=4, teacher_labels=16, teacher_steps=2, distill_steps=2,
        queries_per_passage=2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """What a paper says, as differences that must be positive: (baseline, candidate) arms, at numbers of labels. A
    baseline may be an arm with another number of labels, as arm:labels."""

    text: str
    place: str
    pairs: tuple[tuple[str, str], ...] = ()
    why_not: str = ""  # why nothing here tests it


NONE = (
    ("none", "cocondenser-query"),
    ("none", "cot-mae-query"),
    ("none", "cocondenser-query-long"),
    ("none", "cot-mae-query-long"),
)
CLAIMS = (
    Claim("Queries are better contexts than passages: coCondenser", "Wu et al. 2023, table 1",
          (("cocondenser-passage", "cocondenser-query"), ("cocondenser-passage", "cocondenser-gold"))),
    Claim("Queries are better contexts than passages: CoT-MAE", "Wu et al. 2023, table 1",
          (("cot-mae-passage", "cot-mae-query"), ("cot-mae-passage", "cot-mae-gold"),
           ("cot-mae-passage-long", "cot-mae-query-long"))),
    Claim("Pre-training with contexts is better than none", "Gao & Callan 2022, table 3; Wu et al. 2022, table 1",
          (("none", "cocondenser-passage"), ("none", "cot-mae-passage"), *NONE)),
    Claim("… and better than MLM on the same passages", "the same",
          (("mlm", "cocondenser-passage"), ("mlm", "cot-mae-passage"), ("mlm", "cocondenser-query"),
           ("mlm", "cot-mae-query"), ("mlm", "cot-mae-query-autoregressive"),
           ("mlm-long", "cocondenser-query-long"), ("mlm-long", "cot-mae-query-long"),
           ("mlm-timed", "cocondenser-passage"), ("mlm-timed", "cocondenser-query-timed"))),
    Claim("Reconstructing the context is better than contrasting it: CoT-MAE over coCondenser", "Wu et al. 2022, table 1",
          (("cocondenser-passage", "cot-mae-passage"), ("cocondenser-query", "cot-mae-query"),
           ("cocondenser-query-long", "cot-mae-query-long"))),
    Claim("Reconstructing the passage from its vector is better than MLM: RetroMAE", "Xiao et al. 2022",
          (("mlm", "retromae"),)),
    Claim("Predicting words from the vector is better than MLM", "Ma et al. 2024",
          (("mlm", "bow-passage"), ("mlm", "bow-query"), ("mlm", "bow-both"))),
    Claim("A Condenser head helps without contexts", "Gao & Callan 2021", (("mlm", "condenser"),)),
    Claim("Five queries for each passage are better than one", "Wu et al. 2023, table 3",
          (("cocondenser-one-query", "cocondenser-query"),)),
    Claim("Queries alone are better than a mixture of queries and passages", "Wu et al. 2023, table 4",
          (("cocondenser-mixed", "cocondenser-query"), ("cot-mae-mixed", "cot-mae-query"))),
    Claim("It is the query that counts, not merely a short text of the passage", "Wu et al. 2023, section 1",
          (("cocondenser-span", "cocondenser-query"), ("cocondenser-span", "cocondenser-gold"))),
    Claim("More relevant queries are better: filtered ones", "Wu et al. 2023, section 5.3",
          (("cocondenser-query", "cocondenser-filtered"), ("cocondenser-query", "cocondenser-weighted"),
           ("cocondenser-causal", "cocondenser-causal-filtered"))),
    Claim("Passages and queries that the encoder is uncertain about teach it more", "after Kim et al. 2026 (UnIte)",
          (("contrastive-query", "contrastive-uncertain"),)),
    Claim("Questions of a language model are better contexts than phrases of the passage", "Wu et al. 2023, section 3.1",
          (("cocondenser-query", "cocondenser-causal"), ("contrastive-query", "contrastive-causal"),
           ("cocondenser-causal", "cocondenser-gold"))),
    Claim("MLM is needed beside the contrastive loss", "Gao & Callan 2022, table 4",
          (("contrastive-query", "cocondenser-query"), ("contrastive-query-long", "cocondenser-query-long"),
           ("contrastive-query-timed", "cocondenser-query-timed"))),
    Claim("Masking what is contrasted helps", "nobody's yet", (("contrastive-unmasked", "contrastive-query"),)),
    Claim("A Condenser is the better start for coCondenser", "Gao & Callan 2022, section 3.2",
          (("cocondenser-query", "cocondenser-warm"),)),
    Claim("Stage 2, with mined negatives, is better than stage 1", "Gao & Callan 2022, table 5; Wu et al. 2023, table 1",
          (("cocondenser-query", "cocondenser-query-stage-2"),)),
    Claim("Reconstructing the context beside the contrastive loss is better than coCondenser's head", "nobody's yet",
          (("cocondenser-query", "bow-contrastive"), ("cocondenser-gold", "bow-contrastive-gold"),
           ("cocondenser-query", "cot-mae-contrastive"))),
    Claim("The contrastive loss alone, with keyphrases, is better than both methods of query-as-context", "nobody's yet",
          (("cocondenser-query", "contrastive-query"), ("cot-mae-query", "contrastive-query"),
           ("cocondenser-query-timed", "contrastive-query-timed"),
           ("cocondenser-query", "contrastive-unmasked"), ("cot-mae-query", "contrastive-unmasked"),
           ("cocondenser-query-long", "contrastive-query-long"), ("cot-mae-query-long", "contrastive-query-long"))),
    Claim("Late interaction gains from the same pre-training, and is better than its vector", "nobody's yet",
          (("none-tokens", "contrastive-query-tokens"), ("contrastive-query", "contrastive-query-tokens"))),
    Claim("Without labels, scores of a cross-encoder that learned from another set's labels help", "Wang et al. 2022 (GPL)",
          (("none", "none-distilled"), ("contrastive-query", "contrastive-query-distilled"))),
    Claim("Soft labels of a cross-encoder help", "Gao & Callan 2022, table 1; Wu et al. 2022, table 2",
          (("cocondenser-query-eight", "cocondenser-query-soft"),)),
)  # fmt: skip
