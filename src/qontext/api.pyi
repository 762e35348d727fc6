"""Every verb as a typed Python function. Generated from the configurations by `python -m qontext.frame.stubs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from qontext.frame.artifacts import Artifact
from qontext.retrieve.base import Answer

def split(
    source: str | Path | Artifact,
    *,
    out: str | Path,
    keep: bool = False,
    max_tokens: int = 144,
    short_span_probability: float = 0.0,
    tokenizer: str | Path | Artifact = 'words',
    sentences: Literal['sentencex', 'punkt', 'newline'] = 'sentencex',
    language: str = 'en',
    title: Literal['column', 'text'] = 'column',
    on_error: Literal['stop', 'skip'] = 'stop',
    id_field: str = '_id|id|docid|doc_id',
    title_field: str = 'title',
    text_field: str = 'text|contents|body',
    paragraphs_field: str = 'paragraphs',
    doc_field: str = 'doc_id',
    encoding: str = 'utf-8',
    seed: int = 42,
    workers: int = 0,
    overwrite: bool = False,
) -> Artifact:
    """Split documents into passages."""

def docset(
    source: str | Path | Artifact = 'pydocs:',
    *,
    out: str | Path,
    passages: int | None = None,
    queries: int = 500,
    seed: int = 42,
    overwrite: bool = False,
) -> Artifact:
    """Build a labelled set from the documentation on this machine."""

def train_tokenizer(
    passages: str | Path | Artifact,
    *,
    out: str | Path,
    vocabulary: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
    overwrite: bool = False,
) -> Artifact:
    """Train a WordPiece tokenizer on passages."""

def tokens(
    texts: str | Path | Artifact,
    *,
    out: str | Path,
    tokenizer: str | Path | Artifact,
    on: str = 'local',
    shard: str | None = None,
    title: Literal['leave', 'prepend'] = 'leave',
    workers: int = 0,
    overwrite: bool = False,
) -> Artifact:
    """Tokenize passages into memory-mapped arrays."""

def generate(
    passages: str | Path | Artifact,
    *,
    out: str | Path,
    on: str = 'local',
    shard: str | None = None,
    generator: Literal['t5', 'causal', 'llm', 'keyphrase', 'title', 'lead', 'span', 'file'] | str = 't5',
    per_passage: int = 5,
    seed: int = 42,
    part_passages: int | None = None,
    temperature: float = 1.0,
    top_p: float = 0.95,
    max_new_tokens: int = 64,
    max_passage_tokens: int = 384,
    model: str | Path | Artifact | None = ...,
    prefix: str | None = None,
    top_k: int = 25,
    engine: Literal['transformers', 'ctranslate2'] = 'transformers',
    precision: Literal['auto', 'fp32', 'bf16', 'fp16', 'int8'] | Literal['auto', 'fp32', 'bf16', 'fp16'] = 'auto',
    batch_tokens: int = 8192,
    device: str = 'auto',
    query_kind: Literal['question', 'keywords', 'claim', 'title'] | None = None,
    examples: int = 3,
    chat_model: str | None = None,
    template: Literal['question', 'keywords', 'claim'] = 'question',
    language: str = '',
    style: str = '',
    chat_options: str = '{}',
    endpoint: str = 'http://127.0.0.1:8000/v1',
    key_variable: str = 'OPENAI_API_KEY',
    concurrency: int = 16,
    timeout: float = 120.0,
    retries: int = 6,
    price_in: float = 0.0,
    price_out: float = 0.0,
    shortest: int = 4,
    longest: int = 16,
    queries: str | Path | Artifact | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Generate queries for every passage."""

def train_generator(
    data: Sequence[str | Path | Artifact],
    *,
    out: str | Path,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int = 32,
    lr: float = 0.001,
    warmup: float = 0.05,
    schedule: Literal['linear', 'cosine', 'constant'] = 'linear',
    weight_decay: float = 0.01,
    clip: float = 1.0,
    dropout: float | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    seed: int = 42,
    micro_tokens: int = 0,
    device: str = 'auto',
    checkpoint_minutes: float = 15.0,
    log_every: int = 20,
    track: Literal['none', 'tensorboard', 'trackio'] = 'none',
    model: str | Path | Artifact | None = None,
    preset: Literal['tiny', 'mini', 'small'] = 'mini',
    vocabulary: int = 8000,
    train_split: str = 'train',
    dev_split: str = 'dev',
    dev_pairs: int = 1000,
    prefix: str = '',
    with_title: bool = True,
    max_passage_tokens: int = 192,
    max_query_tokens: int = 48,
    label_smoothing: float = 0.0,
    dev_every: int = 500,
    patience: int | None = 3,
    keep: Literal['best', 'last'] = 'best',
    overwrite: bool = False,
) -> Artifact:
    """Train a model that generates queries."""

def filter(
    queries: str | Path | Artifact,
    *,
    out: str | Path,
    passages: str | Path | Artifact,
    on: str = 'local',
    shard: str | None = None,
    by: Literal['overlap', 'retrieval', 'reranker', 'mutual'] | str = 'retrieval',
    keep_at_least: int = 1,
    at_least: float = ...,
    at_most: float = 1.0,
    retriever: str | Path | Artifact | None = None,
    top: int = 10,
    depth: int = 100,
    device: str = 'auto',
    reranker: str | Path | Artifact | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Score queries and drop those that miss their passage."""

def relevance(
    queries: str | Path | Artifact,
    *,
    out: str | Path,
    passages: str | Path | Artifact,
    documents: int = 1000,
    retriever: str | Path | Artifact | None = None,
    reranker: str | Path | Artifact | None = None,
    top: int = 10,
    overlap: float = 0.5,
    rerank: float = 0.5,
    seed: int = 42,
    device: str = 'auto',
    overwrite: bool = False,
) -> Artifact:
    """Estimate how often queries match their passage."""

def expand(
    queries: str | Path | Artifact,
    *,
    out: str | Path,
    passages: str | Path | Artifact,
    on: str = 'local',
    shard: str | None = None,
    at_most: int | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Append queries to passages, for BM25."""

def holdout(
    passages: str | Path | Artifact,
    queries: str | Path | Artifact | None = None,
    *,
    out: str | Path,
    labels: str | Path | Artifact | None = None,
    share: float = 0.1,
    questions: int = 500,
    pool: int = 100000,
    max_labels: int | None = None,
    least_labels: int = 0,
    seed: int = 42,
    overwrite: bool = False,
) -> Artifact:
    """Hold out queries of some documents for evaluation."""

def pretrain(
    passages: str | Path | Artifact,
    *,
    out: str | Path,
    steps: int | None = None,
    epochs: float = 1.0,
    batch_size: int = 256,
    lr: float = 0.0001,
    warmup: float = 0.1,
    schedule: Literal['linear', 'cosine', 'constant'] = 'linear',
    weight_decay: float = 0.01,
    clip: float = 1.0,
    dropout: float | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    seed: int = 42,
    micro_tokens: int = 0,
    device: str = 'auto',
    checkpoint_minutes: float = 15.0,
    log_every: int = 20,
    track: Literal['none', 'tensorboard', 'trackio'] = 'none',
    method: Literal['mlm', 'condenser', 'cocondenser', 'cot-mae', 'retromae'] | str = 'cocondenser',
    context: str | None = None,
    queries: str | Path | Artifact | None = None,
    encoder: str | Path | Artifact = 'bert-base-uncased',
    tokenizer: str | Path | Artifact | None = None,
    max_tokens: int = 144,
    vector: Literal['cls', 'mean'] = 'cls',
    similarity: Literal['dot', 'cosine'] = 'dot',
    query_share: float = 0.5,
    candidates: int | None = None,
    sampling: Literal['uniform', 'score'] = 'uniform',
    anchors: Literal['passages', 'documents'] = 'passages',
    neighbours: int = 1,
    gradient_cache: Literal['auto', 'on', 'off'] = 'auto',
    snapshots: int = 0,
    probe: str | Path | Artifact | None = None,
    probe_every: int = 500,
    probe_split: str = 'dev',
    patience: int | None = None,
    keep: Literal['best', 'last'] = 'last',
    compile: Literal['auto', 'on', 'off'] = 'auto',
    workers: int = 0,
    encoder_mask: float = ...,
    late_mlm_weight: float = 1.0,
    head_weight: float = 1.0,
    decoder_layers: int | None = None,
    decoder_init: str = 'random',
    early_layer_number: int | None = None,
    contrastive_weight: float = 1.0,
    temperature: float = 1.0,
    mask_same_document: bool = False,
    condenser_steps: int = 0,
    decoder_mask: float = ...,
    decoder: Literal['mlm', 'autoregressive'] = 'mlm',
    window: int = 3,
    directions: Literal['auto', 'both', 'forward'] = 'auto',
    overwrite: bool = False,
) -> Artifact:
    """Pre-train an encoder on passages and their contexts."""

def mine(
    run: str | Path | Artifact,
    qrels: str | Path | Artifact,
    *,
    out: str | Path,
    also: Sequence[str | Path | Artifact] = (),
    split: str = 'train',
    data: str | Path | Artifact | None = None,
    queries: str | Path | Artifact | None = None,
    passages: str | Path | Artifact | None = None,
    depth: int = 200,
    skip: int = 0,
    per_query: int = 30,
    sample: Literal['random', 'top'] = 'random',
    margin: float | None = None,
    max_score: float | None = None,
    scores: str | Path | Artifact | None = None,
    answers: str | Path | Artifact | None = None,
    random: int = 0,
    in_document: int = 0,
    min_grade: int = 1,
    limit: int | None = None,
    seed: int = 42,
    overwrite: bool = False,
) -> Artifact:
    """Mine hard negatives from runs and judgements."""

def finetune(
    groups: str | Path | Artifact,
    *,
    out: str | Path,
    steps: int | None = None,
    epochs: float = 3.0,
    batch_size: int = 64,
    lr: float = 2e-05,
    warmup: float = 0.1,
    schedule: Literal['linear', 'cosine', 'constant'] = 'linear',
    weight_decay: float = 0.01,
    clip: float = 1.0,
    dropout: float | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    seed: int = 42,
    micro_tokens: int = 0,
    device: str = 'auto',
    checkpoint_minutes: float = 15.0,
    log_every: int = 20,
    track: Literal['none', 'tensorboard', 'trackio'] = 'none',
    passages: str | Path | Artifact | None = None,
    split: str = 'train',
    encoder: str | Path | Artifact = 'bert-base-uncased',
    dev: str | Path | Artifact | None = None,
    dev_split: str = 'dev',
    dev_queries: int = 500,
    dev_every: int | None = None,
    patience: int | None = None,
    keep: Literal['best', 'last'] = 'best',
    passages_per_query: int = 16,
    query_length: int = 32,
    passage_length: int = 144,
    untied: bool = False,
    pooling: Literal['auto', 'cls', 'mean'] = 'auto',
    similarity: Literal['auto', 'dot', 'cosine'] = 'auto',
    temperature: float | None = None,
    teacher: str | Path | Artifact | None = None,
    distill: Literal['kl', 'margin-mse'] = 'kl',
    gradient_cache: Literal['auto', 'on', 'off'] = 'auto',
    compile: Literal['auto', 'on', 'off'] = 'auto',
    overwrite: bool = False,
) -> Artifact:
    """Fine-tune a retriever on labelled queries."""

def train_reranker(
    groups: str | Path | Artifact,
    *,
    out: str | Path,
    steps: int | None = None,
    epochs: float = 3.0,
    batch_size: int = 64,
    lr: float = 3e-05,
    warmup: float = 0.1,
    schedule: Literal['linear', 'cosine', 'constant'] = 'linear',
    weight_decay: float = 0.01,
    clip: float = 1.0,
    dropout: float | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    seed: int = 42,
    micro_tokens: int = 0,
    device: str = 'auto',
    checkpoint_minutes: float = 15.0,
    log_every: int = 20,
    track: Literal['none', 'tensorboard', 'trackio'] = 'none',
    passages: str | Path | Artifact | None = None,
    split: str = 'train',
    encoder: str | Path | Artifact = 'bert-base-uncased',
    dev: str | Path | Artifact | None = None,
    dev_split: str = 'dev',
    dev_queries: int = 500,
    dev_every: int | None = None,
    patience: int | None = None,
    keep: Literal['best', 'last'] = 'best',
    candidates: int = 8,
    max_length: int = 192,
    overwrite: bool = False,
) -> Artifact:
    """Train a cross-encoder for reranking."""

def encode(
    texts: str | Path | Artifact,
    *,
    out: str | Path,
    encoder: str | Path | Artifact,
    on: str = 'local',
    shard: str | None = None,
    kind: Literal['passage', 'query'] = 'passage',
    max_length: int | None = None,
    pooling: Literal['cls', 'mean', 'max', 'lasttoken'] | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    storage: Literal['fp16', 'fp32'] = 'fp32',
    device: str = 'auto',
    reuse: str | None = None,
    batch_tokens: int | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Encode passages into vectors."""

def index(
    source: str | Path | Artifact,
    *,
    out: str | Path,
    backend: Literal['bm25', 'faiss-hnsw', 'faiss-ivfpq', 'milvus', 'postgres'] | str,
    k1: float = 0.9,
    b: float = 0.4,
    analyzer: str = 'english',
    neighbours: int = ...,
    effort: int = 200,
    lists: int | None = None,
    probes: int = 32,
    code_bytes: int = 64,
    with_text: bool = False,
    texts: str | Path | Artifact | None = None,
    replace: str | None = None,
    uri: str | None = ...,
    collection: str = 'qontext',
    kind: str | Literal['hnsw', 'ivfflat', 'exact'] = ...,
    table: str = 'qontext',
    halfvec: bool = False,
    build_memory: int = 512,
    overwrite: bool = False,
) -> Artifact:
    """Build an index: faiss, Milvus, PostgreSQL or BM25."""

def export(
    source: str | Path | Artifact,
    *,
    out: str | Path,
    to: Literal['parquet'] = 'parquet',
    passages: str | Path | Artifact | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Export vectors with their passages."""

@overload
def search(
    index: str | Path | Artifact | None = None,
    question: str | None = None,
    *,
    out: str | Path,
    k1: float = 0.9,
    b: float = 0.4,
    analyzer: str = 'english',
    where: Sequence[str] = (),
    data: str | Path | Artifact | None = None,
    split: str | None = None,
    queries: str | Path | Artifact | None = None,
    limit: int | None = None,
    seed: int = 42,
    passages: str | Path | Artifact | None = None,
    encoder: str | Path | Artifact | None = None,
    untied: bool = False,
    bm25: bool = False,
    k: int = 1000,
    max_length: int | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    scoring: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: str = 'auto',
    overwrite: bool = False,
) -> Artifact:
    """Search vectors, an index, or passages (BM25)."""

@overload
def search(
    index: str | Path | Artifact | None = None,
    question: str | None = None,
    *,
    out: None = None,
    k1: float = 0.9,
    b: float = 0.4,
    analyzer: str = 'english',
    where: Sequence[str] = (),
    data: str | Path | Artifact | None = None,
    split: str | None = None,
    queries: str | Path | Artifact | None = None,
    limit: int | None = None,
    seed: int = 42,
    passages: str | Path | Artifact | None = None,
    encoder: str | Path | Artifact | None = None,
    untied: bool = False,
    bm25: bool = False,
    k: int = 1000,
    max_length: int | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    scoring: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: str = 'auto',
    overwrite: bool = False,
) -> list[Answer]:
    """Search vectors, an index, or passages (BM25)."""

def fuse(
    runs: Sequence[str | Path | Artifact],
    *,
    out: str | Path,
    method: Literal['rrf', 'minmax', 'zscore'] = 'rrf',
    weights: Sequence[float] = (),
    tune: str | Path | Artifact | None = None,
    weights_from: str | Path | Artifact | None = None,
    measure: str = 'nDCG@10',
    steps: int = 10,
    rank_constant: float = 60,
    k: int = 1000,
    overwrite: bool = False,
) -> Artifact:
    """Fuse several runs into one."""

def rerank(
    run: str | Path | Artifact,
    *,
    out: str | Path,
    reranker: Sequence[str | Path | Artifact],
    on: str = 'local',
    shard: str | None = None,
    data: str | Path | Artifact | None = None,
    queries: str | Path | Artifact | None = None,
    passages: str | Path | Artifact | None = None,
    k: int = 100,
    keep_rest: bool = False,
    max_length: int | None = None,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    device: str = 'auto',
    batch_tokens: int | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Rerank the top of a run with a cross-encoder."""

def evaluate(
    run: str | Path | Artifact,
    qrels: str | Path | Artifact,
    *,
    out: str | Path | None = None,
    split: str = 'test',
    measures: str = '',
    relevant: int | None = None,
    passages: str | Path | Artifact | None = None,
    patterns: bool = False,
    next_run: str | Path | Artifact | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Score a run against judgements."""

def compare(
    runs: Sequence[str | Path | Artifact],
    *,
    qrels: str | Path | Artifact,
    split: str = 'test',
    measures: str = '',
    relevant: int | None = None,
    data: str | Path | Artifact | None = None,
    examples: int = 5,
    permutations: int = 10000,
    seed: int = 42,
) -> dict[str, Any]:
    """Compare systems: differences and their significance."""

def beir(
    retriever: str | Path | Artifact,
    *,
    out: str | Path,
    sets: Sequence[str] = ('trec-covid', 'nfcorpus', 'nq', 'hotpotqa', 'fiqa', 'arguana', 'webis-touche2020', 'cqadupstack', 'quora', 'dbpedia-entity', 'scidocs', 'fever', 'climate-fever', 'scifact'),
    data_root: str | None = None,
    split: str = 'test',
    k: int = 1000,
    max_length: int | None = None,
    storage: Literal['fp16', 'fp32'] = 'fp16',
    device: str = 'auto',
) -> dict[str, Any]:
    """Evaluate a retriever on the BEIR data sets."""

def sweep(
    recipe: str | Path | Artifact,
    *,
    grid: Sequence[str] = (),
    out: str | Path | None = None,
    set: Sequence[str] = (),
    small: bool = False,
    on: str = 'local',
    dry_run: bool = False,
) -> dict[str, Any]:
    """Run a recipe over settings, or a shipped sweep."""

def report(
    runs: Sequence[str | Path | Artifact],
    *,
    out: str | Path,
    label: Sequence[str] = (),
    opening: Sequence[str] = (),
    title: str | None = None,
    data: str | Path | Artifact | None = None,
    price_per_hour: float | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Write a page with the tables and figures of experiments."""

def adapt(
    documents: str | Path | Artifact,
    *,
    out: str | Path = 'runs/adapted',
    labels: str | Path | Artifact | None = None,
    max_labels: int | None = None,
    encoder: str | Path | Artifact | None = None,
    reranker: str | Path | Artifact | None = None,
    budget: str = '30m',
    generator: str = 'auto',
    generator_model: str | None = None,
    endpoint: str | None = None,
    passages: int | None = None,
    processes: int | None = None,
    index: Literal['exact', 'faiss-hnsw', 'faiss-ivfpq', 'milvus', 'postgres'] | str | None = None,
    on: str = 'local',
    retrain: bool = False,
    dry_run: bool = False,
    seed: int = 42,
    neighbours: int = ...,
    effort: int = 200,
    lists: int | None = None,
    probes: int = 32,
    code_bytes: int = 64,
    with_text: bool = False,
    texts: str | Path | Artifact | None = None,
    replace: str | None = None,
    uri: str | None = ...,
    collection: str = 'qontext',
    kind: str | Literal['hnsw', 'ivfflat', 'exact'] = ...,
    table: str = 'qontext',
    halfvec: bool = False,
    build_memory: int = 512,
) -> dict[str, Any]:
    """Build and evaluate a retriever for your documents."""

def run(
    recipe: str | Path | Artifact,
    *,
    out: str | Path | None = None,
    set: Sequence[str] = (),
    small: bool = False,
    on: str = 'local',
    until: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Run a recipe: all stages that are not finished."""

def recipes(
    recipe: str | None = None,
    *,
    small: bool = False,
) -> dict[str, Any]:
    """List the shipped recipes and sweeps, or show one."""

def demo(
    *,
    out: str | Path = 'runs/demo',
    source: str | Path | Artifact = 'pydocs:',
    passages: int = 2000,
    budget: str = '8m',
) -> dict[str, Any]:
    """Run the pipeline on text that is already on this machine."""

def serve(
    directories: Sequence[str | Path | Artifact],
    *,
    passages: str | Path | Artifact | None = None,
    reranker: Sequence[str | Path | Artifact] = (),
    data: str | Path | Artifact | None = None,
    split: str = 'test',
    runs: str | Path | Artifact | None = None,
    about: str = '',
    host: str = '127.0.0.1',
    port: int = 8000,
    allow_host: Sequence[str] = (),
    mcp: bool = False,
    queue: int = 64,
    timeout: float = 30,
    dry_run: bool = False,
    log_queries: bool = False,
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    device: str = 'auto',
) -> dict[str, Any]:
    """Serve search: a page, an HTTP API, and MCP for agents."""

def annotate(
    passages: str | Path | Artifact,
    queries: str | Path | Artifact,
    *,
    out: str | Path,
    documents: int = 200,
    annotators: int = 3,
    reranker: str | Path | Artifact | None = None,
    seed: int = 42,
    export: bool = False,
    host: str = '127.0.0.1',
    port: int = 8000,
    allow_host: Sequence[str] = (),
    device: str = 'auto',
) -> dict[str, Any]:
    """Collect human judgements of text pairs in a browser."""

def show(
    directory: str | Path | Artifact,
    *,
    verify: bool = False,
) -> dict[str, Any]:
    """Describe a directory: command, inputs, settings."""

def clean(
    directory: str | Path | Artifact,
    *,
    keep_report: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Remove files not needed for search or updates."""
