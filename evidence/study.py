"""The systems compared: start points, data sets, arms of pre-training, and the fine-tuning that follows.

An arm is a set of settings of `qontext pretrain`; everything else is equal for all arms. A cell is one arm on one
data set with one seed: it is pre-trained, measured without labels, fine-tuned, and measured again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

MEASURES = "MRR@10 nDCG@10 R@100"
WITH_BM25 = "+bm25"
MINED = "+mined"
"""Marks scores of a retriever that was fine-tuned on negatives which the first one mined: retriever 2."""
NEIGHBORS = "nb-recall^50@100"
"""How much of retriever 2's first 50 passages retriever 1 has among its first 100, as a measure of retriever 1."""
PILOT = "-pilot"
"""The end of a scale's name, of the cells that chose its learning rates."""
TITLED = {
    "search": "everywhere but in what pre-training reads",
    "all": "in all texts",
    "none": "in none",
}
"""The passages' titles, as a cell records them."""
BM25 = "bm25"


@dataclass(frozen=True)
class Arm:
    """One row of the tables. `source` names where its contexts' queries come from, if they are queries;
    `after` the arm whose encoder it starts from, instead of the language model.

    With `of`, it is the encoder of that arm, fine-tuned otherwise: with other settings (`finetune`), on negatives that the
    retriever of that arm mined, instead of BM25's (`mined`: stage 2), or towards the scores of a cross-encoder that learned
    from the same labels (`taught`), or, without labels, on keyphrases towards those of one that learned from another set's
    labels (`distilled`), or it is the encoder that the arm had after `at` eighths of its steps. `representation` is what
    fine-tuning trains, if it is not a vector. An arm of `words` has no model: its vectors are means of random vectors of so
    many tokens of a text. With `warmup`, it has as many steps as Condenser has before coCondenser."""

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
    words: int | None = None
    at: int | None = None
    warmup: bool = False


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
FILES = ("gold", "upper", "lower")
"""Sources that are read from a file: training questions, or for each passage the one of two other passages of its document
that is closer to it, or less close."""
CONTRASTIVE_ONLY = {"late_mlm_weight": 0.0, "head_weight": 0.0}
FORWARD = {"directions": "forward"}

ARMS = (
    Arm(BM25, "BM25"),
    Arm("words-64", "random word vectors, 64 tokens", words=64),
    Arm("words-128", "random word vectors, 128 tokens", words=128),
    Arm("words-256", "random word vectors, 256 tokens", words=256),
    Arm("none", "no pre-training"),
    Arm("none-tokens", "no pre-training; ColBERT", representation="tokens"),
    Arm("none-sparse", "no pre-training; SPLADE", representation="sparse"),
    Arm("mlm", "MLM", {"method": "mlm"}),
    Arm("condenser", "Condenser", {"method": "condenser"}),
    Arm("retromae", "RetroMAE", {"method": "retromae"}),
    Arm("cocondenser-passage", "coCondenser, passages", {"method": "cocondenser", "context": "rand"}),
    Arm("cocondenser-query", "coCondenser, keyphrases", _query("cocondenser"), "keyphrase"),
    Arm("cocondenser-gold", "coCondenser, all training questions", _query("cocondenser"), "gold"),
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
    Arm("cot-mae-gold", "CoT-MAE, all training questions", _query("cot-mae"), "gold"),
    Arm("cot-mae-mixed", "CoT-MAE, mixed", _query("cot-mae", context="mixed"), "keyphrase"),
    Arm("cot-mae-query-autoregressive", "CoT-MAE, autoregressive",
        _query("cot-mae", decoder="autoregressive"), "keyphrase"),
    Arm("bow-query", "words of keyphrases", _query("bow", target="context"), "keyphrase"),
    Arm("bow-passage", "words of the passage", {"method": "bow", "target": "passage"}),
    Arm("bow-both", "words of passage and keyphrases", _query("bow", target="both"), "keyphrase"),
    Arm("bow-contrastive", "words and contrastive",
        _query("bow", target="context", contrastive_weight=1.0), "keyphrase"),
    Arm("bow-contrastive-gold", "words, contrast, all training questions",
        _query("bow", target="context", contrastive_weight=1.0), "gold"),
    Arm("cot-mae-contrastive", "CoT-MAE and contrastive", _query("cot-mae", contrastive_weight=1.0), "keyphrase"),
    Arm("mlm-timed", "MLM, equal time", {"method": "mlm", "steps": 400}),
    Arm("cocondenser-query-timed", "coCondenser, keyphrases, equal time",
        _query("cocondenser", steps=180), "keyphrase"),
    Arm("contrastive-query-timed", "contrastive, keyphrases, equal time",
        _query("cocondenser", **CONTRASTIVE_ONLY, steps=300), "keyphrase"),
    Arm("cot-mae-query-timed", "CoT-MAE, keyphrases, equal time", _query("cot-mae", steps=250), "keyphrase"),
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
    Arm("contrastive-passage", "contrastive, passages",
        {"method": "cocondenser", "context": "rand", **CONTRASTIVE_ONLY}),
    Arm("contrastive-near", "contrastive, neighbors", {"method": "cocondenser", "context": "near", **CONTRASTIVE_ONLY}),
    Arm("contrastive-upper", "contrastive, closer passages", _query("cocondenser", **CONTRASTIVE_ONLY), "upper"),
    Arm("contrastive-lower", "contrastive, less close passages", _query("cocondenser", **CONTRASTIVE_ONLY), "lower"),
    Arm("cot-mae-forward", "CoT-MAE, passages, forward", {"method": "cot-mae", "context": PASSAGES, **FORWARD}),
    Arm("cot-mae-near", "CoT-MAE, neighbors, forward", {"method": "cot-mae", "context": "near", **FORWARD}),
    Arm("cot-mae-rand", "CoT-MAE, random passages, forward", {"method": "cot-mae", "context": "rand", **FORWARD}),
    Arm("cot-mae-upper", "CoT-MAE, closer passages", _query("cot-mae"), "upper"),
    Arm("cot-mae-lower", "CoT-MAE, less close passages", _query("cot-mae"), "lower"),
    Arm("cot-mae-causal", "CoT-MAE, SmolLM2's questions", _query("cot-mae"), "causal"),
    Arm("cot-mae-then-contrastive", "CoT-MAE, then contrastive, keyphrases",
        _query("cocondenser", **CONTRASTIVE_ONLY), "keyphrase", "cot-mae-query"),
    Arm("cot-mae-then-contrastive-long", "CoT-MAE, then contrastive, keyphrases, 1,500 steps each",
        _query("cocondenser", **CONTRASTIVE_ONLY, **LONG), "keyphrase", "cot-mae-query-long"),
    Arm("condenser-300", "Condenser, as before coCondenser", {"method": "condenser"}, warmup=True),
    Arm("cocondenser-no-mlm", "coCondenser without MLM, passages",
        {"method": "cocondenser", "context": "rand", **CONTRASTIVE_ONLY}, after="condenser-300"),
    *(
        Arm(f"{arm}-at-{eighths}", f"{title}, after {eighths}/8", of=arm, at=eighths)
        for arm, title in {
            "mlm": "MLM",
            "cot-mae-passage": "CoT-MAE, passages",
            "cot-mae-query": "CoT-MAE, keyphrases",
            "cocondenser-passage": "coCondenser, passages",
            "cocondenser-query": "coCondenser, keyphrases",
        }.items()
        for eighths in (1, 2, 4)
    ),
)  # fmt: skip
DEPTH = (
    BM25, "words-64", "words-256", "none", "mlm", "cot-mae-passage", "cot-mae-query", "cocondenser-passage",
    "cocondenser-query", "contrastive-passage", "contrastive-query", "cot-mae-forward", "cot-mae-mixed", "retromae",
    "cot-mae-query-autoregressive", "bow-query", "cocondenser-span", "cot-mae-near", "cot-mae-rand", "cot-mae-upper",
    "cot-mae-lower", "contrastive-near", "contrastive-upper", "contrastive-lower", "cot-mae-then-contrastive",
    *(arm.name for arm in ARMS if arm.at), "cocondenser-no-mlm", "cot-mae-causal", "cocondenser-causal",
)  # fmt: skip
"""The arms of the study at depth, by their weight: where computing ends, the last ones are missing."""


@dataclass(frozen=True)
class Scale:
    """The start of arms, and the amount of computing. `small` only shows that everything runs."""

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
    titles: Literal["search", "all", "none"] = "search"  # which texts have them, by the keys of `TITLED`
    query_titles: bool = True  # whether keyphrases are of titles, too
    start_tokens: int | None = None  # of the texts of that training; as all others, if None
    share: int = 1  # each so-manieth document of a set alone
    unlabeled: bool = True  # whether encoders are measured without labels, too
    isotropy: bool = False  # … and their vectors centered and whitened
    encoder: str = (
        ""  # the size of an encoder from nothing, instead of the given model, which then judges pairs alone
    )
    vocabulary: int = 16_000  # of its tokenizer
    pool: tuple[
        str, ...
    ] = ()  # sets whose passages and labels are joined, with the passages of the documents, as one set
    targets: tuple[str, ...] = ()  # the sets on which each cell is measured
    arms: tuple[str, ...] = ()  # all, if there are none
    condenser_steps: int = 0  # of the head, before coCondenser
    finetune_epochs: int = 1
    mined: bool = False  # whether each arm is fine-tuned on negatives that its retriever mined, too
    snapshots: int = 0
    rates: tuple[float, ...] = ()  # learning rates; a pilot chooses that of each arm


@dataclass(frozen=True)
class Cell:
    """An arm that is trained on the data set `data`, and measured there or, zero-shot, on the set `target`. `rates` are the
    learning rates chosen for the trainings of arms, by their names; any other is the scale's."""

    scale: str
    data: str
    arm: Arm
    seed: int
    target: str | None = None
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def trainings(self) -> tuple[Arm, ...]:
        """The arms whose pre-training makes the cell's encoder, in their order. A snapshot is its arm's; an arm may start
        from another one."""
        trained = named(self.arm.of) if self.arm.of else self.arm
        first = (named(trained.after),) if trained.after else ()
        return (*first, trained) if trained.settings else ()

    @property
    def place(self) -> str:
        """The data set, as tables name it."""
        return f"{self.data} to {self.target}" if self.target else self.data

    @property
    def name(self) -> str:
        return f"{self.scale}/{self.place.replace(' ', '-')}/{self.arm.name}-{self.seed}"


def named(arm: str) -> Arm:
    return next(other for other in ARMS if other.name == arm)


POOL = ("squad_pool", "squadshifts_wiki_pool", "fairytaleqa", "medquad")
ZERO_SHOT = ("scifact", "nfcorpus", "cosqa", "cranfield", "vaswani", "dl19_small")
SCALES = {
    "minilm": Scale("all-MiniLM-L6-v2 as it comes", vector="mean", similarity="cosine", temperature=0.05, lr=5e-5),
    "plain": Scale(
        "all-MiniLM-L6-v2 trained back into a language model", start_steps=600, start_lr=3e-4, vector="mean",
        similarity="cosine", temperature=0.05,
    ),
    "controls": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, measured without labels, in a third of the steps",
        start_steps=200, start_lr=3e-4, steps=50, vector="mean", similarity="cosine", temperature=0.05, labels=(),
        isotropy=True,
    ),
    "titles-all": Scale(
        "the same, with titles in all texts of 128 tokens", start_steps=200, start_lr=3e-4, start_tokens=64, steps=50,
        vector="mean", similarity="cosine", temperature=0.05, tokens=128, labels=(), titles="all", isotropy=True, share=4,
    ),
    "titles-none": Scale(
        "the same, with titles in none, of 128 tokens", start_steps=200, start_lr=3e-4, start_tokens=64, steps=50,
        vector="mean", similarity="cosine", temperature=0.05, tokens=128, labels=(), titles="none", isotropy=True, share=4,
    ),
    "curve": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, fine-tuned on few and on many labels", start_steps=600,
        start_lr=3e-4, vector="mean", similarity="cosine", temperature=0.05, labels=(100, 8_000),
    ),
    "long": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, ten times as many steps, keyphrases without titles",
        start_steps=600, start_lr=3e-4, vector="mean", similarity="cosine", temperature=0.05, query_titles=False,
        isotropy=True, arms=(BM25, "words-64", "none", "mlm-long", "cot-mae-passage-long", "cot-mae-query-long"),
    ),
    "relevance": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, texts of 128 tokens without titles, passages as contexts",
        start_steps=200, start_lr=3e-4, start_tokens=64, vector="mean", similarity="cosine", temperature=0.05, tokens=128,
        labels=(), titles="none", isotropy=True,
        arms=(BM25, "words-128", "none", "contrastive-upper", "contrastive-lower", "contrastive-near", "contrastive-passage",
              "contrastive-query"),
    ),
    "stages": Scale(
        "all-MiniLM-L6-v2 trained back into a language model, texts of 128 tokens without titles, fine-tuned in two stages",
        start_steps=200, start_lr=3e-4, start_tokens=64, vector="mean", similarity="cosine", temperature=0.05, tokens=128,
        titles="none", mined=True, unlabeled=False,
        arms=(BM25, "contrastive-passage", "contrastive-query", "none", "condenser", "cocondenser-passage"),
    ),
    "depth": Scale(
        "a BERT of 4 × 256 from nothing, in the papers' geometry", encoder="mini", start_steps=20_000, start_lr=5e-4,
        steps=5_000, batch=64, tokens=144, titles="all", query_titles=False, isotropy=True, pool=POOL,
        targets=(*POOL, *ZERO_SHOT), arms=DEPTH, condenser_steps=300, labels=(34_000,), finetune_epochs=3,
        finetune_passages=4, mined=True, snapshots=8, rates=(1e-4, 3e-4, 1e-3),
    ),
    "small": Scale(
        "miniature", layers=1, start_steps=2, steps=2, batch=8, tokens=32, labels=(16,), finetune_steps=2,
        finetune_batch=8, reranker_steps=2, reranker_batch=4, teacher_labels=16, teacher_steps=2, distill_steps=2,
        queries_per_passage=2, isotropy=True,
    ),
}  # fmt: skip
SCALES["depth-small"] = replace(
    SCALES["depth"], title="depth in miniature", encoder="tiny", vocabulary=400, start_steps=2, steps=8, batch=8, tokens=32,
    labels=(16,), finetune_steps=2, finetune_epochs=1, finetune_batch=8, finetune_passages=2, queries_per_passage=2,
    condenser_steps=2, pool=("stories", "tales"), targets=("stories", "others"), rates=(1e-4, 1e-3),
)  # fmt: skip


def pilot(scale: Scale) -> Scale:
    """How an arm's learning rate is chosen: few steps, few labels, on development questions of one set."""
    return replace(
        scale,
        steps=max(2, scale.steps * 300 // 5_000),
        split="dev",
        targets=scale.targets[:1],
        labels=(min(scale.labels[0], 4_000),),
        finetune_epochs=1,
        mined=False,
        isotropy=False,
        snapshots=0,
        rates=(),
    )
