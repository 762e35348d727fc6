"""The files that a command writes. `tests/examples/test_site.py` compares them with what commands write."""

from __future__ import annotations

from qontext.data.records import PASSAGES, PLACES, QUERIES
from qontext.finetune.negatives.groups import GROUPS

_MODEL = {
    "model.safetensors, config.json": "the weights and settings, as transformers reads them",
    "tokenizer*.json, *.jinja": "the tokenizer",
    "logs/*": "losses and rates of the training",
}
_ENCODER = {
    **_MODEL,
    "modules.json, [1-9]_*/*, *sentence_*.json": "the layout, as sentence-transformers reads it",
    "qontext.json": "titles, prompts and representation",
    "README.md": "a model card",
}
_RUN = {"run.trec": "the run: query, passage, rank and score; `--out NAME.trec` writes only this file"}

FILES: dict[str, dict[str, str]] = {
    "split": {"part-*.parquet": f"the passages: {', '.join([*PASSAGES.names, *PLACES.names])}"},
    "docset": {
        "corpus.jsonl.gz, queries.jsonl.gz": "passages and queries, in BEIR's layout",
        "qrels/*.tsv": "the judgments of each split",
    },
    "collect": {
        "corpus.jsonl, queries.jsonl": "passages and queries, in BEIR's layout",
        "qrels/*.tsv": "the judgments of each split",
        "triples.tsv": "ids of triples of texts, if there are any",
    },
    "train-tokenizer": {"tokenizer.json, tokenizer_config.json": "the tokenizer, as transformers reads it"},
    "tokens": {
        "ids.npy, offsets.npy": "the ids of all texts, and where each text begins",
        "word_starts.npy, sentences.npy, groups.npy": "the beginnings of words, sentences and documents",
        "title_*.npy": "the titles",
        "names.parquet": "the ids of the passages",
    },
    "generate": {"part-*.parquet": f"the queries: {', '.join(QUERIES.names)}"},
    "train-generator": {
        **_MODEL,
        "generation_config.json, generator.json": "how `generate` samples from it",
        "samples.json": "queries that it generates, to look at",
    },
    "filter": {
        "part-*.parquet": f"the queries: {', '.join(QUERIES.names)}, the judge's signals, score and passed"
    },
    "expand": {"part-*.parquet": "the passages with queries appended; the columns of `split`"},
    "holdout": {
        "queries/queries.parquet": "the queries of all other documents, for training",
        "measured/*": "a labeled set in BEIR's layout",
    },
    "pretrain": {**_ENCODER, "head.safetensors": "the method's head, for a further pre-training"},
    "mine": {
        "groups-*.parquet": f"the groups: {', '.join(GROUPS.names)}",
        "logs/*": "how many negatives were found, and where",
    },
    "finetune": _ENCODER,
    "train-reranker": {**_MODEL, "qontext.json": "titles", "README.md": "a model card"},
    "encode": {
        "vectors-*.npy": "the vectors, a row per passage (of tokens or words: a row for each)",
        "starts-*.npy": "where the rows of each passage begin, if it has several",
        "ids-*.parquet": "the ids of the passages, hashes of their texts and, with windows, lengths of their titles",
        "token-bits-*.npy, token-starts-*.npy": "with `--tokens`, the signs of the tokens' vectors, for MaxSim",
        "derived/*": "computed again when it is missing",
    },
    "index": {
        "index.faiss": "the index of faiss; other backends write files of their own",
        "ids.parquet, numbers.npy": "the ids of the passages",
    },
    "retrieve": _RUN,
    "fuse": _RUN,
    "rerank": _RUN,
    "evaluate": {
        "scores.json": "means, counts and benchmark",
        "queries.parquet": "every measure for every query",
        "curves.json": "recall by depth",
    },
    "report": {
        "report.html": "the page, self-contained",
    },
    "export": {"*": "what the format says; see [export formats](../formats.md)"},
    "adapt": {
        "adapted.json": "the verdict, and how to search; written last",
        "plan.json, recipe.toml": "what was asked for, and the steps",
        "model/*": "the adapted encoder, if it is recommended",
        "index/*": "passages, BM25 index and vectors",
        "report/*": "the page with the results",
        "steps/*": "the directories of the recipe's steps",
    },
    "run": {"STEP/*": "the directory of each step", "recipe.toml": "the recipe as it was run"},
}
"""Verb → patterns of files → what they hold. Every directory also has a `meta.json`."""

FILES["demo"] = FILES["adapt"]


def listing(verb: str, *, is_stage: bool) -> str:
    """The list of a verb's files; empty if it writes none."""
    if verb not in FILES:
        return ""
    rows = [f"| {_names(patterns)} | {text} |" for patterns, text in FILES[verb].items()]
    if is_stage:
        rows.append(
            "| `meta.json` | the command, its settings and inputs, a summary, and the hashes of all files |"
        )
    return "\n".join(["| File | |", "|---|---|", *rows])


def _names(patterns: str) -> str:
    return ", ".join(f"`{name}`" for name in patterns.split(", "))
