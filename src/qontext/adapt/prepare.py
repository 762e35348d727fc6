"""From the settings to a complete request: survey, encoder, generator, splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qontext.adapt.config import Request, parse_budget
from qontext.adapt.survey import MOST_UNKNOWN, Survey, fertility, spread, survey
from qontext.data.collection import read_asked
from qontext.data.labels import measured_sizes, read_labels
from qontext.frame.errors import QontextError
from qontext.models.folder import FolderLayout, locate
from qontext.models.reference import MULTILINGUAL
from qontext.models.tokenizer import load_tokenizer
from qontext.queries.generators import GENERATORS
from qontext.retrieve.analyzer import CODE
from qontext.retrieve.ask import outside
from qontext.retrieve.language import natural

if TYPE_CHECKING:
    from qontext.adapt.config import AdaptConfig

STRANGE_FERTILITY = 2.2
LONGEST_READ, LONGEST_TRAINED, PASSAGE_TOKENS = 256, 192, 144
WINDOW, TRAINED_IN_WINDOWS, MOST_WINDOWS = 64, 128, 400_000
"""Tokens of a window; tokens that are trained on if passages have windows; and the number of windows up to which exact
search takes about a tenth of a second."""
LORA_LR = 3e-4
"""Learning rate of adapters."""


def prepare(config: AdaptConfig, source: Survey | None = None) -> tuple[Request, Survey, list[str]]:
    """The request, the survey, unless it was made before, and notes for the plan."""
    import torch

    from qontext.models.precision import resolve_device
    from qontext.models.retriever import Retriever

    folder = locate(encoder := config.encoder[0])
    tokenizer = load_tokenizer(folder.transformer)
    retriever = Retriever(encoder, device="cpu", title=config.title)
    source = source or survey(config.documents, labeled=config.labels is not None, read_as=config.read_as)
    per_word, unknown = fertility(source.sample, tokenizer)
    lengths = sorted(
        len(tokenizer(p.content, verbose=False)["input_ids"]) for p in spread(source.sample, 200)
    )
    read = _read_tokens(lengths, min(LONGEST_READ, retriever.positions - 2), keep=source.keep)
    window = _window(config.index, source, lengths, read)
    trained = min(TRAINED_IN_WINDOWS if window else LONGEST_TRAINED, read)
    splits, labeled, judged, divided = _splits(config.labels, config.max_labels)
    device = resolve_device("auto").type
    request = Request(
        documents=config.documents,
        labels=config.labels,
        splits=splits,
        labeled=labeled,
        max_labels=config.max_labels if labeled else None,
        encoder=encoder,
        generate=_generator(config, device),
        pretrain=_objective(encoder, folder.layout, trained, config.seed) | _reading(config, folder.layout),
        max_tokens=PASSAGE_TOKENS if not source.keep else min(LONGEST_TRAINED, read),
        read_tokens=read,
        budget=parse_budget(config.budget),
        device=device,
        keep=source.keep,
        language=source.language,
        reranker=config.reranker,
        processes=config.processes or (torch.cuda.device_count() if device == "cuda" else 1),
        judged=judged,
        divided=divided,
        window=window,
        question_model=config.question_model,
        untrainable=_untrainable(encoder),
        title=config.title or folder.title,
        read_as=config.read_as,
        also=outside.all_named(config.also),
        questions=config.questions,
        logged=len(read_asked(config.questions)) if config.questions else 0,
        unknown=unknown,
    )
    return request, source, _notes(source, per_word, unknown)


def _reading(config: AdaptConfig, layout: FolderLayout) -> dict[str, Any]:
    """The title rule and the prompts that are not those of the encoder's folder, and the adapters, if there are any."""
    prompts = layout.given({"query": config.query_prompt, "passage": config.passage_prompt})
    title = {"title": config.title} if config.title else {}
    adapters = {"lora_rank": config.lora_rank, "lr": LORA_LR} if config.lora_rank else {}
    return {**title, **{f"{kind}_prompt": prompt for kind, prompt in prompts.items()}, **adapters}


def _untrainable(encoder: str) -> str | None:
    """The reason why the encoder cannot be trained."""
    from qontext.models.encoder import check_trainable

    try:
        check_trainable(encoder)
    except QontextError as error:
        return error.message
    return None


def _objective(encoder: str, layout: Any, max_tokens: int, seed: int) -> dict[str, Any]:
    """coCondenser on (passage, query) pairs, with the encoder's similarity. Training of a retriever continues
    without a new head; a plain masked language model gets the papers' objective, [CLS] and the Condenser head.
    """
    from qontext.models.families import FAMILIES

    family = FAMILIES.get(locate(encoder).config.get("model_type", ""))
    has_head = family is not None and family.has_layers
    settings: dict[str, Any] = {"encoder": encoder, "method": "cocondenser", "max_tokens": max_tokens}
    settings |= {"seed": seed, "dropout": 0.0}
    is_pooled = layout.pooling in ("mean", "lasttoken")
    if not is_pooled and layout.similarity != "cosine" and not layout.normalize and has_head:
        return {**settings, "lr": 1e-4}
    settings |= {"vector": layout.pooling} if is_pooled else {}
    settings |= {"similarity": "cosine", "temperature": 0.05, "lr": 5e-5}
    return {**settings, "head_weight": 0.0, "late_mlm_weight": 0.0}


def _generator(config: AdaptConfig, device: str) -> dict[str, Any]:
    from qontext.queries.generators.t5 import DEFAULT_MODEL

    kind, model, endpoint = config.generator, config.generator_model, config.endpoint
    if kind == "auto":
        kind = "t5" if device == "cuda" and _at_hand(model or DEFAULT_MODEL) else "keyphrase"
    settings: dict[str, Any] = {"generator": kind, "seed": config.seed}
    generator = GENERATORS.load(kind)
    options = generator.Options.model_fields
    if generator.model_option and model:
        settings[generator.model_option] = model
    elif generator.model_option and options[generator.model_option].get_default() is None:
        raise QontextError(
            f"the generator {kind} needs the name of a model", remedy="Give --generator-model."
        )
    return settings | ({"endpoint": endpoint} if endpoint else {})


def _at_hand(model: str) -> bool:
    try:
        locate(model)
    except QontextError:
        return False
    return True


def _splits(source: str | None, max_labels: int | None) -> tuple[tuple[str, ...], int, dict[str, int], bool]:
    """The splits to evaluate (dev first, to choose weights on), the number of labeled queries to train on, the number of
    labeled queries by split, and whether they have to be divided."""
    if source is None:
        return ("generated",), 0, {}, False
    labels = read_labels(source)
    count = {name: len(qrels) for name, qrels in labels.splits.items()}
    if labels.are_split:
        dev = ("dev",) if "dev" in count and "test" in count else ()
        if "test" not in count:  # as `holdout` does
            last = "dev" if "dev" in count else next(name for name in count if name != "train")
            count["test"] = count.pop(last)
    else:
        (everything,) = count.values()
        test, dev_size = measured_sizes(everything, source)
        count, dev = {"train": everything - test - dev_size, "dev": dev_size, "test": test}, ("dev",)
    trained = count.get("train", 0)
    trained = min(trained, max_labels or trained)
    return (*dev, "test", "generated"), trained, count, not labels.are_split


def _read_tokens(lengths: list[int], positions: int, *, keep: bool) -> int:
    """The number of tokens that are read of a passage: of nearly all passages, all."""
    longest = lengths[int(0.98 * (len(lengths) - 1))] if lengths else 0
    if longest > 256:
        return positions
    return min(positions, max(64, longest) if keep else 256)


def _window(index: str | None, source: Survey, lengths: list[int], read: int) -> int | None:
    """Tokens of the windows that get vectors of their own; None for one vector for each passage: for an index, where most
    passages are hardly longer than a window, and where there would be too many windows for exact search."""
    if index not in (None, "exact") or not lengths or lengths[len(lengths) // 2] < 1.25 * WINDOW:
        return None
    windows = source.passages(PASSAGE_TOKENS) * sum(lengths) / len(lengths) / (0.75 * WINDOW)
    return min(WINDOW, read) if windows <= MOST_WINDOWS else None


def _notes(source: Survey, per_word: float, unknown: float) -> list[str]:
    """The oddities of the documents."""
    notes = []
    # Names in source code have many tokens in any vocabulary.
    has_many = per_word > STRANGE_FERTILITY and source.language != CODE
    if has_many or unknown > MOST_UNKNOWN:
        notes.append(
            f"the encoder's tokenizer does not fit this language ({source.language_name}): {per_word:.1f} tokens per word, "
            f"{unknown:.0%} unknown. A multilingual encoder is better: --encoder {MULTILINGUAL.name}."
        )
    elif natural(source.language) != "en":
        notes.append(
            f"the documents seem to be in {source.language_name}; an encoder trained on that language is better."
        )
    if source.duplicates > 0.05:
        notes.append(f"{source.duplicates:.0%} of the documents repeat another one, word for word.")
    if source.unusable:
        notes.append(source.left_out)
    return notes
