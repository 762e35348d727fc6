"""A model folder: what is in it, and how its vectors are computed; read without torch.

| file | says |
|---|---|
| config.json, model.safetensors | the transformer, here or in a folder that modules.json names |
| modules.json | the modules: transformer, pooling, dense layers, normalization |
| config_sentence_transformers.json | prompts, similarity |
| sentence_bert_config.json | maximum length, lower case, messages of a chat template |
| 1_Pooling/config.json | pooling |
| the folder of another module | what its representation saved there |
| query/ | another encoder, for queries |
| qontext.json | what is done with passages' titles |
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from qontext.data.passage import TitleRule
from qontext.frame.artifacts import CLAIM, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged, read_json, require_regular
from qontext.models import hub
from qontext.models.representations import REPRESENTATIONS

TextKind = Literal["query", "passage"]
TITLE_FILE = "qontext.json"
QUERY_FOLDER = "query"
"""The folder of the query encoder of an untied pair, in the retriever's directory."""
PROMPTS: dict[TextKind, tuple[str, ...]] = {"query": ("query",), "passage": ("document", "passage", "corpus")}
"""The names of each kind's prompt in sentence-transformers; the first one that is there counts."""
_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


_OTHER_NAMES = {"MLMTransformer": "Transformer"}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
"""The modules of an encoder of one vector. Any other belongs to a representation."""


class Preset(NamedTuple):
    """An encoder from scratch, of BERT's architecture: layers, hidden size and attention heads. The feed-forward layer is
    four times as wide."""

    layers: int
    hidden: int
    heads: int


PRESETS = {
    "tiny": Preset(2, 128, 2),
    "mini": Preset(4, 256, 4),
    "small": Preset(6, 384, 6),
    "base": Preset(12, 768, 12),
}


class Module(TypedDict):
    """An entry of modules.json."""

    type: str
    path: str


class Prompts(TypedDict, total=False):
    """The fields read from config_sentence_transformers.json."""

    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None


class Modality(TypedDict, total=False):
    """The fields read of an entry of modality_config: with `structured`, a message's content is a list."""

    format: Literal["flat", "structured"]


class TitleRecord(TypedDict, total=False):
    """The fields of qontext.json."""

    title: TitleRule


class Limits(TypedDict, total=False):
    """The fields read from sentence_bert_config.json."""

    max_seq_length: Annotated[int, Field(ge=3)] | None
    do_lower_case: bool | None
    modality_config: dict[str, Modality] | None


class PoolingConfig(TypedDict, total=False):
    """The fields read from a pooling's config.json, besides the flags of older versions."""

    include_prompt: bool
    pooling_mode: str | list[str]


@dataclass(frozen=True)
class ModelFolder:
    """A model folder, as `locate` finds it."""

    root: Path
    """The whole folder."""
    transformer: Path
    """The folder of the transformer: `root`, or one in it."""
    config: dict[str, Any]
    """The settings in config.json, which fit the weights."""

    @cached_property
    def layout(self) -> FolderLayout:
        """The pooling, prompts and limits of its vectors."""
        return read_layout(self.transformer)

    @property
    def title(self) -> TitleRule | None:
        """The rule for the titles of passages; None without a record."""
        return recorded_title(self.transformer)


def locate(name: str) -> ModelFolder:
    """The model folder with this name: a path, or a model on the Hub."""
    path = Path(name).expanduser()
    if (path / CLAIM).exists():
        open_artifact(path)  # says so if it is not finished
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.75)
    if near and not path.exists():
        raise QontextError(
            f"unknown encoder {name!r}",
            remedy=f"Did you mean {near[0]!r}? The presets are: {', '.join(PRESETS)}.",
        )
    root = hub.locate(name, "model", weights=True)
    transformer = _transformer_of(root)
    return ModelFolder(root, transformer, check_model(transformer))


def _transformer_of(directory: Path) -> Path:
    """The transformer's folder in a sentence-transformers directory; else the directory itself."""
    if (directory / "config.json").exists():
        return directory
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        first = json.loads(require_regular(directory / "modules.json").read_text(encoding="utf-8"))[0]["path"]
        is_inside = not Path(first).is_absolute() and ".." not in Path(first).parts
        if is_inside and (directory / first / "config.json").is_file():
            return directory / str(first)
    raise QontextError(
        "contains no encoder: it has no config.json",
        place=directory,
        remedy="Pass a directory saved by transformers or sentence-transformers.",
    )


@dataclass(frozen=True)
class FolderLayout:
    """The settings by which the vectors of a directory are computed."""

    transformer: Path
    pooling: str
    dense: tuple[Path, ...]
    normalize: bool
    prompts: dict[str, str]
    default_prompt: str | None
    lower: bool
    max_length: int | None
    similarity: str
    """dot or cosine."""
    representation: str = "vector"
    """The name of the representation of texts."""
    module: Path | None = None
    """The folder of the module by which the representation is known; None for one vector."""
    title: TitleRule | None = None
    """The rule for the titles of passages; None without a record."""
    is_bare: bool = False
    """True without a list of modules, so that the pooling is but the default."""

    def representation_class(self) -> Any:
        """The class of the representation; one from user code needs the user's word."""
        root = _root(self.transformer)
        return REPRESENTATIONS.load(self.representation, place=root and root / "modules.json")

    def prompted(self, prompts: Mapping[TextKind, str | None]) -> FolderLayout:
        """The layout with other prompts of these kinds: texts, or names of the folder's own; None leaves what there is."""
        named = {PROMPTS[kind][0]: prompt for kind, prompt in self.given(prompts).items()}
        return replace(self, prompts={**self.prompts, **named})

    def given(self, prompts: Mapping[TextKind, str | None]) -> dict[TextKind, str]:
        """The texts of those prompts that are not None."""
        own = self.prompts
        return {kind: own.get(prompt, prompt) for kind, prompt in prompts.items() if prompt is not None}

    def prompt(self, kind: TextKind) -> str:
        """The prompt before each text of this kind."""
        name = next((name for name in PROMPTS[kind] if name in self.prompts), self.default_prompt)
        return self.prompts.get(name, "") if name else ""


def read_layout(directory: Path) -> FolderLayout:
    """The layout of a transformer's directory. Without modules.json, a text's vector is that of [CLS]."""
    root = _root(directory)
    if root is None:
        title = recorded_title(directory)
        return FolderLayout(
            directory, "cls", (), False, {}, None, False, None, "dot", title=title, is_bare=True
        )
    listed = read_json(root / "modules.json", list[Module])
    if any(m["type"].startswith("pylate.") for m in listed):
        raise QontextError(
            "was written by PyLate, whose folders are not read",
            place=root,
            remedy="Load and save it with sentence_transformers.MultiVectorEncoder.",
        )
    for module in listed:
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise damaged(root / "modules.json", f"{module['path']!r} is outside of the model's folder")
    modules = [(_kind(m["type"]), root / m["path"]) for m in listed]
    modules = [(_OTHER_NAMES.get(kind, kind), path) for kind, path in modules]
    if "Transformer" not in dict(modules):
        raise damaged(root / "modules.json", "it names no transformer")
    paths = dict(modules)
    settings = _read(root / "config_sentence_transformers.json", Prompts)
    transformer = _read(directory / "sentence_bert_config.json", Limits)
    prompts = {name: text for name, text in (settings.get("prompts") or {}).items() if text}
    if prompts and message_format(directory):
        raise QontextError(
            "writes its prompts as system messages of the tokenizer's chat template, which is not supported",
            place=directory / "sentence_bert_config.json",
            remedy="To read the texts as they are, remove 'message' from its modality_config.",
        )
    representation, module = _representation(paths, root)
    return FolderLayout(
        transformer=directory,
        pooling=_pooling(paths.get("Pooling")),
        dense=tuple(path for kind, path in modules if kind == "Dense"),
        normalize="Normalize" in paths or settings.get("similarity_fn_name") == "cosine",
        prompts=prompts,
        default_prompt=settings.get("default_prompt_name"),
        lower=bool(transformer.get("do_lower_case")),
        max_length=transformer.get("max_seq_length"),
        similarity=settings.get("similarity_fn_name") or ("cosine" if "Normalize" in paths else "dot"),
        representation=representation,
        module=module,
        title=recorded_title(root),
    )


def recorded_title(folder: Path) -> TitleRule | None:
    """The rule in a model's folder, or in the one above its transformer's; None without a record."""
    for place in (folder, folder.parent):
        if (place / TITLE_FILE).is_file():
            record: TitleRecord = read_json(place / TITLE_FILE, TitleRecord)
            return record.get("title")
        if (place / "modules.json").is_file():
            return None
    return None


def record_title(folder: Path, rule: TitleRule) -> None:
    """Write the rule into a model's folder."""
    (folder / TITLE_FILE).write_text(json.dumps({"title": rule}) + "\n", encoding="utf-8")


def message_format(transformer: Path) -> Literal["flat", "structured"] | None:
    """The format of messages, if texts are read as messages of the tokenizer's chat template."""
    limits: Limits = _read(transformer / "sentence_bert_config.json", Limits)
    message = (limits.get("modality_config") or {}).get("message")
    return None if message is None else message.get("format", "flat")


def _root(transformer: Path) -> Path | None:
    """The folder that lists the modules, if there is one."""
    return next((d for d in (transformer, transformer.parent) if (d / "modules.json").is_file()), None)


def _kind(type: str) -> str:
    """The class of a module; of a representation from user code, its ``module:Class``."""
    package, _, name = type.partition(".")
    return name if package == "qontext" and ":" in name else type.rpartition(".")[2]


def _representation(modules: dict[str, Path], root: Path) -> tuple[str, Path | None]:
    """The representation, and the folder of the module by which it is recognized."""
    others = [kind for kind in modules if kind not in _MODULES]
    if not others:
        return "vector", None
    kinds = REPRESENTATIONS
    names = {kinds.load(name).module: name for name in kinds.own}
    names |= {kind: kinds.name_of(kind) for kind in others if ":" in kind}
    if unknown := [kind for kind in others if kind not in names]:
        raise QontextError(
            f"the encoder has a module of type {unknown[0]}, which is not supported", place=root
        )
    return names[others[0]], modules[others[0]]


def _pooling(path: Path | None) -> str:
    if path is None:
        return "mean"
    config = _read(path / "config.json", PoolingConfig)
    if not config.get("include_prompt", True):
        return "mean without the prompt"
    modes = config.get("pooling_mode") or [name for key, name in _LEGACY_POOLING.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    return " + ".join(modes)


def _read(path: Path, shape: Any) -> Any:
    return read_json(path, shape) if path.exists() else {}


WEIGHTS = "model*.safetensors"


def check_model(directory: Path) -> dict[str, Any]:
    """The validated settings of config.json; checks the other files, too."""
    for file in sorted(directory.iterdir()):
        if file.exists() and not file.is_dir():
            require_regular(file)
    config: dict[str, Any] = read_json(directory / "config.json", dict[str, Any])
    return config
