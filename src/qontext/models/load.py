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
from qontext.frame.files import read_json
from qontext.models.families import Family, family_of, find_family
from qontext.models.folder import PRESETS, WEIGHTS
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
    missing there, or have other shapes. `what` names it in messages; `settings` are those of `from_pretrained`.
    """
    kind = transformers_class(auto)
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
    return model, {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}


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
    auto = find_family(read_config(folder)).auto
    model, missing = load(
        auto if auto == "AutoModelForTextEncoding" else "AutoModel",
        folder,
        "encoder",
        remedy="Expected config.json and model.safetensors.",
    )
    model, prefix = _encoder_half(model)
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        model.pooler = None
    require_weights(missing & {prefix + name for name in model.state_dict()}, folder)
    keep_fp32(model)
    return model.eval()


def _encoder_half(model: Any) -> tuple[Any, str]:
    """The encoder of a model with a decoder, and its prefix; any other model as it is."""
    if not model.config.is_encoder_decoder or not hasattr(model, "decoder"):
        return model, ""
    return model.get_encoder(), "encoder."


POSITIONS = 512


def preset_config(name: str, tokenizer: Any) -> Any:
    """BERT's configuration of a preset. Heads have 64 dimensions, which fused attention kernels like best."""
    from transformers import BertConfig

    layers, hidden, heads = PRESETS[name]
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
    )


def new_model(config: Any, attention: str, seed: int, dropout: float | None) -> Any:
    """A newly initialized masked language model."""
    options = _options(config, family_of(config, config.model_type), attention, dropout)
    auto: Any = transformers_class("AutoModelForMaskedLM")
    with seeded(seed), quiet():
        return auto.from_config(**options)


def load_model(
    directory: Path, attention: str, seed: int, dropout: float | None, name: str
) -> tuple[Any, dict[str, Tensor]]:
    """The model in `directory`, in fp32, with the head of its family, and its pooler, which is unused but saved again. A
    model without the head gets a new one, initialized from `seed` and tied to the word embeddings. `name` is the model's
    in messages.
    """
    config = read_config(directory)
    family = family_of(config, str(directory))
    options = _options(config, family, attention, dropout)
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
        model, missing = load(family.auto, directory, "model", **options)
    if family.predicts(config) == "nothing" and family.auto != "AutoModelForCausalLM":
        model, prefix = _encoder_half(model)
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        require_weights(missing & {prefix + name for name in model.state_dict()}, directory)
        return model, {}
    prefix = f"{model.base_model_prefix}."
    require_weights({key for key in missing if key.startswith(prefix)}, directory)
    if missing:
        head = "MLM head" if family.auto == "AutoModelForMaskedLM" else "language-model head"
        log.note(f"{name} has no {head}; a new one is initialized, tied to the word embeddings.")
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


def _options(config: Any, family: Family, attention: str, dropout: float | None) -> dict[str, Any]:
    """Model constructor arguments. Architectures without fused attention (MPNet) fall back to the eager one."""
    if dropout is not None:
        for name in family.dropouts:
            if hasattr(config, name):
                setattr(config, name, dropout)
    choose(attention, ATTENTIONS, "attention implementation")
    kind: Any = transformers_class(family.auto)._model_mapping[type(config)]
    fused = attention != "sdpa" or kind._supports_sdpa
    return {
        "config": config,
        "attn_implementation": attention if fused else "eager",
        "dtype": torch.float32,
    }


def transformers_class(name: str) -> Any:
    """A class of transformers."""
    import transformers

    return getattr(transformers, name)


def read_config(directory: Path, **settings: Any) -> Any:
    """The configuration of the model in a folder. A model that needs code from its folder is refused."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    place = directory / "config.json"
    about = read_json(place, dict[str, Any])
    kind = about.get("model_type")
    is_known = isinstance(kind, str) and kind in CONFIG_MAPPING_NAMES
    if about.get("auto_map") and not (is_known and _are_known(about.get("architectures") or ())):
        raise QontextError(
            f"the architecture {str(kind)[:40]!r} needs code from its folder, which is never executed",
            place=place,
            remedy="Choose a model that transformers runs itself; many are also published in such a form.",
        )
    try:
        return AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False, **settings
        )
    except Exception as error:  # ValueError, KeyError, a JSON error: whatever it is, this file is wrong
        raise_if_out_of_memory(error)
        raise QontextError(f"not a readable configuration: {first_line(error)}", place=place) from None


def _are_known(architectures: Any) -> bool:
    """True if transformers has these classes: a model with code of its own may name a model type that is known."""
    import transformers

    return all(isinstance(name, str) and hasattr(transformers, name) for name in architectures)


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
