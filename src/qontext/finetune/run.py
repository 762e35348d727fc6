"""`qontext finetune`: labeled queries with hard negatives, or a teacher's scores of them → a retriever."""

from __future__ import annotations

from inspect import signature
from typing import Any

from qontext.finetune.config import FinetuneConfig
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
    check_length("passage_length", reader.lengths.passage, encoder.max_length, config.encoder)
    check_length("query_length", reader.lengths.query, encoder.max_length, config.encoder)
    batch_teacher = _batch_teacher(config, str(group.device))
    plan = _plan(config, examples, source, reader, group, work, batch_teacher)
    steps = config.steps_over(len(examples))
    temperature = config.temperature or representation.temperature
    parts: Any = encoder, representation, temperature, config.make_loss(), query_encoder
    model = batch_teacher.student(*parts) if batch_teacher else BiEncoder(*parts)
    model.to(group.device)
    summary: dict[str, Any] = {
        "queries": len(examples),
        "passages": len(examples.number),
        "passages_per_query": plan.per_query,
        "steps": steps,
        **representation.about(),
        "temperature": temperature,
        **examples.left_out(plan.per_query),
    }
    evaluations = _evaluations(config, model, reader, group, work, steps) if config.dev else None
    for number, half in enumerate(filter(None, (encoder, query_encoder))):
        config.add_adapters(half.backbone, number)
        if representation.reads_first_token:
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
        _save(config, model, reader, summary, work)
    return summary if group.is_first else {}


def _save(config: FinetuneConfig, model: Any, reader: Any, summary: dict[str, Any], work: Workdir) -> None:
    from qontext.finetune.card import retriever_card
    from qontext.models.folder import QUERY_FOLDER, record_title
    from qontext.training import checkpoint, metrics

    model.to("cpu")
    titles = reader.titles
    longest = reader.lengths.passage if config.untied else max(reader.lengths)
    with work.write_folder(".") as folder:
        model.representation.save(model.encoder, folder, reader.lengths, max_length=longest)
        config.save_adapter(model.encoder.backbone, folder, config.encoder)
        if model.query_encoder is not None:
            (folder / QUERY_FOLDER).mkdir()
            halves = model.query_encoder, folder / QUERY_FOLDER
            model.representation.save(*halves, reader.lengths, max_length=reader.lengths.query)
            config.save_adapter(model.query_encoder.backbone, folder / QUERY_FOLDER, config.encoder)
        record_title(folder, titles.rule)
        card = retriever_card(config, summary, model.representation, titles)
        (folder / "README.md").write_text(card, encoding="utf-8")
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
        start = str(trained) if is_pair else config.encoder
        return config.open_encoder(start)
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
    layout = locate(config.encoder).layout
    kind, options = REPRESENTATIONS.load(config.representation), config.options("representation")
    lengths = Lengths(config.query_length, config.passage_length)
    # One of one's own may take no seed.
    seed = {"seed": config.seed} if "seed" in signature(kind.new).parameters else {}
    return kind.new(encoder, layout, options, lengths, **seed)


def _reader(config: FinetuneConfig, representation: Any, encoder: Any, *, says: bool) -> Any:
    """The form in which the model reads texts."""
    from qontext.finetune.batches import Reader
    from qontext.models.representations.base import Lengths

    lengths = Lengths(config.query_length, config.passage_length)
    titles, most = config.titles(encoder.tokenizer, says=says), encoder.max_length
    if own := representation.prompts():
        check_own_prompts(config, own, encoder.prompts, says=says)
        return Reader(encoder.tokenizer, own, lengths, titles, most=most)
    return Reader(encoder.tokenizer, encoder.prompts, lengths.with_prompts(encoder), titles, most=most)


def check_own_prompts(config: FinetuneConfig, own: Any, prompts: Any, *, says: bool) -> None:
    """Refuse the prompts of the settings, and warn of those of the folder, if the representation has `own` ones."""
    for kind, setting in (("query", config.query_prompt), ("passage", config.passage_prompt)):
        if prompts[kind] == own.get(kind, ""):
            continue
        if setting:
            raise QontextError(
                f"--{kind}-prompt is not read: the representation {config.representation!r} has prompts of its own",
                remedy=f"Remove --{kind}-prompt.",
            )
        if says and prompts[kind]:
            log.warn(
                f"{config.encoder} has the prompt {prompts[kind]!r}, which is ignored: "
                f"the representation {config.representation!r} has prompts of its own."
            )


def check_length(name: str, value: int, most: int, encoder: str) -> None:
    if value > most:
        raise QontextError(
            f"--{name.replace('_', '-')} {value}: the encoder's limit is {most} tokens", place=encoder
        )


def _evaluations(
    config: FinetuneConfig, model: Any, reader: Any, group: Any, work: Workdir, steps: int
) -> Any:
    """Evaluation of retrieval on the labeled set `dev`."""
    from qontext.training.evaluation import Evaluations, Probe

    settings: dict[str, Any] = {"queries": config.dev_queries, "query_tokens": reader.lengths.query}
    prompts = reader.prompts
    settings |= {
        "prompts": (prompts.get("query", ""), prompts.get("passage", "")),
        "between": reader.titles.between,
    }
    source = str(config.dev), config.dev_split, reader.tokenizer, reader.lengths.passage
    probe = group.is_first and Probe(*source, **settings)

    def measure() -> dict[str, float]:
        assert probe, "only rank 0 evaluates"
        return probe.measure(
            model,
            model.vectors,
            group.device,
            lambda ids, mask: model.vectors(ids, mask, are_queries=True),
            model.representation.similarity,
        )

    schedule = config.evaluation_schedule(steps)
    evaluations = Evaluations(measure, model, group, work, schedule, phase="finetune")
    evaluations.begin()
    return evaluations


def _batch_teacher(config: FinetuneConfig, device: str) -> Any:
    """The second teacher, if the settings name one."""
    loss = config.options("loss")
    name = getattr(loss, "batch_teacher", None)
    if name is None:
        return None
    return resolve(f"{TAS_B}:BatchTeacher").open(name, loss.batch_teacher_weight, device, config.precision)


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
    from qontext.finetune.losses.base import Distillation
    from qontext.training.randomness import EpochSampler

    places = len(examples), config.batch_size, config.seed, group.rank, group.world
    sampler = EpochSampler(*places)
    if config.clusters:
        of = resolve(f"{TAS_B}:query_clusters")(
            config.encoder, examples.texts, config.clusters, group, work,
            prompt=config.query_prompt, longest=reader.lengths.query, seed=config.seed,
        )  # fmt: skip
        sampler = resolve(f"{TAS_B}:ClusteredSampler")(*places, clusters=of)
    loss = config.options("loss")
    examples.margin_bins = loss.margin_bins if isinstance(loss, Distillation) else None
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
