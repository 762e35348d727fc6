"""`qontext finetune`: labelled queries with hard negatives, or a teacher's scores of them → a retriever."""

from __future__ import annotations

from typing import Any

from qontext.finetune.config import FinetuneConfig
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage

CACHE = "cache/passages"


def run(config: FinetuneConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.runs import read_run
    from qontext.finetune.examples import read_examples
    from qontext.finetune.objective import BiEncoder
    from qontext.finetune.untied import load_query_encoder
    from qontext.models.encoder import load_encoder
    from qontext.models.first_token import compute_first_token_alone
    from qontext.training.distributed import join
    from qontext.training.loop import train

    group = join(config.device)
    config = config.settled(work, group.device)
    teacher = read_run(config.teacher) if config.teacher else None
    examples, source = read_examples(config.groups, config.split, config.passages, teacher)
    pooling, similarity = resolve_layout(config)
    encoder = load_encoder(config.encoder, seed=config.seed, dropout=config.dropout)
    query_encoder = load_query_encoder(
        config.encoder, untied=config.untied, seed=config.seed, dropout=config.dropout
    )
    check_length("passage_length", config.passage_length, encoder.max_length, config.encoder)
    check_length("query_length", config.query_length, encoder.max_length, config.encoder)
    plan = _plan(config, examples, source, encoder.tokenizer, group, work)
    steps = config.steps_over(len(examples))
    loss = config.distill if config.teacher else "contrastive"
    temperature = config.temperature or (1.0 if similarity == "dot" else 0.05)
    check_dimensions(config.dimensions, encoder.hidden_size)
    model = BiEncoder(encoder, pooling, similarity, temperature, loss, query_encoder, config.terms()).to(
        group.device
    )
    summary: dict[str, Any] = {
        "queries": len(examples),
        "passages": len(examples.number),
        "passages_per_query": plan.per_query,
        "steps": steps,
        "pooling": pooling,
        "similarity": similarity,
        "temperature": temperature,
        **examples.left_out(plan.per_query),
    }
    evaluations = _evaluations(config, model, encoder.tokenizer, group, work, steps) if config.dev else None
    for half in filter(None, (encoder, query_encoder)):
        if pooling == "cls":
            compute_first_token_alone(half.backbone)
        if config.compile == "on" or (config.compile == "auto" and group.device.type == "cuda"):
            half.compile(dynamic=True)
    summary |= train(
        model,
        plan,
        config,
        group,
        work,
        steps=steps,
        phase="finetune",
        cache=config.gradient_cache,
        evaluations=evaluations,
    )
    if group.is_first:
        _save(config, model, summary, work)
    return summary if group.is_first else {}


def _save(config: FinetuneConfig, model: Any, summary: dict[str, Any], work: Workdir) -> None:
    from qontext.finetune.card import retriever_card
    from qontext.finetune.untied import save_query_encoder
    from qontext.training import checkpoint, metrics

    model.to("cpu")
    longest = config.passage_length if config.untied else max(config.query_length, config.passage_length)
    layout: dict[str, Any] = {"pooling": model.pooling, "similarity": model.similarity, "mlm_head": False}
    layout |= {"normalize": model.similarity == "cosine"}
    with work.write_folder(".") as folder:
        model.encoder.save(folder, max_length=longest, **layout)
        if model.query_encoder is not None:
            save_query_encoder(model.query_encoder, folder, max_length=config.query_length, **layout)
        card = retriever_card(
            config, summary, pooling=model.pooling, similarity=model.similarity, loss=model.loss
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    work.remove("cache")


def resolve_layout(config: FinetuneConfig) -> tuple[str, str]:
    """Pooling and similarity: from the settings, else from the encoder's folder."""
    from qontext.models.layout import read_layout
    from qontext.models.locate import locate

    layout = read_layout(locate(config.encoder))
    pooling = layout.pooling if config.pooling == "auto" else config.pooling
    similarity = layout.similarity if config.similarity == "auto" else config.similarity
    if pooling not in ("cls", "mean"):
        raise QontextError(
            f"training with the encoder's pooling {pooling!r} is not supported",
            place=config.encoder,
            remedy="Set --pooling cls or mean.",
        )
    if layout.dense:
        raise QontextError(
            "training an encoder with a dense layer after its pooling is not supported",
            place=config.encoder,
        )
    if layout.prompts:
        log.warn(
            f"{config.encoder} uses prompts; they are ignored in training and not saved with the result."
        )
    return pooling, "cosine" if similarity == "cosine" else "dot"


def check_length(name: str, value: int, most: int, encoder: str) -> None:
    if value > most:
        raise QontextError(f"{name} = {value}, but the encoder's limit is {most} tokens", place=encoder)


def check_dimensions(dimensions: tuple[int, ...], whole: int) -> None:
    if max(dimensions, default=0) >= whole:
        raise QontextError(
            f"dimensions = {max(dimensions)}, but the encoder's vectors have {whole}: name smaller numbers"
        )


def _evaluations(
    config: FinetuneConfig, model: Any, tokenizer: Any, group: Any, work: Workdir, steps: int
) -> Any:
    """Evaluation of retrieval on the labelled set `dev`."""
    from qontext.training.early_stop import Evaluations
    from qontext.training.probe import Probe

    lengths: dict[str, Any] = {"queries": config.dev_queries, "query_tokens": config.query_length}
    probe = Probe(str(config.dev), config.dev_split, tokenizer, config.passage_length, **lengths)

    def measure() -> dict[str, float]:
        return probe.measure(
            model, model.vectors, group.device, lambda ids, mask: model.vectors(ids, mask, are_queries=True)
        )

    schedule = config.evaluation_schedule(steps)
    evaluations = Evaluations(measure, model, group, work, schedule, phase="finetune")
    evaluations.begin()
    return evaluations


def _plan(
    config: FinetuneConfig, examples: Any, source: str, tokenizer: Any, group: Any, work: Workdir
) -> Any:
    """The batches of queries and their passages."""
    from qontext.finetune.batches import RetrieverPlan
    from qontext.finetune.clusters import ClusteredSampler, query_clusters
    from qontext.training.sampler import EpochSampler
    from qontext.training.texts import tokenize

    places = len(examples), config.batch_size, config.seed, group.rank, group.world
    sampler = EpochSampler(*places)
    if config.clusters:
        of = query_clusters(
            config.encoder, examples.texts, config.clusters, group, work,
            longest=config.query_length, seed=config.seed,
        )  # fmt: skip
        sampler = ClusteredSampler(*places, clusters=of)
    examples.margin_bins = config.margin_bins
    queries = tokenize(enumerate(examples.texts), len(examples.texts), tokenizer, config.query_length)
    passages = _passages(config, examples, source, tokenizer, group, work)
    examples.attach_passage_keys(passages.key)
    per_query = examples.passages_per_visit(config.passages_per_query)
    budget = config.token_budget(group.device)
    grid, pad_id = config.grid(group.device), tokenizer.pad_token_id
    return RetrieverPlan(examples, queries, passages, sampler, per_query, budget, pad_id, grid)


def _passages(
    config: FinetuneConfig, examples: Any, source: str, tokenizer: Any, group: Any, work: Workdir
) -> Any:
    """The passages' tokens, computed by rank 0, read by all."""
    from qontext.training.texts import TokenizedTexts, tokenize

    if group.is_first and not work.has(CACHE):
        texts = tokenize(examples.contents(source), len(examples.number), tokenizer, config.passage_length)
        with work.write_folder(CACHE) as folder:
            texts.save(folder)
    group.wait()
    return TokenizedTexts.load(work.path / CACHE)


STAGE = Stage(
    verb="finetune",
    format=2,
    config=FinetuneConfig,
    run=run,
    distributed=True,
    examples="""
        qontext finetune groups --passages data --encoder encoder --out retriever
        qontext finetune data --encoder encoder --batch-size 256 --dev data --patience 3 --out retriever
        qontext finetune groups --passages data --encoder encoder --teacher teacher --distill kl --out student
        torchrun --nproc-per-node 8 -m qontext finetune groups --passages data --encoder encoder --out retriever
    """,
)
