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
    from qontext.contexts import Context
    from qontext.models.tokenizer import Titles
    from qontext.pretrain.batches import BatchPlan
    from qontext.pretrain.data import choose_anchors, open_sources, title_rule
    from qontext.pretrain.masking import Vocabulary
    from qontext.training.distributed import join

    group = join(config.device)
    config = config.settled(work, group.device)
    if config.batch_size % group.world:
        raise QontextError(
            f"the batch size {config.batch_size} cannot be divided among {group.world} processes"
        )
    encoder = config.open_encoder(config.encoder, tokenizer=config.tokenizer)
    title = title_rule(config, says=group.is_first)
    titles = Titles.of(title, encoder.tokenizer, config.encoder)
    method, options, common = _method(config, encoder)
    layout = method.layout(options, common)
    if not layout.needs_context and group.is_first and (config.context or config.queries):
        log.warn(f"the method {config.method} reads no contexts with these settings.")
    sources = open_sources(config, encoder, title, group, work)
    context = Context(config.context_name(), sources) if layout.needs_context else None
    anchors, documents, counts = choose_anchors(
        sources, context, unit=config.anchors, batch_size=config.batch_size
    )
    steps = config.steps_over(len(anchors) if documents is None else len(documents) - 1)
    summary: dict[str, Any] = {"method": config.method, "steps": steps, **counts}
    summary |= {} if context is None else {"context": config.context_name()}
    objective, has_head = None, False
    for number, (name, kind, phase_steps) in enumerate(method.phases(config.method, options, steps)):
        before, objective = objective, kind(encoder, options, common).to(group.device)
        encoder.dense.requires_grad_(objective.contrastive)  # they only serve comparison
        if before is None:
            has_head = _take_head(config, objective, is_first=group.is_first)
        else:  # the next objective continues with the same encoder and head
            objective.head = before.head
        plan = BatchPlan(
            sources=sources,
            layout=kind.layout(options, common),
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
            grid=config.grid(group.device),
        )
        keep = _snapshots(config, encoder, titles, phase_steps, work) if group.is_first else None
        summary[name] = _train(objective, plan, phase_steps, config, group, work, name, keep)
        summary["steps"] = summary[name].pop("steps", steps)
    group.wait()
    if not group.is_first:
        return {}
    _save(config, encoder, titles, objective, summary, work, has_head=has_head)
    return summary


def _method(config: PretrainConfig, encoder: Encoder) -> tuple[Any, Any, Any]:
    """The method, its options, and the settings that every method reads; refused if they do not fit the encoder."""
    from qontext.pretrain.objectives import METHODS

    longest = config.max_tokens + encoder.longest_prompt
    if longest > encoder.max_length:
        raise QontextError(
            f"max_tokens = {config.max_tokens}, but the encoder's limit is {encoder.max_length} tokens",
            place=config.encoder,
        )
    method, options = METHODS.load(config.method), config.options("method")
    method.check_encoder(encoder, options)
    common = replace(config.common(), vector=encoder.pooling(config.vector), max_tokens=longest)
    return method, options, common


def _take_head(config: PretrainConfig, objective: Any, *, is_first: bool) -> bool:
    """Load the head beside the encoder, if any; warn about missing or ignored parts. True if the objective's head was loaded
    or will be trained."""
    from qontext.models.folder import PRESETS, QUERY_FOLDER, locate
    from qontext.pretrain.objectives.base import load_head

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


def _snapshots(
    config: PretrainConfig, encoder: Encoder, titles: Titles, steps: int, work: Workdir
) -> Callable[[int], None]:
    """A function that keeps the encoder after some of the steps of a training."""
    numbers = {round(steps * n / config.snapshots): n for n in range(1, config.snapshots + 1)}

    def keep(step: int) -> None:
        name = f"snapshots/{numbers.get(step)}"
        if step in numbers and not work.has(name):  # there is one after the checkpoint of a resumed run
            with work.write_folder(name) as folder:
                _save_encoder(config, encoder, titles, folder)

    return keep


def _train(
    objective: Any,
    plan: Any,
    steps: int,
    config: PretrainConfig,
    group: Any,
    work: Workdir,
    name: str,
    keep: Callable[[int], None] | None,
) -> dict[str, Any]:
    from qontext.training.loop import train

    # The time limit and the snapshots are for the main phase, which is the last one.
    if name != config.method:
        config, keep = config.model_copy(update={"minutes": None}), None
    # Now that the head has copied the layers that it starts from:
    config.add_adapters(objective.encoder.backbone)
    if group.device.type == "cuda":
        objective.encoder.compile(dynamic=True)
    how: dict[str, Any] = {"cache": config.gradient_cache, "after_step": keep or (lambda step: None)}
    return train(objective, plan, config, group, work, steps=steps, phase=name, **how)


def _save_encoder(config: PretrainConfig, encoder: Encoder, titles: Titles, folder: Any) -> None:
    """Write the encoder, with what it does with titles."""
    from qontext.models.folder import record_title

    record_title(folder, titles.rule)
    longest, pooling = config.max_tokens + encoder.longest_prompt, encoder.pooling(config.vector)
    encoder.save(folder, max_length=longest, pooling=pooling, similarity=config.similarity)


def _save(
    config: PretrainConfig,
    encoder: Encoder,
    titles: Titles,
    objective: Any,
    summary: dict[str, Any],
    work: Workdir,
    *,
    has_head: bool,
) -> None:
    from qontext.models.encoder import load_encoder
    from qontext.models.save import VECTOR_OF, Card, model_card
    from qontext.pretrain.data import CACHE
    from qontext.pretrain.objectives.base import save_head
    from qontext.training import checkpoint, metrics

    encoder.to("cpu")
    if config.initial_share:
        initial = load_encoder(config.encoder, tokenizer=config.tokenizer, seed=config.seed)
        mix(encoder, initial, config.initial_share)
    with work.write_folder(".") as folder:
        _save_encoder(config, encoder, titles, folder)
        config.save_adapter(encoder.backbone, folder, config.encoder)
        if has_head:
            save_head(objective, folder)
        about = (
            f"A text encoder pre-trained for dense retrieval with `{config.method}`. Its vector of a text is "
            f"{VECTOR_OF[encoder.pooling(config.vector)]}, compared by {config.similarity}. It was not fine-tuned on "
            "labeled queries: if you have any, fine-tune it before use."
        )
        card = Card(f"Encoder pre-trained with {config.method}", about, "SentenceTransformer")
        text = model_card(card, config, summary, "encoder", "passages")
        (folder / "README.md").write_text(text, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    work.remove(CACHE)


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
