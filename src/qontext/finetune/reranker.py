"""`qontext train-reranker`: labeled queries with hard negatives → a cross-encoder.

    L = -log  exp(g(q, p⁺)) / Σ exp(g(q, p))        over the positive and the negatives of one query

g is the one logit of a sequence classifier over [query, passage], on any encoder, with a new head. Lists are
never split, so a micro-batch contains complete lists.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from qontext.finetune.config import DEV_QUERIES, LabeledConfig
from qontext.finetune.run import check_length
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage


class RerankerConfig(LabeledConfig):
    lr: float = Field(3e-5, gt=0)
    """Peak learning rate (AdamW)."""

    candidates: int = Field(8, ge=2)
    """Passages per list: one positive and hard negatives. SimLM's reranker is trained with 64."""

    max_length: int = Field(192, ge=8, le=100_000)
    """Maximum length of a pair in tokens, including special tokens; the longer of query and passage is truncated."""

    dev: Annotated[str | None, Input()] = None
    """Groups, or a BEIR folder, for evaluation during training: MRR@10 of the positive among as many
    candidates as in training. Random passages fill up lists with fewer negatives."""


def run(config: RerankerConfig, work: Workdir) -> dict[str, Any]:
    from qontext.finetune.listwise import Listwise, load_classifier
    from qontext.training.distributed import join
    from qontext.training.loop import train

    group = join(config.device)
    model, tokenizer, longest = load_classifier(config.encoder, config.seed, config.dropout)
    check_length("max_length", config.max_length, longest, config.encoder)
    titles = config.titles(tokenizer, says=group.is_first)
    plan = _plan(config, tokenizer, titles.between, group)
    if plan.candidates < 2:
        raise QontextError(
            "no query has a negative",
            place=config.groups,
            remedy="Mine negatives first: qontext mine RUN QRELS",
        )
    steps = config.steps_over(len(plan.examples))
    listwise = Listwise(model).to(group.device)
    config.add_adapters(model.base_model)
    summary: dict[str, Any] = {
        "queries": len(plan.examples),
        "passages": len(plan.texts),
        "candidates": plan.candidates,
        "steps": steps,
        **plan.examples.left_out(plan.candidates),
    }
    how: dict[str, Any] = {"steps": steps, "phase": "reranker"}
    if config.dev:
        how["evaluations"] = _evaluations(config, listwise, plan, titles.between, group, work, steps)
    summary |= train(listwise, plan, config, group, work, **how)
    if not group.is_first:
        return {}
    _save(config, listwise, tokenizer, titles, summary, work)
    return summary


def _plan(
    config: RerankerConfig, tokenizer: Any, between: str | None, group: Any, candidates: int | None = None
) -> Any:
    """The batches of lists. Default of `candidates`: those of the settings, as far as there are negatives."""
    import numpy as np

    from qontext.finetune.examples import read_examples
    from qontext.finetune.listwise import ListPlan
    from qontext.training.randomness import EpochSampler
    from qontext.training.texts import text_key

    examples, source = read_examples(config.groups, config.split, config.passages)
    sampler = EpochSampler(len(examples), config.batch_size, config.seed, group.rank, group.world)
    texts = [text for _, text in sorted(examples.contents(source, between))]
    examples.attach_passage_keys(np.array([text_key(text) for text in texts], np.int64))
    candidates = candidates or examples.passages_per_visit(config.candidates)
    budget = config.token_budget(group.device)
    return ListPlan(examples, texts, tokenizer, sampler, candidates, config.max_length, budget)


def _evaluations(
    config: RerankerConfig,
    listwise: Any,
    plan: Any,
    between: str | None,
    group: Any,
    work: Workdir,
    steps: int,
) -> Any:
    """Evaluation of the ranks of positives in the lists of `dev`."""
    from qontext.finetune import listwise as lists
    from qontext.finetune.examples import is_collection
    from qontext.training.distributed import RankGroup
    from qontext.training.evaluation import Evaluations

    dev = str(config.dev)
    of_dev = {"groups": dev, "split": config.dev_split, "batch_size": 1}
    of_dev["passages"] = None if is_collection(dev) else config.passages
    alone = RankGroup(0, 1, group.device)
    batches = _plan(config.model_copy(update=of_dev), plan.tokenizer, between, alone, plan.candidates)
    count = min(len(batches.examples), DEV_QUERIES)

    def measure() -> dict[str, float]:
        return {"MRR@10": lists.mean_reciprocal_rank(listwise, batches, count, group.device)}

    evaluations = Evaluations(measure, listwise, group, work, config.schedule_of(steps), phase="reranker")
    evaluations.begin()
    return evaluations


def _save(
    config: RerankerConfig,
    listwise: Any,
    tokenizer: Any,
    titles: Any,
    summary: dict[str, Any],
    work: Workdir,
) -> None:
    from qontext.models.folder import record_title
    from qontext.models.save import Card, model_card
    from qontext.models.tokenizer import save_tokenizer
    from qontext.training import adapters, checkpoint, metrics

    listwise.to("cpu")
    with work.write_folder(".") as folder:
        with adapters.merged(listwise.model):
            listwise.model.save_pretrained(str(folder))
        config.save_adapter(listwise.model.base_model, folder, config.encoder)
        save_tokenizer(tokenizer, folder, config.max_length)
        record_title(folder, titles.rule)
        about = (
            "A cross-encoder: it reads a query and a passage together and returns a score, higher for better answers. "
            f"Trained to put a positive first among {summary['candidates']} candidates."
        )
        card = Card("Reranker", about, "CrossEncoder")
        text = model_card(card, config, summary, "encoder", "groups", passage=titles.example())
        (folder / "README.md").write_text(text, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")


STAGE = Stage(
    verb="train-reranker",
    format=2,
    config=RerankerConfig,
    run=run,
    distributed=True,
    examples="""
        qontext train-reranker groups --passages data --encoder encoder --out reranker
        qontext train-reranker groups --passages data --encoder encoder --candidates 64 --batch-size 64 --out reranker
    """,
)
