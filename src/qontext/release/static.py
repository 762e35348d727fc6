"""A static model: the vector of a text is the mean of vectors of its tokens, looked up in a table (model2vec).

    e_t = encoder([CLS] t [SEP])                       for each token t of the vocabulary
    p_t = PCA_d(e_t - mean)
    v_t = p_t · a / (a + f_t)                          smooth inverse frequency (Arora et al. 2017)

f_t is estimated from the rank r of the token in the vocabulary by Zipf's law, f = 1 / (r · Σ_i 1/i). Folders load in
model2vec and sentence-transformers. (Minish Lab, 2024: model2vec.)

Shapes: V tokens of the vocabulary, D dimensions of the encoder, d of the table.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError, missing_extra
from qontext.release.model import ModelFormat, ModelOptions

if TYPE_CHECKING:
    import numpy as np

    from qontext.models.folder import TextKind
    from qontext.models.retriever import Retriever
    from qontext.retrieve.rankers import Encodes

    Array = np.ndarray[Any, Any]

SMOOTHING = 1e-4
"""a."""
LONGEST = 1_000_000
"""Tokens of a text: there is no limit."""


class StaticOptions(ModelOptions):
    dimensions: int = Field(256, ge=1)
    """Dimensions of the table, by PCA; at most those of the encoder."""


class Static(ModelFormat):
    Options = StaticOptions

    @classmethod
    def require_packages(cls) -> None:
        if find_spec("model2vec") is None:
            raise missing_extra("model2vec", "static", "the export to a static model")

    @classmethod
    def write(cls, original: Retriever, folder: Path, options: Any, work: Workdir) -> None:
        import numpy as np
        from model2vec.persistence import save_pretrained
        from tokenizers import Tokenizer

        if original.of("query") is not original:
            raise QontextError(
                "a static model is one table, and this encoder has a half for queries and one for passages",
                remedy="Export it to onnx or openvino, or fine-tune an encoder without --untied.",
            )
        tokens_VD = _token_vectors(original)
        table_Vd = reduced(tokens_VD, min(options.dimensions, tokens_VD.shape[1]))
        table_Vd *= weights(len(table_Vd))[:, None]
        tokenizer = Tokenizer.from_str(original.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        settings = {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "apply_pca": int(table_Vd.shape[1]),
            "sif_coefficient": SMOOTHING,
            "hidden_dim": int(table_Vd.shape[1]),
            "seq_length": LONGEST,
            "max_length": None,
            "normalize": True,
        }
        save_pretrained(
            folder, table_Vd.astype(np.float32), tokenizer, cast(Any, settings), create_model_card=False
        )

    @classmethod
    def open(cls, folder: Path) -> Encodes:
        from model2vec import StaticModel

        model = StaticModel.from_pretrained(folder)

        class Encoder:
            def encode(self, texts: Any, kind: TextKind) -> Array:
                vectors: Array = model.encode(list(texts), max_length=None)
                return vectors

        return Encoder()


def _token_vectors(original: Retriever) -> Array:
    """[V, D] the vector of each token of the vocabulary alone."""
    import numpy as np

    backend = original.tokenizer.backend_tokenizer
    before, after = _surroundings(original.tokenizer)
    count = backend.get_vocab_size(with_added_tokens=True)
    tokens = [np.array([*before, id, *after], np.int32) for id in range(count)]
    with log.progress("encode", count, "tokens") as advance:
        vectors: Array = original.encode_tokens(tokens, "passage", advance=advance)
    return vectors


def _surroundings(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    plain, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    start = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    return whole[:start], whole[start + len(plain) :]


def reduced(vectors_VD: Array, dimensions: int) -> Array:
    """[V, d] the principal components, in fp64."""
    import numpy as np

    centered = vectors_VD.astype(np.float64) - vectors_VD.mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :dimensions]
    largest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    components: Array = centered @ (axes * np.sign(largest))  # the sign of an axis is arbitrary
    return components


def weights(count: int) -> Array:
    """[V] a / (a + f) of tokens by their ranks."""
    import numpy as np

    ranks = np.arange(2, count + 2)
    frequencies = 1 / ranks / (1 / ranks).sum()
    result: Array = SMOOTHING / (SMOOTHING + frequencies)
    return result
