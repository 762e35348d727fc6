"""`qontext encode`: passages (or queries) → vectors.

Texts are encoded in blocks of 16,384, one part each. A part depends on its own texts alone, so a killed run
goes on after its last part, and ranks can take the parts in turn without changing them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import artifacts, log, records
from qontext.artifacts import Workdir
from qontext.collection import read_passages, read_queries
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.stages import Stage

BLOCK = 16_384


class EncodeConfig(StageConfig):
    texts: Annotated[str, Input(positional=True)]
    """Passages: what `split` wrote, a BEIR folder or corpus file, Parquet, or id<tab>text. With --kind query,
    queries: a BEIR folder or queries file, or id<tab>text."""

    encoder: Annotated[str, Input()]
    """The retriever: a directory of qontext, sentence-transformers or transformers, or a hub name. Its own
    pooling, normalisation, prompts and length limit apply."""

    kind: Literal["passage", "query"] = "passage"
    """What the texts are; it chooses the encoder's prompt."""

    max_length: int | None = Field(None, ge=3)
    """Tokens after which a text is cut; by default the encoder's own limit."""

    pooling: Literal["cls", "mean", "max", "lasttoken"] | None = None
    """How tokens become one vector; by default as the encoder says, and the CLS token if it says nothing."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the computation; auto is bf16 where the hardware has it."""

    storage: Literal["fp16", "fp32"] = "fp32"
    """Number format on disk; fp16 halves the size and changes scores in the fourth digit."""

    device: Annotated[str, Machine()] = "auto"
    """Where to compute: auto, cpu, cuda, cuda:N or mps."""

    reuse: Annotated[str | None, Machine()] = None
    """Vectors made before: those of unchanged texts are taken over, if the same encoder made them in the same way."""

    batch_tokens: Annotated[int | None, Machine()] = Field(None, ge=1)
    """Tokens in a batch; by default what suits the device."""


def run(config: EncodeConfig, work: Workdir) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa
    import torch

    from qontext.corpus.seen import SeenIds
    from qontext.engine.precision import own_device
    from qontext.retrieve.retriever import Retriever
    from qontext.retrieve.reuse import Earlier, text_hashes, weights_hash

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    retriever = Retriever(
        config.encoder,
        device=own_device(config.device),
        precision=config.precision,
        pooling=config.pooling,
        max_length=config.max_length,
        batch_tokens=config.batch_tokens,
    ).of(config.kind)
    made = {
        "dimension": retriever.dimension,
        "similarity": retriever.layout.similarity,
        "pooling": retriever.layout.pooling,
        "normalized": retriever.layout.normalize,
        "max_length": retriever.max_length,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(torch.nn.ModuleList([retriever.model, *retriever.dense])),
        "storage": config.storage,
    }
    earlier, reused = Earlier(config.reuse, config.kind, made), 0
    dtype = np.dtype("float16" if config.storage == "fp16" else "float32")
    seen, count, encoded, blocks, started = SeenIds(), 0, 0, 0, time.monotonic()

    def wanted() -> Iterator[tuple[int, list[str], Any, Any, Any, Any]]:
        """The blocks that this rank has still to do: ids, hashes, which are known, their vectors, the others' tokens."""
        nonlocal count, blocks
        for number, block in enumerate(_blocks(config)):
            ids = [id for id, _ in block]
            if any(repeated := seen.repeated(ids)):
                raise QontextError(f"the id {ids[repeated.index(True)]!r} occurs twice", place=config.texts)
            count, blocks = count + len(block), number + 1
            if number % world == rank and not work.has(_name(number)):
                hashes = text_hashes([text for _, text in block])
                known, vectors = earlier.rows(hashes)
                new = [text for (_, text), there in zip(block, known) if not there]
                yield number, ids, hashes, known, vectors, retriever.tokenize(new, config.kind)

    with log.progress("encode", _total(config), "texts") as advance:
        for number, ids, hashes, known, taken, tokens in ahead(wanted()):
            vectors = np.empty((len(ids), retriever.dimension), dtype)
            vectors[~known] = retriever.encode_tokens(tokens, advance=advance).astype(dtype)
            if known.any():
                vectors[known] = taken.astype(dtype)
                advance(int(known.sum()))
            if not np.isfinite(vectors).all():
                raise QontextError(
                    "a vector does not fit fp16", place=config.texts, remedy="Use --storage fp32."
                )
            with work.write(f"ids-{number:05d}.parquet") as path:
                records.write_table(path, pa.table({"id": ids, "hash": hashes}))
            with work.write(_name(number)) as path, path.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)
            encoded += len(tokens)
            reused += int(known.sum())
    seconds = time.monotonic() - started
    if not count:
        raise QontextError("holds nothing to encode", place=config.texts)
    while rank == 0 and not all(work.has(_name(number)) for number in range(blocks)):
        time.sleep(0.2)  # other ranks are still at their parts
    return {
        "texts": count,
        **made,
        "encoded_now": encoded,
        **({"taken over": reused} if reused else {}),
        "texts_per_second": round(encoded / seconds, 1) if encoded else None,
    }


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The items, each made in a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _blocks(config: EncodeConfig) -> Iterator[list[tuple[str, str]]]:
    if config.kind == "query":
        texts = iter(read_queries(config.texts).items())
    else:
        texts = ((passage.id, passage.content) for passage in read_passages(config.texts))
    while block := list(islice(texts, BLOCK)):
        yield block


def _name(number: int) -> str:
    return f"vectors-{number:05d}.npy"


def _total(config: EncodeConfig) -> int | None:
    known = artifacts.is_artifact(config.texts) and any(Path(config.texts).glob("*.parquet"))
    return records.count_rows(config.texts) if known else None


STAGE = Stage(
    "encode",
    EncodeConfig,
    run,
    """qontext encode passages --encoder runs/retriever --out vectors
    qontext encode beir/scifact --encoder sentence-transformers/all-MiniLM-L6-v2 --storage fp16 --out vectors
    torchrun --nproc-per-node 8 -m qontext encode passages --encoder runs/retriever --out vectors""",
    distributed=True,
)
