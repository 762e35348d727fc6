"""The settings of `qontext adapt`, nearly all of them optional, and the request that they become, with everything that is
derived from the documents and the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from qontext.adapt.vector_index import CHOICES, Choice
from qontext.corpus.sources import ReadAs, fingerprint, reads_below
from qontext.data.passage import TitleRule
from qontext.frame.artifacts import is_artifact
from qontext.frame.config import Action, Asks, Input, Machine, Seed, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import content_hash, json_digest
from qontext.frame.parts import RunsOn
from qontext.retrieve.analyzer import LANGUAGES
from qontext.retrieve.ask import outside
from qontext.workflow.recipe import as_path

PROMPTS = ("query_prompt", "passage_prompt")
NAMED = "sources:"
"""As the documents: those of --source."""
FEWEST_JUDGED = 5
"""Judged questions below which a variance means nothing."""


def _fingerprint_of_labels(source: str) -> str | None:
    """A hash of the questions and judgments in a folder, whose corpus may be the documents; None for others."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or is_artifact(folder):
        return None
    files = [*folder.glob("queries.jsonl*"), *folder.glob("qrels/*.tsv*")]
    hashes = {file.relative_to(folder).as_posix(): content_hash(file) for file in files if file.is_file()}
    return json_digest(hashes) if hashes else None


class AdaptConfig(StageConfig):
    kinds: ClassVar = {"index": CHOICES}

    documents: Annotated[str, Input(positional=True, fingerprint=fingerprint, reads_below=reads_below)] = (
        NAMED
    )
    """Documents: a file or folder of records (.jsonl, .tsv, .parquet) or of documents (text, Markdown, HTML, PDF, DOCX,
    EPUB, notebooks, mail, source code), a BEIR folder, hf:NAME, or pydocs: for the documentation of the
    installed Python packages. Default: those of --source."""

    source: Annotated[tuple[str, ...], Action()] = ()
    """NAME=PATH: instead of DOCUMENTS, documents with a name, for filters and answers. May be repeated; 'qontext refresh'
    adds, replaces and removes sources later."""

    about: Annotated[tuple[str, ...], Action()] = ()
    """A sentence about a source, as NAME=SENTENCE, for people and agents who choose where to search."""

    read_as: ReadAs = ()
    """ENDING=FORMAT: read files with this extension as text, markdown, html, csv, code or another format of documents. May
    be repeated."""

    out: str = "runs/adapted"
    """Output directory."""

    labels: Annotated[str | None, Input(fingerprint=_fingerprint_of_labels)] = None
    """Labeled questions: a folder in BEIR's layout, or lines of {"query": "…", "passage": "id"}."""

    max_labels: int | None = Field(None, ge=1)
    """Maximum number of labeled questions to train on."""

    encoder: Annotated[tuple[str, ...], Input(or_one=True)] = ()
    """Initial encoder: a folder or a Hub name, also as NAME@REVISION. Repeat the option to have several measured first: the
    best is adapted. Default: that of --out, else a small one for the language of the documents from the Hub, else
    all-MiniLM-L6-v2 from its package."""

    title: TitleRule | None = None
    """The title of a passage, in training and search: prepend it to the text, put it before the tokenizer's separator and
    the text (sep), or leave it out. BM25 reads titles unless they are left out. Default: as the encoder was trained, else
    prepend."""

    query_prompt: str | None = None
    """Text before each query, in training and search, such as "query: ", or the name of one of the encoder's prompts.
    Default: as the encoder's folder says, else nothing."""

    passage_prompt: str | None = None
    """Text before each passage. Default: as the encoder's folder says, else nothing."""

    reranker: Annotated[str | None, Input()] = None
    """Cross-encoder: a folder or a Hub name. Its scores replace labels, or refine them (margin-MSE), and it is the last
    stage of a system: it reads the best passages of a question."""

    also: Annotated[tuple[str, ...], Asks(outside.also_demands)] = ()
    """NAME=COMMAND: a search that you have, to measure it beside these: a command that reads questions as JSON lines,
    {"id": …, "text": …}, and writes a TREC run of ids of passages or documents. May be repeated."""

    questions: Annotated[str | None, Input()] = None
    """Real questions without labels, such as a search log: lines of a .txt or .log file, or as for `search --queries`.
    Generated queries imitate them, training uses half of them with the passages that are found first, and --judge asks
    about the others."""

    budget: str = "30m"
    """Approximate time budget, such as 90s, 10m or 2h; a number alone is in minutes."""

    generator: str = "auto"
    """Generator of the training queries: a generator of 'qontext generate', or module:Class. Auto: t5 with a
    GPU if the model is available locally, else keyphrase."""

    generator_model: str | None = None
    """Model of the generator: for t5 a folder or a Hub name, for llm the name of the chat model at the endpoint."""

    endpoint: str | None = None
    """llm: base URL of the server, such as http://127.0.0.1:8000/v1."""

    question_model: Annotated[str | None, Input()] = None
    """Local language model that writes the evaluation questions, preferably one fine-tuned with 'qontext
    train-generator': a folder or a Hub name. Default: one of the generated queries of each held-out
    passage, which favor BM25."""

    passages: int | None = Field(None, ge=10)
    """pydocs: approximate number of passages to read. Default: limited by the budget."""

    lora_rank: int = Field(0, ge=0, le=4096)
    """Train low-rank adapters (LoRA) of this rank instead of all weights, in a fraction of the memory; 0: all weights."""

    processes: Annotated[int | None, Machine()] = Field(None, ge=1, le=1024)
    """Number of processes for training, encoding and search, one per GPU. Default: the number of GPUs."""

    index: Annotated[str | None, Machine()] = None
    """The index that searches the vectors. Default: the previous one, else exact search. Its recall is measured."""

    on: RunsOn = "local"
    """Runner of tokenizing, encoding and generating queries: local, ray, HOST:PORT or ray://HOST:PORT; see
    'qontext encode'."""

    copy_model: Annotated[bool, Action()] = False
    """Copy the encoder to --out even if it was not changed, so that --out can be moved to another machine."""

    judge: Annotated[int | None, Action()] = Field(None, ge=FEWEST_JUDGED, le=10_000)
    """Number of questions to judge yourself once everything is measured, on a page that this command serves; the verdict is
    then that of the judgments."""

    retrain: Annotated[bool, Action()] = False
    """Train again, even if only the documents changed."""

    yes: Annotated[bool, Action()] = False
    """Start without asking, even if the plan takes longer than the budget."""

    dry_run: Annotated[bool, Action()] = False
    """Only survey the documents and show the plan."""

    seed: Seed = 42
    """Random seed."""

    @field_validator("encoder", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return () if value is None else (value,) if isinstance(value, str) else value

    @field_validator(
        "documents", "labels", "encoder", "reranker", "questions", "question_model", "generator_model"
    )
    @classmethod
    def _no_references(cls, value: Any) -> Any:
        """In recipes, names of inputs are not taken as references."""
        return tuple(map(as_path, value)) if isinstance(value, tuple) else value and as_path(value)

    @property
    def start(self) -> str | None:
        """The initial encoder, once there is only one."""
        return self.encoder[0] if self.encoder else None

    def identity(self) -> dict[str, Any]:
        """Without the index: it can be another one without another training."""
        options = CHOICES.options(self.index).model_fields if self.index is not None else {}
        return {name: value for name, value in super().identity().items() if name not in options}

    @model_validator(mode="after")
    def _has_documents(self) -> Self:
        if (self.documents != NAMED) == bool(self.source):
            raise QontextError(
                "adapt needs documents: those of its argument or of --source",
                remedy="Name one of both: 'qontext adapt DOCUMENTS' or 'qontext adapt --source NAME=PATH'.",
            )
        outside.all_named(self.also)
        Choice.of(self)
        parse_budget(self.budget)
        return self


@dataclass(frozen=True)
class Request:
    """The documents and the encoder to adapt, and their settings. `splits` are evaluated, `labeled` is the number of labeled
    questions to train on. `judged` has the number of labeled questions by split; they are `divided` if the
    labels have no splits of their own. `generate` and `pretrain` are the settings of these stages that do not
    depend on the plan.
    """

    documents: str
    labels: str | None
    splits: tuple[str, ...]
    labeled: int
    encoder: str
    generate: dict[str, Any]
    pretrain: dict[str, Any]
    max_tokens: int
    read_tokens: int
    budget: float
    device: str
    keep: bool
    language: str
    max_labels: int | None = None
    reranker: str | None = None
    processes: int = 1
    judged: dict[str, int] = field(default_factory=dict)
    divided: bool = False
    window: int | None = None
    """Maximum tokens of a window, if passages have a vector for each of their windows."""
    title: TitleRule | None = None
    """The rule for titles; None: the one with which the initial encoder was trained."""
    question_model: str | None = None
    """The generator of the questions to measure with, if it is not that of the training queries."""
    untrainable: str | None = None
    """The reason why the encoder cannot be trained and is measured as it is."""
    read_as: tuple[str, ...] = ()
    """ENDING=FORMAT pairs: how files are read whose extension says something else."""
    questions: str | None = None
    """Real questions without labels."""
    logged: int = 0
    """Their number."""
    also: dict[str, str] = field(default_factory=dict)
    """Name → outside system to measure beside ours."""
    tokenizer: str | None = None
    """The tokenizer that counts the tokens of passages; None: the encoder's."""
    unknown: float = 0.0
    """Share of the passages' tokens that the encoder's vocabulary does not have."""

    def without_training_on_labels(self) -> Request:
        """Labels that are not trained on all measure, unless they have splits of their own."""
        if not self.divided:
            return self
        everything = {"test": sum(self.judged.values())}
        splits = tuple(split for split in self.splits if split != "dev")
        return replace(self, splits=splits, labeled=0, max_labels=None, judged=everything, divided=False)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that are not those of the initial encoder's folder."""
        return {name: self.pretrain[name] for name in PROMPTS if name in self.pretrain}

    @property
    def words(self) -> dict[str, Any]:
        """The settings of BM25."""
        return {"analyzer": self.analyzer, **({"title": "leave"} if self.title == "leave" else {})}

    @property
    def analyzer(self) -> str | None:
        """BM25's analyzer for the language, None for the default."""
        return LANGUAGES.get(self.language)


def parse_budget(text: str) -> float:
    """'30m', '2h', '90s' or minutes → seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "m")
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        seconds = 0
    if not 10 <= seconds < float("inf"):
        raise QontextError(
            f"the budget {text!r} is not a length of time", remedy="Use a value such as 90s, 30m or 2h."
        )
    return seconds
