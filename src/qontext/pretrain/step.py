"""A pre-training method in a loop of one's own: texts and their contexts in, the loss of a batch out.

Tokens, pairs, masks and draws are those of `qontext pretrain`. So is the loss in fp32 without dropout, up to the order of
sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from qontext.contexts.base import Sources
    from qontext.models.encoder import Encoder
    from qontext.pretrain.objectives.base import Objective
    from qontext.training.batch import Batch

MICRO_TOKENS = 8_192


def load_method(
    method: str | type[Objective],
    encoder: Encoder,
    *,
    has_queries: bool = False,
    vector: Literal["cls", "mean", "lasttoken"] = "cls",
    similarity: Literal["dot", "cosine"] = "dot",
    seed: int = 42,
    **options: Any,
) -> Objective:
    """A pre-training method as a module: the encoder, and the head that is trained beside it.

    Args:
        method: A name, as for `qontext pretrain --method`, or a class of your own.
        encoder: From `load_encoder`.
        has_queries: True if contexts are queries, which have their own prompt and are not encoded unless the loss is
            contrastive.
        vector: The vector of a text: the last layer's [CLS], the mean over its tokens, or the last token, which decoders
            have instead of [CLS].
        similarity: Similarity in the contrastive loss.
        seed: Seed of the head's initial weights and of masks.
        options: The method's options, such as `encoder_mask`.

    Examples:
        >>> encoder = load_encoder("encoder")
        >>> method = load_method("cot-mae", encoder, decoder_layers=1)
        >>> sum(parameter.numel() for parameter in method.parameters()) > 0
        True
    """
    from qontext.frame import trust
    from qontext.pretrain.objectives import METHODS
    from qontext.pretrain.objectives.base import Common

    trust.give(method)  # a name in a Python call is the user's own word
    kind = METHODS.load(method) if isinstance(method, str) else method
    values = kind.Options.make(options, where="pretrain")
    kind.check_encoder(encoder, values)
    common = Common(seed, encoder.pooling(vector), similarity, has_queries)
    objective: Objective = kind(encoder, values, common).train()
    return objective


def training_step(
    method: str | type[Objective] | Objective,
    encoder: Encoder,
    texts: Sequence[str],
    contexts: Sequence[str] | None = None,
    *,
    step: int = 0,
    max_tokens: int | None = None,
    progress: float = 0.0,
) -> Tensor:
    """The loss of one batch, ready for `backward()`.

    Args:
        method: From `load_method`. A name is accepted, too, if nothing but the encoder is trained (`mlm`, `bow`).
        encoder: The encoder of the method.
        texts: The batch's texts.
        contexts: The context of each text: a related passage, or a query. None for methods that read none.
        step: The number of the step, by which masks are drawn.
        max_tokens: Maximum length of a text in tokens, including special tokens; longer ones are cropped at random.
            Default: 144, or what the encoder reads if that is less.
        progress: Share of the training that is done, for losses whose weight changes during it (`bow`).

    Examples:
        >>> import torch
        >>> encoder = load_encoder("encoder")
        >>> method = load_method("cot-mae", encoder)
        >>> import torch
        >>> optimizer = torch.optim.AdamW(method.parameters(), lr=1e-4)
        >>> loss = training_step(method, encoder, ["The mill grinds."], ["The baker bakes."])
        >>> loss.backward()
        >>> optimizer.step()
    """
    import torch

    from qontext.pretrain.data import check_max_tokens
    from qontext.training.batch import check
    from qontext.training.dropout import drawn_for

    objective = _objective(method, encoder)
    if max_tokens is None:
        max_tokens = min(144, encoder.max_length - encoder.longest_prompt)
    check_max_tokens(max_tokens, encoder)
    device = next(encoder.parameters()).device
    batch = _batch(objective, texts, contexts, step, max_tokens)
    objective.batch_rows, objective.progress = batch.rows, progress
    outputs = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for rows in batch.micro:
            with drawn_for(rows.row_keys):
                outputs.append(check(objective(rows.to(device)), objective))
    losses = [loss for output in outputs for loss in output.losses.values()]
    if objective.contrastive:
        vectors_MH = torch.cat([output.vectors for output in outputs if output.vectors is not None]).float()
        assert batch.keys is not None
        losses += objective.contrast(vectors_MH, batch.keys.to(device), slice(None)).values()
    return torch.stack(losses).sum()


def _objective(method: str | type[Objective] | Objective, encoder: Encoder) -> Objective:
    from qontext.frame.errors import QontextError
    from qontext.pretrain.objectives.base import Objective

    if isinstance(method, Objective):
        if method.encoder is not encoder:
            raise QontextError("the method was loaded for another encoder", remedy="Pass method.encoder.")
        return method
    objective = load_method(method, encoder)
    if objective.head_parameters():
        raise QontextError(
            f"the method {method!r} trains a head beside the encoder, which has to stay from step to step",
            remedy=f"Load it once: method = load_method({method!r}, encoder).",
        )
    return objective


def _batch(
    objective: Objective, texts: Sequence[str], contexts: Sequence[str] | None, step: int, max_tokens: int
) -> Batch:
    """The batch of all texts, each with its context, as the training would cut and mask it. A context that is a passage is
    the other one of the text's document."""

    from qontext.contexts import Context
    from qontext.frame.errors import QontextError
    from qontext.pretrain.batches import BatchPlan
    from qontext.pretrain.masking import Vocabulary

    layout = objective.layout(objective.options, objective.common)
    name = type(objective).__name__
    if layout.needs_context and contexts is None:
        raise QontextError(f"{name} reads a context of each text", remedy="Pass contexts.")
    if contexts is not None and not layout.needs_context:
        raise QontextError(f"{name} reads no contexts with these options", remedy="Pass none.")
    has_queries = objective.common.has_queries
    sources = _sources(texts, contexts, objective.encoder.tokenizer, max_tokens, has_queries=has_queries)
    plan = BatchPlan(
        sources=sources,
        layout=layout,
        context=None if contexts is None else Context("query" if has_queries else "rand", sources),
        words=Vocabulary.of(objective.encoder.tokenizer, objective.encoder.prompts),
        anchors=sources.passages.groups[:-1],
        documents=None,
        batch_size=len(texts),
        micro_tokens=MICRO_TOKENS,
        seed=objective.common.seed,
        predicts=objective.encoder.predicts,
    )
    return plan(step)


def _sources(
    texts: Sequence[str],
    contexts: Sequence[str] | None,
    tokenizer: Any,
    max_tokens: int,
    *,
    has_queries: bool,
) -> Sources:
    """Token stores of the texts, and of the contexts as the one query of each, or else as the second passage of each text's
    document."""
    import numpy as np
    import pyarrow as pa

    from qontext.contexts.base import Sources
    from qontext.corpus.store import TokenStore, tokenize
    from qontext.frame.errors import QontextError
    from qontext.models.tokenizer import frame_of

    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()

    def store(**columns: Sequence[str]) -> TokenStore:
        for what, rows in columns.items():
            if isinstance(rows, str) or not len(rows):
                raise QontextError(f"{what} is not a list of texts with at least one entry")
        names = [f"{what}[{number}]" for number in range(len(texts)) for what in columns]
        arrays = tokenize([(text, [0]) for group in zip(*columns.values()) for text in group], backend)
        lengths = arrays.pop("lengths")
        if not lengths.all():
            raise QontextError(f"{names[lengths.argmin()]} has no token")
        places = np.arange(0, len(names) + 1, len(columns))
        return TokenStore(**arrays, offsets=np.cumsum([0, *lengths]), groups=places, names=pa.array(names))

    limit = max_tokens - len(frame_of(tokenizer))
    if contexts is None:
        return Sources(store(texts=texts), limit)
    if len(contexts) != len(texts):
        raise QontextError(f"there are {len(texts):,} texts, but {len(contexts):,} contexts")
    if not has_queries:
        return Sources(store(texts=texts, contexts=contexts), limit)
    return Sources(store(texts=texts), limit, store(contexts=contexts), np.arange(len(texts)))
