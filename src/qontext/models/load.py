"""A transformers model with its MLM head, from a directory or newly initialized.

Only safetensors are read: pickled weights can run code, and current models come with safetensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from qontext.frame import log
from qontext.frame.errors import QontextError, choose, first_line, raise_if_out_of_memory
from qontext.models.families import family_of
from qontext.models.folder import WEIGHTS

ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flex_attention")


def new_model(config: Any, attention: str, seed: int, dropout: float | None) -> Any:
    """A newly initialized model."""
    auto: Any = _auto_model()
    options = _options(config, attention, dropout, config.model_type)
    with seeded(seed), quiet():
        return auto.from_config(**options)


def read_model(
    directory: Path, attention: str, seed: int, dropout: float | None, name: str
) -> tuple[Any, dict[str, Tensor]]:
    """The model in `directory`, in fp32, and its pooler, which is unused but saved again. A model without an
    MLM head gets a new one, initialized from `seed` and tied to the word embeddings. `name` is the model's in messages.
    """
    auto: Any = _auto_model()
    options = _options(_read_config(directory), attention, dropout, str(directory))
    if not any(directory.glob(WEIGHTS)):
        pickled = any(directory.glob("*.bin"))
        raise QontextError(
            "its weights are pickled, which are not read: a pickle can run code"
            if pickled
            else "has no weights",
            place=directory,
            remedy="Expected model.safetensors, as written by transformers' save_pretrained.",
        )
    try:
        with seeded(seed), quiet():
            model, report = auto.from_pretrained(
                str(directory), **options, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(f"cannot load the model: {first_line(error)}", place=directory) from None
    prefix = f"{model.base_model_prefix}."
    missing = sorted(key for key in report["missing_keys"] if key.startswith(prefix))
    if missing:
        raise QontextError(
            f"the weights do not belong to this config.json: {len(missing)} are missing, such as {missing[0]}",
            place=directory,
        )
    if report["missing_keys"]:
        log.note(f"{name} has no MLM head; a new one is initialized, tied to the word embeddings.")
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model, _pooler(directory, prefix)


def _pooler(directory: Path, prefix: str) -> dict[str, Tensor]:
    """The pooler's weights, by their names in the backbone."""
    pooler: dict[str, Tensor] = {}
    for path in sorted(directory.glob(WEIGHTS)):
        with safe_open(path, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 (this is not a dict)
                name = key.removeprefix(prefix)
                if name.startswith("pooler."):
                    pooler[name] = weights.get_tensor(key).float()
    return pooler


def _options(config: Any, attention: str, dropout: float | None, place: str) -> dict[str, Any]:
    """Model constructor arguments. Architectures without fused attention (MPNet) fall back to the eager one."""
    family = family_of(config, place)
    if dropout is not None:
        for name in family.dropouts:
            setattr(config, name, dropout)
    choose(attention, ATTENTIONS, "attention implementation")
    kind: Any = _auto_model()._model_mapping[type(config)]
    fused = attention != "sdpa" or kind._supports_sdpa
    return {
        "config": config,
        "attn_implementation": attention if fused else "eager",
        "dtype": torch.float32,
    }


def _auto_model() -> Any:
    from transformers import AutoModelForMaskedLM

    return AutoModelForMaskedLM


def _read_config(directory: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(directory), trust_remote_code=False)
    except Exception as error:  # ValueError, KeyError, a JSON error: whatever it is, this file is wrong
        raise_if_out_of_memory(error)
        place = directory / "config.json"
        raise QontextError(f"not a readable configuration: {first_line(error)}", place=place) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress transformers' load report and progress bars: missing weights are checked here."""
    from transformers.utils import logging

    library: Any = logging
    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use `seed` inside this context; the caller's random state is not affected."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
