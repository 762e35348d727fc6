"""A name → a transformers model with an MLM head: from a preset, a directory on disk, or the hub.

Only safetensors are read: pickled weights can run code, and every current model comes with safetensors.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qontext import artifacts, log
from qontext.engine import hub
from qontext.engine.families import Family, family_of
from qontext.engine.presets import PRESETS
from qontext.errors import QontextError, choose

ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flex_attention")


def locate(name: str) -> Path:
    """The directory with config.json and weights that `name` stands for."""
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / artifacts.CLAIM).exists():
            artifacts.open_artifact(path)  # says if it is not finished
        return _transformer_of(path)
    if path.exists():
        raise QontextError("is a file, not an encoder's directory", place=path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise QontextError("no such directory", place=name)
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.75)
    if near:
        raise QontextError(
            f"unknown encoder {name!r}",
            remedy=f"Did you mean {near[0]!r}? Presets: {', '.join(PRESETS)}; else a directory or a hub name.",
        )
    return _transformer_of(hub.snapshot(name))


def _transformer_of(directory: Path) -> Path:
    """Where the transformer lies in a sentence-transformers directory; else the directory itself."""
    if (directory / "config.json").is_file():
        return directory
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        first = json.loads((directory / "modules.json").read_text(encoding="utf-8"))[0]["path"]
        if (directory / first / "config.json").is_file():
            return directory / first
    raise QontextError(
        "holds no encoder: there is no config.json",
        place=directory,
        remedy="Give a directory that transformers or sentence-transformers saved.",
    )


def new_model(config: Any, attention: str, seed: int, dropout: float | None) -> Any:
    """A freshly initialised model."""
    from transformers import AutoModelForMaskedLM

    family = family_of(config, config.model_type)
    _set_dropout(config, family, dropout)
    with seeded(seed), quiet():
        return AutoModelForMaskedLM.from_config(config, attn_implementation=_attention(config, attention))


def read_model(
    directory: Path, attention: str, seed: int, dropout: float | None
) -> tuple[Any, dict[str, Tensor]]:
    """The model in `directory`, in fp32, and its pooler, which nothing uses but which is saved again.

    A model without an MLM head gets a new one, initialised from `seed` and tied to the word embeddings.
    """
    from transformers import AutoModelForMaskedLM

    config = read_config(directory)
    family = family_of(config, str(directory))
    _set_dropout(config, family, dropout)
    if not any(directory.glob("model*.safetensors")):
        pickled = any(directory.glob("*.bin"))
        raise QontextError(
            "has pickled weights only, which are not read because they can run code"
            if pickled
            else "has no weights",
            place=directory,
            remedy="Expected model.safetensors"
            + ("; transformers' save_pretrained writes it." if pickled else "."),
        )
    options = {"config": config, "attn_implementation": _attention(config, attention), "dtype": torch.float32}
    try:
        with seeded(seed), quiet():
            model, found = AutoModelForMaskedLM.from_pretrained(
                str(directory),
                **options,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, ImportError, SafetensorError) as error:
        raise QontextError(f"cannot load the model: {_reason(error)}", place=directory) from None
    prefix = f"{model.base_model_prefix}."
    lost = sorted(key for key in found["missing_keys"] if key.startswith(prefix))
    if lost:
        raise QontextError(
            f"the weights do not belong to this config.json: {len(lost)} are missing, such as {lost[0]}",
            place=directory,
        )
    if found["missing_keys"]:
        log.note(f"{directory} has no MLM head: it gets a new one, tied to its word embeddings.")
        config.tie_word_embeddings = model.config.tie_word_embeddings = True
        model.tie_weights()
    return model, _pooler(directory, prefix, found["unexpected_keys"])


def _pooler(directory: Path, prefix: str, unexpected: set[str]) -> dict[str, Tensor]:
    """The pooler's weights, by the name that they have in the backbone."""
    pooler: dict[str, Tensor] = {}
    for path in (
        sorted(directory.glob("model*.safetensors")) if any("pooler." in key for key in unexpected) else ()
    ):
        with safe_open(path, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 (not a dict)
                name = key.removeprefix(prefix)
                if name.startswith("pooler."):
                    pooler[name] = weights.get_tensor(key).float()
    return pooler


def _attention(config: Any, attention: str) -> str:
    """The implementation asked for, or eager where the architecture has no other (MPNet)."""
    from transformers import AutoModelForMaskedLM

    choose(attention, ATTENTIONS, "attention implementation")
    kind = AutoModelForMaskedLM._model_mapping[type(config)]
    return attention if attention != "sdpa" or kind._supports_sdpa else "eager"


def _set_dropout(config: Any, family: Family, dropout: float | None) -> None:
    if dropout is not None:
        for name in family.dropouts:
            setattr(config, name, dropout)


def read_config(directory: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(directory), trust_remote_code=False)
    except Exception as error:  # ValueError, KeyError, JSON errors: whatever is wrong, it is this file
        raise QontextError(
            f"not a readable configuration: {_reason(error)}", place=directory / "config.json"
        ) from None


def _reason(error: BaseException) -> str:
    """The first line of an error: the rest is meant for programmers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own load report and bars: what matters of them is checked and said here."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` inside; the caller's random state goes on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
