"""`qontext pretrain`: passages and their contexts → an encoder whose [CLS] represents a passage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage
from qontext.pretrain.config import PretrainConfig

if TYPE_CHECKING:
    from qontext.models.encoder import Encoder
    from qontext.models.tokenizer import Titles


def run(config: PretrainConfig, work: Workdir) -> dict[str, Any]:
    from qontext.pretrain.data import remove_cache

    summary = _pretrain(config, work)
    if summary:
        remove_cache(work)
    return summary


def _pretrain(config: PretrainConfig, work: Workdir) -> dict[str, Any]:
    from qontext.contexts import Context, reads_queries
    from qontext.models.tokenizer import Titles
    from qontext.pretrain.data import choose_anchors, open_sources, title_rule
    from qontext.training.distributed import join

    group = join(config.device)
    config = config.settled(work, group.device)
    if config.batch_size % group.world:
        raise QontextError(
            f"the batch size {config.batch_size} cannot be divided among {group.world} processes"
        )
    encoder = _encoder(config)
    title = title_rule(config.title, config.passages, config.encoder, says=group.is_first)
    titles = Titles.of(title, encoder.tokenizer, config.encoder)
    objective_class, options, common = _method(config, encoder)
    layout = objective_class.layout(options, common)
    if not layout.needs_context and group.is_first and (config.context or config.queries):
        log.warn(f"the method {config.method} reads no contexts with these settings.")
    sources = open_sources(
        config.passages,
        config.queries if reads_queries(config.context_name()) else None,
        encoder,
        group,
        work,
        title=title,
        max_tokens=config.max_tokens,
        candidates=config.candidates,
        is_weighted=config.sampling == "score",
        workers=config.workers,
    )
    context = Context(config.context_name(), sources, config.query_share) if layout.needs_context else None
    anchors, documents, counts = choose_anchors(
        sources, context, unit=config.anchors, run=config.neighbors, batch_size=config.batch_size
    )
    steps = config.steps_over(len(anchors) if documents is None else len(documents) - 1)
    summary: dict[str, Any] = {"method": config.method, "steps": steps, **counts}
    summary |= {} if context is None else {"context": config.context_name()}
    objective: Any = None
    phases = list(objective_class.phases(config.method, options, steps))
    for number, (name, kind, phase_steps) in enumerate(phases):
        before, objective = objective, kind(encoder, options, common).to(group.device)
        encoder.dense.requires_grad_(objective.contrastive)  # they only serve comparison
        if before is None:
            has_head = _take_head(config, objective, is_first=group.is_first)
        else:  # the next objective continues with the same encoder and head
            objective.head = before.head
        layout = kind.layout(options, common)
        plan = _plan(config, number, layout, encoder, sources, context, anchors, documents, group)
        keep = _snapshots(
            config, encoder, titles, phase_steps, group, work, is_last=number == len(phases) - 1
        )
        summary[name] = _train(objective, plan, phase_steps, config, titles, group, work, name, keep)
        summary["steps"] = summary[name].pop("steps", steps)
    group.wait()
    if group.is_first:
        _save(config, encoder, titles, objective, summary, work, has_head=has_head)
    return summary if group.is_first else {}


def _method(config: PretrainConfig, encoder: Encoder) -> tuple[Any, Any, Any]:
    """The method, its options, and the settings that every method reads; refused if it does not fit the encoder."""
    from qontext.pretrain.objectives import METHODS
    from qontext.pretrain.objectives.contrast import Contrast

    kind, options = METHODS.load(config.method), config.options("method")
    kind.check_encoder(encoder, options)
    if isinstance(options, Contrast) and options.token_weight and len(encoder.dense):
        raise QontextError(
            "a loss between tokens is not for an encoder with dense layers", place=config.encoder
        )
    longest = config.max_tokens + encoder.longest_prompt
    common = replace(config.common(), vector=encoder.pooling(config.vector), max_tokens=longest)
    return kind, options, common


def _encoder(config: PretrainConfig) -> Encoder:
    from qontext.pretrain.data import check_max_tokens

    encoder = config.open_encoder(config.encoder, tokenizer=config.tokenizer)
    check_max_tokens(config.max_tokens, encoder, config.encoder)
    encoder.freeze(config.frozen_layers)
    return encoder


def _take_head(config: PretrainConfig, objective: Any, *, is_first: bool) -> bool:
    """Load the head beside the encoder, if any; warn about missing or ignored parts. True if the objective's head was loaded
    or will be trained."""
    from qontext.models.folder import PRESETS, QUERY_FOLDER, locate
    from qontext.pretrain.folder import load_head

    is_trained = getattr(objective.options, "head_weight", 1) > 0
    if config.encoder in PRESETS:
        return is_trained
    folder = locate(config.encoder).transformer
    if (folder / QUERY_FOLDER / "config.json").is_file() and is_first:
        log.warn(f"{config.encoder} has a separate encoder for queries, which is ignored.")
    is_loaded = load_head(objective, folder)
    warning = None if is_loaded else objective.missing_head()
    if warning and is_first:
        log.warn(f"{config.encoder} {warning}")
    return is_loaded or is_trained


def _plan(
    config: PretrainConfig,
    number: int,
    layout: Any,
    encoder: Any,
    sources: Any,
    context: Any,
    anchors: Any,
    documents: Any,
    group: Any,
) -> Any:
    """The batches of a phase."""
    from qontext.pretrain.batches import BatchPlan
    from qontext.pretrain.masking import Vocabulary

    return BatchPlan(
        sources=sources,
        layout=layout,
        context=context,
        words=Vocabulary.of(encoder.tokenizer, encoder.prompts),
        predicts=encoder.predicts,
        anchors=anchors,
        documents=documents,
        batch_size=config.batch_size,
        micro_tokens=config.token_budget(group.device),
        seed=config.seed + number,
        rank=group.rank,
        world=group.world,
        neighbors=config.neighbors,
        grid=config.grid(group.device),
    )


def _snapshots(
    config: PretrainConfig,
    encoder: Any,
    titles: Titles,
    steps: int,
    group: Any,
    work: Workdir,
    *,
    is_last: bool,
) -> Callable[[int], None]:
    """A function that keeps the encoder after some of the steps of the last phase."""
    from qontext.pretrain.folder import save_encoder

    if not config.snapshots or not is_last:
        return lambda step: None
    if config.snapshots > steps:  # on all ranks, so that none waits for another
        raise QontextError(f"snapshots = {config.snapshots}, but the training has {steps} steps")
    if not group.is_first:
        return lambda step: None
    numbers = {round(steps * n / config.snapshots): n for n in range(1, config.snapshots + 1)}

    def keep(step: int) -> None:
        name = f"snapshots/{numbers.get(step)}"
        if step in numbers and not work.has(name):  # there is one after the checkpoint of a resumed run
            with work.write_folder(name) as folder:
                save_encoder(config, encoder, titles, folder)

    return keep


def _train(
    objective: Any,
    plan: Any,
    steps: int,
    config: PretrainConfig,
    titles: Titles,
    group: Any,
    work: Workdir,
    name: str,
    keep: Callable[[int], None],
) -> dict[str, Any]:
    from qontext.training.loop import train

    if name != config.method:  # the time limit is for the main phase, which is the last one
        config = config.model_copy(update={"minutes": None})
    config.add_adapters(
        objective.encoder.backbone
    )  # now that the head has copied the layers that it starts from
    if config.compile == "on" or (config.compile == "auto" and group.device.type == "cuda"):
        objective.encoder.compile(dynamic=True)
    evaluations = _evaluations(objective, steps, config, titles, group, work, name) if config.probe else None
    return train(
        objective,
        plan,
        config,
        group,
        work,
        steps=steps,
        phase=name,
        cache=config.gradient_cache,
        evaluations=evaluations,
        after_step=keep,
    )


def _evaluations(
    objective: Any,
    steps: int,
    config: PretrainConfig,
    titles: Titles,
    group: Any,
    work: Workdir,
    phase: str,
) -> Any:
    """Evaluation of retrieval without fine-tuning on the labeled set `probe`."""
    from qontext.models.tokenizer import prompt_length
    from qontext.training.evaluation import QUERY_TOKENS, Evaluations, Probe, Schedule

    tokenizer, prompts = objective.encoder.tokenizer, objective.encoder.prompts
    probe = group.is_first and Probe(
        str(config.probe),
        config.probe_split,
        tokenizer,
        config.max_tokens + prompt_length(tokenizer, prompts["passage"]),
        query_tokens=QUERY_TOKENS + prompt_length(tokenizer, prompts["query"]),
        between=titles.between,
        prompts=(prompts["query"], prompts["passage"]),
    )

    def measure() -> dict[str, float]:
        assert probe, "only rank 0 evaluates"
        return probe.measure(objective, objective.compared, group.device)

    schedule = Schedule(config.probe_every, config.keep, config.patience)
    return Evaluations(measure, objective, group, work, schedule, phase=phase)


def _save(
    config: PretrainConfig,
    encoder: Any,
    titles: Titles,
    objective: Any,
    summary: dict[str, Any],
    work: Workdir,
    *,
    has_head: bool,
) -> None:
    from qontext.models.encoder import load_encoder
    from qontext.pretrain.folder import model_card, save_encoder, save_head
    from qontext.training import checkpoint, metrics

    encoder.to("cpu")
    if config.initial_share:
        initial = load_encoder(config.encoder, tokenizer=config.tokenizer, seed=config.seed)
        mix(encoder, initial, config.initial_share)
    with work.write_folder(".") as folder:
        save_encoder(config, encoder, titles, folder)
        config.save_adapter(encoder.backbone, folder, config.encoder)
        if has_head:
            save_head(objective, folder)
        pooling, has_head = encoder.pooling(config.vector), has_head and bool(objective.head_parameters())
        card = model_card(config, summary, pooling, has_head=has_head)
        (folder / "README.md").write_text(card, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")


def mix(encoder: Encoder, initial: Encoder, share: float) -> None:
    """θ = (1 - share) · θ_trained + share · θ_initial, of the backbone and the dense layers."""
    for own, other in ((encoder.backbone, initial.backbone), (encoder.dense, initial.dense)):
        before = dict(other.named_parameters())
        for name, parameter in own.named_parameters():
            parameter.data.lerp_(before[name].data, share)


STAGE = Stage(
    verb="pretrain",
    format=4,
    config=PretrainConfig,
    run=run,
    distributed=True,
    examples="""
        qontext pretrain passages --method cocondenser --queries queries --encoder bert-base-uncased --out encoder
        qontext pretrain passages --method condenser --encoder mini --tokenizer tokenizer --steps 2000 --out condenser
        qontext pretrain passages --method cot-mae --context near+olap+rand --encoder bert-base-uncased --out encoder
        torchrun --nproc-per-node 8 -m qontext pretrain passages --queries queries --batch-size 2048 --out encoder
    """,
)
