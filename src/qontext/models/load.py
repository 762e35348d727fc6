"""Loading transformers models: every model of a folder is read by `load`, and code that comes with it is never executed.

Only safetensors are read: pickled weights can run code, and current models come with safetensors.
"""

from __future__ import annotations

import contextlib
import inspect
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
from qontext.models.precision import keep_fp32

ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flex_attention")


def load(
    auto: str,
    folder: Path,
    what: str,
    *,
    place: Path | None = None,
    remedy: str | None = None,
    **settings: Any,
) -> tuple[Any, set[str]]:
    """The model in `folder`, read by one of transformers' auto classes in fp32, and the names of its weights that are
    missing there. `what` names it in messages; `settings` are those of `from_pretrained`.
    """
    import transformers

    kind: Any = getattr(transformers, auto)
    settings = {"use_safetensors": True, "dtype": torch.float32, **settings}
    try:
        with quiet():
            model, report = kind.from_pretrained(
                str(folder),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **settings,
            )
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        message = f"cannot load the {what}: {first_line(error)}"
        raise QontextError(message, place=place or folder, remedy=remedy) from None
    return model, {*report["missing_keys"]}


def require_weights(missing: set[str], folder: Path) -> None:
    """Refuse a model whose weights were missing."""
    if missing:
        raise QontextError(
            f"the weights do not belong to this config.json: {len(missing)} are missing, such as {min(missing)}",
            place=folder,
        )


def load_backbone(folder: Path) -> Any:
    """The backbone in fp32, without a pooler: no vector depends on it, and many folders have no weights for it, so that
    the library would initialize them at random."""
    model, missing = load(
        "AutoModel", folder, "encoder", remedy="Expected config.json and model.safetensors."
    )
    prefix = "encoder." if model.config.is_encoder_decoder else ""
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        model.pooler = None
    require_weights(missing & {prefix + name for name in model.state_dict()}, folder)
    keep_fp32(model)
    return model.eval()


def new_model(config: Any, attention: str, seed: int, dropout: float | None) -> Any:
    """A newly initialized model."""
    auto: Any = _auto_model()
    options = _options(config, attention, dropout, config.model_type)
    with seeded(seed), quiet():
        return auto.from_config(**options)


def load_mlm(
    directory: Path, attention: str, seed: int, dropout: float | None, name: str
) -> tuple[Any, dict[str, Tensor]]:
    """The masked language model in `directory`, in fp32, and its pooler, which is unused but saved again. A model without an
    MLM head gets a new one, initialized from `seed` and tied to the word embeddings. `name` is the model's in messages.
    """
    options = _options(read_config(directory), attention, dropout, str(directory))
    if not any(directory.glob(WEIGHTS)):
        pickled = any(directory.glob("*.bin"))
        raise QontextError(
            "its weights are pickled, which are not read: a pickle can run code"
            if pickled
            else "has no weights",
            place=directory,
            remedy="Expected model.safetensors, as written by transformers' save_pretrained.",
        )
    with seeded(seed):
        model, missing = load("AutoModelForMaskedLM", directory, "model", **options)
    prefix = f"{model.base_model_prefix}."
    require_weights({key for key in missing if key.startswith(prefix)}, directory)
    if missing:
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


def read_config(directory: Path, **settings: Any) -> Any:
    """The configuration of the model in a folder."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False, **settings
        )
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
