"""The query encoder of an untied pair, in the folder `query/` of the retriever."""

from __future__ import annotations

from qontext.frame import log
from qontext.models.encoder import Encoder, load_encoder
from qontext.models.layout import QUERY_FOLDER
from qontext.models.locate import locate


def load_query_encoder(encoder: str, *, untied: bool, seed: int, dropout: float | None) -> Encoder | None:
    """The query encoder from earlier training, or else a copy of the initial encoder; None if both share one."""
    trained = locate(encoder) / QUERY_FOLDER
    is_pair = (trained / "config.json").is_file()
    if untied:
        start = str(trained) if is_pair else encoder
        return load_encoder(start, seed=seed, dropout=dropout)
    if is_pair:
        log.warn(f"{encoder} has a separate encoder for queries, which is ignored: --untied trains both.")
    return None
