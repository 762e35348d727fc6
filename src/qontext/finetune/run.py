"""`qontext finetune`: labelled queries with hard negatives, or a teacher's scores of them → a retriever."""

from __future__ import annotations

from typing import Any

from qontext import log
from qontext.artifacts import Workdir
from qontext.errors import QontextError
from qontext.finetune.config import FinetuneConfig
from qontext.stages import Stage

CACHE = "cache/passages"


def run(config: FinetuneConfig, work: Workdir) -> dict[str, Any]:
    from qontext.engine import checkpoint, metrics
    from qontext.engine.distributed import join
    from qontext.engine.encoder import load_encoder
    from qontext.engine.loop import train
    from qontext.finetune.batches import RetrieverPlan, Turns, pin, prepare
    from qontext.finetune.card import retriever_card
    from qontext.finetune.dev import Dev
    from qontext.finetune.examples import read_examples
    from qontext.finetune.objective import BiEncoder
    from qontext.finetune.texts import tokenize
    from qontext.finetune.untied import load_query_encoder, save_query_encoder
    from qontext.retrieve.runs import read_run

    group = join(config.device)
    teacher = read_run(config.teacher) if config.teacher else None
    examples, source = read_examples(config.groups, config.split, config.passages, teacher)
    turns = Turns(len(examples), config.batch_size, config.seed, group.rank, group.world)
    pooling, similarity = resolve_layout(config)
    encoder = load_encoder(config.encoder, seed=config.seed, dropout=config.dropout)
    query_encoder = load_query_encoder(config)
    check_length("passage_length", config.passage_length, encoder.max_length, config.encoder)
    check_length("query_length", config.query_length, encoder.max_length, config.encoder)
    queries = tokenize(enumerate(examples.texts), len(examples.texts), encoder.tokenizer, config.query_length)
    passages = _passages(config, examples, source, encoder, group, work)
    examples.settle(passages.key)
    per_query = examples.passages_per_visit(config.passages_per_query)
    steps = config.steps_over(len(examples))
    loss = config.distill if config.teacher else "contrastive"
    temperature = config.temperature or (1.0 if similarity == "dot" else 0.05)
    model = BiEncoder(encoder, pooling, similarity, temperature, loss, query_encoder).to(group.device)
    plan = RetrieverPlan(
        examples,
        queries,
        passages,
        turns,
        per_query,
        config.tokens_at_a_time(group.device),
        encoder.tokenizer.pad_token_id,
    )
    summary: dict[str, Any] = {
        "queries": len(examples),
        "passages": len(examples.number),
        "passages per query": per_query,
        "steps": steps,
        "pooling": pooling,
        "similarity": similarity,
        "temperature": temperature,
    }
    if short := examples.short_of(per_query):
        summary["queries filled up with random passages"] = short
    if examples.without_negatives:
        summary["queries without negatives, left out"] = examples.without_negatives
    if examples.unscored:
        summary["passages without a teacher's score, left out"] = examples.unscored
    dev = None
    if config.dev:
        from qontext.engine.probe import Probe

        probe = Probe(
            config.dev,
            config.dev_split,
            encoder.tokenizer,
            config.passage_length,
            queries=config.dev_queries,
            query_tokens=config.query_length,
        )
        dev = Dev(
            probe,
            model,
            group,
            work,
            every=config.dev_every or max(1, steps // 10),
            last=steps,
            patience=config.patience,
            keep_best=config.keep == "best",
        )
        if group.is_first:
            summary["dev before"] = dev.measure()
    on_gpu = group.device.type == "cuda"
    if config.compile == "on" or (config.compile == "auto" and on_gpu):
        for one in (encoder, query_encoder):
            if one is not None:
                one.compile(dynamic=True)
    summary |= train(
        model,
        (lambda step: pin(plan(step))) if on_gpu else plan,
        config.loop(steps, group.device, config.gradient_cache),
        group,
        work,
        phase="finetune",
        prepare=prepare,
        every=dev,
    )
    if not group.is_first:
        return {}
    if dev is not None:
        summary["dev"] = dev.finish()
    model.to("cpu")
    longest = config.passage_length if config.untied else max(config.query_length, config.passage_length)
    layout: dict[str, Any] = {"pooling": pooling, "similarity": similarity, "mlm_head": False}
    layout |= {"normalize": similarity == "cosine"}
    with work.write_folder(".") as made:
        encoder.save(made, max_length=longest, **layout)
        if query_encoder is not None:
            save_query_encoder(query_encoder, made, max_length=config.query_length, **layout)
        card = retriever_card(config, summary, pooling=pooling, similarity=similarity, loss=loss)
        (made / "README.md").write_text(card, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    work.remove("cache")
    return summary


def resolve_layout(config: FinetuneConfig) -> tuple[str, str]:
    """Pooling and similarity: those asked for, else those that the encoder's folder was saved with."""
    from qontext.engine.locate import locate
    from qontext.retrieve.retriever import read_layout

    layout = read_layout(locate(config.encoder))
    pooling = layout.pooling if config.pooling == "auto" else config.pooling
    similarity = layout.similarity if config.similarity == "auto" else config.similarity
    if pooling not in ("cls", "mean"):
        raise QontextError(
            f"the encoder pools by {pooling!r}, which cannot be trained here",
            place=config.encoder,
            remedy="Set --pooling cls or mean.",
        )
    if layout.dense:
        raise QontextError(
            "the encoder has a dense layer after its pooling, which cannot be trained here",
            place=config.encoder,
        )
    if layout.prompts:
        log.warn(f"{config.encoder} puts prompts before texts; they are left out here and afterwards.")
    return pooling, "cosine" if similarity == "cosine" else "dot"


def check_length(name: str, asked: int, most: int, encoder: str) -> None:
    if asked > most:
        raise QontextError(f"{name} = {asked}, but the encoder reads {most} tokens at most", place=encoder)


def _passages(
    config: FinetuneConfig, examples: Any, source: str, encoder: Any, group: Any, work: Workdir
) -> Any:
    """The passages' tokens; made by the first rank, read by all."""
    from qontext.finetune.texts import Texts, tokenize

    if group.is_first and not work.has(CACHE):
        made = tokenize(
            examples.contents(source), len(examples.number), encoder.tokenizer, config.passage_length
        )
        with work.write_folder(CACHE) as folder:
            made.save(folder)
    group.wait()
    return Texts.load(work.path / CACHE)


STAGE = Stage(
    verb="finetune",
    config=FinetuneConfig,
    run=run,
    distributed=True,
    examples="""
        qontext finetune groups --passages data --encoder encoder --out retriever
        qontext finetune data --encoder encoder --batch-size 256 --dev data --patience 3 --out retriever
        qontext finetune groups --passages data --encoder encoder --teacher scores --distill kl --out student
        torchrun --nproc-per-node 8 -m qontext finetune groups --passages data --encoder encoder --out retriever
    """,
)
