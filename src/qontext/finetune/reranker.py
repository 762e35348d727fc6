"""`qontext train-reranker`: labelled queries with hard negatives → a cross-encoder.

    L = -log  exp(g(q, p⁺)) / Σ exp(g(q, p))        over the positive and the negatives of one query

g is the one logit of a sequence classifier over [query, passage], on any encoder; its head starts anew. A list is
never cut, so a micro-batch holds whole lists.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from qontext.artifacts import Workdir
from qontext.errors import QontextError
from qontext.finetune.config import LabelledConfig
from qontext.finetune.run import check_length
from qontext.stages import Stage


class RerankerConfig(LabelledConfig):
    lr: float = Field(3e-5, gt=0)
    """Highest learning rate (AdamW)."""

    candidates: int = Field(8, ge=2)
    """Passages in a list: a positive and hard negatives. Published: 64."""

    max_length: int = Field(192, ge=8)
    """Longest pair in tokens, special tokens included; the longer of query and passage is cut."""


def run(config: RerankerConfig, work: Workdir) -> dict[str, Any]:
    import numpy as np

    from qontext.engine import checkpoint, metrics
    from qontext.engine.distributed import join
    from qontext.engine.loop import train
    from qontext.engine.tokenizer import save_tokenizer
    from qontext.finetune.batches import Turns
    from qontext.finetune.card import reranker_card
    from qontext.finetune.examples import read_examples
    from qontext.finetune.listwise import ListPlan, Listwise, load_classifier, prepare
    from qontext.finetune.texts import text_key

    group = join(config.device)
    examples, source = read_examples(config.groups, config.split, config.passages)
    turns = Turns(len(examples), config.batch_size, config.seed, group.rank, group.world)
    model, tokenizer, longest = load_classifier(config.encoder, config.seed, config.dropout)
    check_length("max_length", config.max_length, longest, config.encoder)
    texts = [text for _, text in sorted(examples.contents(source))]
    examples.settle(np.array([text_key(text) for text in texts], np.int64))
    candidates = examples.passages_per_visit(config.candidates)
    if candidates < 2:
        raise QontextError(
            "no query has a negative for the reranker to tell from the positive",
            place=config.groups,
            remedy="Mine some first: qontext mine RUN QRELS",
        )
    steps = config.steps_over(len(examples))
    listwise = Listwise(model).to(group.device)
    plan = ListPlan(
        examples,
        texts,
        tokenizer,
        turns,
        candidates,
        config.max_length,
        config.tokens_at_a_time(group.device),
    )
    summary: dict[str, Any] = {
        "queries": len(examples),
        "passages": len(texts),
        "candidates": candidates,
        "steps": steps,
    }
    if short := examples.short_of(candidates):
        summary["queries filled up with random passages"] = short
    settings = config.loop(steps, group.device)
    summary |= train(listwise, plan, settings, group, work, phase="reranker", prepare=prepare)
    if not group.is_first:
        return {}
    listwise.to("cpu")
    with work.write_folder(".") as made:
        model.save_pretrained(str(made))
        save_tokenizer(tokenizer, made, config.max_length)
        card = reranker_card(config, summary, candidates=candidates, max_length=config.max_length)
        (made / "README.md").write_text(card, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    return summary


STAGE = Stage(
    verb="train-reranker",
    config=RerankerConfig,
    run=run,
    distributed=True,
    examples="""
        qontext train-reranker groups --passages data --encoder encoder --out reranker
        qontext train-reranker groups --passages data --encoder encoder --candidates 64 --batch-size 64 --out reranker
    """,
)
