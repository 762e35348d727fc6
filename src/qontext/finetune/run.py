"""`qontext finetune`: labeled queries with hard negatives, or a teacher's scores of them → a retriever."""

from __future__ import annotations

from inspect import signature
from typing import Any

from qontext.finetune.config import DEV_QUERIES, FinetuneConfig
from qontext.finetune.losses import LOSSES
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.kinds import resolve
from qontext.frame.stages import Stage
from qontext.models.representations import REPRESENTATIONS

CACHE = "cache/passages"
TAS_B = "qontext.baselines.tas_b"
"""The module of `--clusters` and `--batch-teacher`."""


def run(config: FinetuneConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.runs import read_run
    from qontext.finetune.bi_encoder import BiEncoder
    from qontext.finetune.examples import read_examples
    from qontext.models.attention import compute_first_token_alone
    from qontext.training.distributed import join
    from qontext.training.loop import train

    group = join(config.device)
    config = config.settled(work, group.device)
    teacher = read_run(config.teacher) if config.teacher else None
    examples, source = read_examples(config.groups, config.split, config.passages, teacher)
    encoder = config.open_encoder(config.encoder)
    query_encoder = _query_encoder(config)
    representation = open_representation(config, encoder)
    reader = _reader(config, representation, encoder, says=group.is_first)
    loss = config.options("loss")
    batch_teacher = getattr(loss, "batch_teacher", None) and resolve(f"{TAS_B}:BatchTeacher").open(
        loss.batch_teacher, loss.batch_teacher_weight, str(group.device), config.precision
    )
    plan = _plan(config, examples, source, reader, group, work, batch_teacher)
    temperature = config.temperature or representation.temperature
    parts: Any = encoder, representation, temperature, LOSSES.load(config.loss)(loss), query_encoder
    model = batch_teacher.student(*parts) if batch_teacher else BiEncoder(*parts)
    model.to(group.device)
    steps = config.steps_over(len(examples))
    summary: dict[str, Any] = {
        "queries": len(examples),
        "passages": len(examples.number),
        "passages_per_query": plan.per_query,
        "steps": steps,
        **representation.about(),
        "temperature": temperature,
        **examples.left_out(plan.per_query),
    }
    how: dict[str, Any] = {"steps": steps, "phase": "finetune", "cache": config.gradient_cache}
    how["evaluations"] = _evaluations(config, model, reader, group, work, steps) if config.dev else None
    for number, half in enumerate(filter(None, (encoder, query_encoder))):
        config.add_adapters(half.backbone, number)
        if representation.reads_first_token:
            compute_first_token_alone(half.backbone)
        if group.device.type == "cuda":
            half.compile(dynamic=True)
    summary |= train(model, plan, config, group, work, **how)
    if not group.is_first:
        return {}
    _save(config, model, reader, summary, work)
    return summary


def _save(config: FinetuneConfig, model: Any, reader: Any, summary: dict[str, Any], work: Workdir) -> None:
    from qontext.models.folder import QUERY_FOLDER, record_title
    from qontext.models.save import model_card
    from qontext.training import checkpoint, metrics

    model.to("cpu")
    longest = reader.lengths.passage if config.untied else max(reader.lengths)
    with work.write_folder(".") as folder:
        halves = [(model.encoder, folder, longest)]
        if model.query_encoder is not None:
            halves.append((model.query_encoder, folder / QUERY_FOLDER, reader.lengths.query))
        for encoder, place, most in halves:
            place.mkdir(exist_ok=True)
            model.representation.save(encoder, place, reader.lengths, max_length=most)
            config.save_adapter(encoder.backbone, place, config.encoder)
        record_title(folder, reader.titles.rule)
        card = model.representation.card
        how = f" and a teacher's scores ({config.loss})" if config.teacher else ""
        card = card._replace(about=f"{card.about} Fine-tuned on labeled queries{how}.")
        example: dict[str, Any] = {"passage": reader.titles.example(), "untied": config.untied}
        text = model_card(card, config, summary, "encoder", "groups", **example)
        (folder / "README.md").write_text(text, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    work.remove("cache")


def _query_encoder(config: FinetuneConfig) -> Any:
    """The query encoder of an untied pair: that of earlier training, or else a copy of the initial encoder. None if both
    share one."""
    from qontext.models.folder import QUERY_FOLDER, locate

    trained = locate(config.encoder).transformer / QUERY_FOLDER
    is_pair = (trained / "config.json").is_file()
    if config.untied:
        return config.open_encoder(str(trained) if is_pair else config.encoder)
    if is_pair:
        log.warn(
            f"{config.encoder} has a separate encoder for queries, which is ignored: --untied trains both."
        )
    return None


def open_representation(config: FinetuneConfig, encoder: Any) -> Any:
    """The representation to train, from the settings and the encoder's folder."""
    from qontext.models.folder import locate
    from qontext.models.representations.base import Lengths

    if config.representation != "vector" and encoder.predicts != "masked":
        raise QontextError(
            f"the representation {config.representation!r} is not supported for {encoder.config.model_type!r}",
            place=config.encoder,
            remedy="Choose --representation vector, or a masked language model.",
        )
    kind, options = REPRESENTATIONS.load(config.representation), config.options("representation")
    lengths = Lengths(config.query_length, config.passage_length)
    # One of one's own may take no seed.
    seed = {"seed": config.seed} if "seed" in signature(kind.new).parameters else {}
    return kind.new(encoder, locate(config.encoder).layout, options, lengths, **seed)


def _reader(config: FinetuneConfig, representation: Any, encoder: Any, *, says: bool) -> Any:
    """The form in which the model reads texts."""
    from qontext.finetune.batches import Reader
    from qontext.models.representations.base import Lengths

    lengths, prompts = Lengths(config.query_length, config.passage_length), encoder.prompts
    if own := representation.prompts():
        if says and any(prompts[kind] != own.get(kind, "") for kind in prompts if prompts[kind]):
            log.warn(
                f"the prompts of {config.encoder} are ignored: the representation {config.representation!r} has prompts of "
                "its own."
            )
        prompts = own
    else:
        lengths = lengths.with_prompts(encoder)
    check_length("passage_length", lengths.passage, encoder.max_length, config.encoder)
    check_length("query_length", lengths.query, encoder.max_length, config.encoder)
    titles = config.titles(encoder.tokenizer, says=says)
    return Reader(encoder.tokenizer, prompts, lengths, titles, most=encoder.max_length)


def check_length(name: str, value: int, most: int, encoder: str) -> None:
    if value > most:
        raise QontextError(
            f"--{name.replace('_', '-')} {value}: the encoder's limit is {most} tokens", place=encoder
        )


def _evaluations(
    config: FinetuneConfig, model: Any, reader: Any, group: Any, work: Workdir, steps: int
) -> Any:
    """Evaluation of retrieval on the labeled set `dev`, by rank 0."""
    from qontext.training.evaluation import Evaluations, Probe

    prompts = reader.prompts
    probe: Any = group.is_first and Probe(
        str(config.dev),
        config.dev_split,
        reader.tokenizer,
        reader.lengths.passage,
        queries=DEV_QUERIES,
        query_tokens=reader.lengths.query,
        prompts=(prompts.get("query", ""), prompts.get("passage", "")),
        between=reader.titles.between,
    )

    def measure() -> dict[str, float]:
        measured: dict[str, float] = probe.measure(
            model,
            model.vectors,
            group.device,
            lambda ids, mask: model.vectors(ids, mask, are_queries=True),
            model.representation.similarity,
        )
        return measured

    evaluations = Evaluations(measure, model, group, work, config.schedule_of(steps), phase="finetune")
    evaluations.begin()
    return evaluations


def _plan(
    config: FinetuneConfig,
    examples: Any,
    source: str,
    reader: Any,
    group: Any,
    work: Workdir,
    teacher: Any,
) -> Any:
    """The batches of queries and their passages."""
    from qontext.finetune.batches import RetrieverPlan, tokenized
    from qontext.training.randomness import EpochSampler

    places = len(examples), config.batch_size, config.seed, group.rank, group.world
    sampler = EpochSampler(*places)
    if config.clusters:
        of = resolve(f"{TAS_B}:query_clusters")(
            config.encoder, examples.texts, config.clusters, group, work,
            prompt=config.query_prompt, longest=reader.lengths.query, seed=config.seed,
        )  # fmt: skip
        sampler = resolve(f"{TAS_B}:ClusteredSampler")(*places, clusters=of)
    examples.margin_bins = getattr(config.options("loss"), "margin_bins", None)
    texts = tokenized(examples, source, reader, CACHE, group, work)
    examples.attach_passage_keys(texts.passages.key)
    per_query = examples.passages_per_visit(config.passages_per_query)
    budget, grid = config.token_budget(group.device), config.grid(group.device)
    read = teacher and tokenized(examples, source, teacher.reader(), f"{CACHE}-of-teacher", group, work)
    return RetrieverPlan(examples, texts, sampler, per_query, budget, grid, read)


STAGE = Stage(
    verb="finetune",
    format=2,
    config=FinetuneConfig,
    run=run,
    distributed=True,
    examples="""
        qontext finetune groups --passages data --encoder encoder --out retriever
        qontext finetune data --encoder encoder --batch-size 256 --dev data --patience 3 --out retriever
        qontext finetune groups --passages data --encoder encoder --teacher teacher --loss kl --out student
        qontext finetune groups --passages data --encoder encoder --representation sparse --out sparse-retriever
        torchrun --nproc-per-node 8 -m qontext finetune groups --passages data --encoder encoder --out retriever
    """,
)
