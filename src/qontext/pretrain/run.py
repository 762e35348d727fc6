"""`qontext pretrain`: passages and their contexts → an encoder whose [CLS] says what a passage is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qontext import log
from qontext.artifacts import Workdir
from qontext.errors import QontextError
from qontext.pretrain.config import PretrainConfig
from qontext.stages import Stage


def run(config: PretrainConfig, work: Workdir) -> dict[str, Any]:
    from qontext.contexts import Context
    from qontext.engine import checkpoint, metrics
    from qontext.engine.distributed import join
    from qontext.engine.encoder import load_encoder
    from qontext.engine.locate import locate
    from qontext.engine.presets import PRESETS
    from qontext.pretrain.batches import BatchPlan
    from qontext.pretrain.data import choose_anchors, open_sources, remove_cache
    from qontext.pretrain.head import load_head, save_head
    from qontext.pretrain.masking import Vocabulary
    from qontext.pretrain.objectives import method
    from qontext.retrieve.retriever import QUERY_FOLDER

    group = join(config.device)
    if config.batch_size % group.world:
        raise QontextError(
            f"the batch size {config.batch_size} cannot be divided among {group.world} processes"
        )
    encoder = load_encoder(
        config.encoder, tokenizer=config.tokenizer, seed=config.seed, dropout=config.dropout
    )
    if config.max_tokens > encoder.max_length:
        raise QontextError(
            f"max_tokens = {config.max_tokens}, but the encoder reads {encoder.max_length} tokens at most",
            place=config.encoder,
        )
    layout = method(config.method).layout(config)
    sources = open_sources(config, encoder, group, work)
    context = Context(config.context_name(), sources, config.query_share) if layout.needs_context else None
    anchors, documents, told = choose_anchors(config, sources, context)
    epoch = len(anchors) if documents is None else len(documents) - 1
    steps = config.steps_over(epoch)
    phases = [(config.method, steps)]
    if config.method == "cocondenser" and config.condenser_steps:
        phases.insert(0, ("condenser", config.condenser_steps))

    objective: Any = method(phases[0][0])(encoder, config).to(group.device)
    folder = None if config.encoder in PRESETS else locate(config.encoder)
    if folder is not None and (folder / QUERY_FOLDER / "config.json").is_file() and group.is_first:
        log.warn(f"{config.encoder} has an encoder of its own for queries, which is left aside.")
    has_trained_head = folder is not None and load_head(objective, folder)
    needs_head = config.method == "cocondenser" and config.head_weight > 0 and not config.condenser_steps
    if needs_head and not has_trained_head and group.is_first:
        log.warn(
            f"{config.encoder} brings no condenser head, so a new head is trained against a trained encoder. "
            "Start from 'qontext pretrain --method condenser', or give --condenser-steps."
        )
    probe = _probe(config, encoder)
    summary: dict[str, Any] = {"method": config.method, "steps": steps, **told}
    if context is not None:
        summary["context"] = config.context_name()
    for number, (name, phase_steps) in enumerate(phases):
        if number:  # the next objective goes on with the same encoder and head
            before, objective = objective, method(name)(encoder, config).to(group.device)
            objective.head = before.head
        plan = BatchPlan(
            sources,
            method(name).layout(config),
            context,
            Vocabulary.of(encoder.tokenizer),
            anchors,
            documents,
            config.batch_size,
            config.tokens_at_a_time(group.device),
            config.seed + number,
            group.rank,
            group.world,
            config.neighbours,
        )
        summary[name] = _train(objective, plan, phase_steps, config, group, work, name, probe)
    if probe is not None:
        summary["probe after"] = probe.measure(objective, objective.compared, group.device)
    group.wait()
    if not group.is_first:
        return {}
    encoder.to("cpu")
    with work.write_folder(".") as made:
        from qontext.pretrain.card import model_card

        encoder.save(made, max_length=config.max_tokens, pooling=config.vector, similarity=config.similarity)
        save_head(objective, made)
        card = model_card(config, summary, has_head=bool(objective.head_parameters()))
        (made / "README.md").write_text(card, encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")
    remove_cache(work)
    return summary


def _train(
    objective: Any,
    plan: Any,
    steps: int,
    config: PretrainConfig,
    group: Any,
    work: Workdir,
    name: str,
    probe: Any,
) -> dict[str, Any]:
    from qontext.engine.loop import train

    settings = config.loop(steps, group.device, config.gradient_cache)
    if config.compile == "on" or (config.compile == "auto" and group.device.type == "cuda"):
        objective.encoder.compile(dynamic=True)
    on_gpu = group.device.type == "cuda"

    def batch_of(step: int) -> Any:
        from qontext.pretrain.batches import pin

        return pin(plan(step)) if on_gpu else plan(step)

    def after_step(step: int) -> dict[str, Any]:
        if probe is None or not (step == 1 or step % config.probe_every == 0):
            return {}
        found = {"probe": probe.measure(objective, objective.compared, group.device)}
        log.note(
            f"{name}: step {step:,}: probe " + ", ".join(f"{k} {v:.3f}" for k, v in found["probe"].items())
        )
        return found

    every = after_step if group.is_first else None
    return train(objective, batch_of, settings, group, work, phase=name, prepare=prepare, every=every)


def prepare(batch: Any, group: Any) -> tuple[Sequence[Any], Any]:
    """A batch's micro-batches on the device, weighed as this rank's share of the whole, and all ranks' keys."""
    import torch

    from qontext.pretrain.objectives.base import Keys

    micro = [one.to(group.device) for one in batch.micro]
    if group.world > 1:
        weights = torch.tensor(batch.weights).to(group.device, non_blocking=True)
        encoder, decoder = weights / group.sum(weights.clone())
        micro = [one.scaled(encoder, decoder) for one in micro]
    parts = (torch.cat([getattr(one, name) for one in micro]) for name in ("pair", "text", "document"))
    return micro, Keys(*(group.gather(part) for part in parts))


def _probe(config: PretrainConfig, encoder: Any) -> Any:
    if config.probe is None:
        return None
    from qontext.engine.probe import Probe

    return Probe(config.probe, config.probe_split, encoder.tokenizer, config.max_tokens)


STAGE = Stage(
    verb="pretrain",
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
