"""The second encoder of an untied pair: queries have one of their own, in the folder `query/` of the retriever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext import log
from qontext.engine.encoder import Encoder, load_encoder
from qontext.engine.locate import locate
from qontext.finetune.config import FinetuneConfig
from qontext.retrieve.retriever import QUERY_FOLDER


def load_query_encoder(config: FinetuneConfig) -> Encoder | None:
    """As it was trained before, or else the passages' start once more; None if both share one."""
    trained = locate(config.encoder) / QUERY_FOLDER
    is_pair = (trained / "config.json").is_file()
    if config.untied:
        start = str(trained) if is_pair else config.encoder
        return load_encoder(start, seed=config.seed, dropout=config.dropout)
    if is_pair:
        log.warn(
            f"{config.encoder} has an encoder of its own for queries, which is left aside: --untied trains both."
        )
    return None


def save_query_encoder(encoder: Encoder, retriever: Path, **layout: Any) -> None:
    """A whole model of its own, beside the passages'."""
    (retriever / QUERY_FOLDER).mkdir()
    encoder.save(retriever / QUERY_FOLDER, **layout)
