"""A static model: the vector of a text is the mean of vectors of its tokens, looked up in a table (model2vec).

    e_t = encoder([CLS] t [SEP])                       for each token t of the vocabulary
    v_t = PCA_d(e_t - mean) · a / (a + f_t)            smooth inverse frequency (Arora et al. 2017)

f_t is estimated from the rank r of the token in the vocabulary by Zipf's law, f = 1 / (r · Σ_i 1/i). Folders load in
model2vec and sentence-transformers. (Minish Lab, 2024: model2vec.)

Shapes: V tokens of the vocabulary, D dimensions of the encoder, d of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from qontext.frame import config, log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.release.export import Format, encoder_of

if TYPE_CHECKING:
    import numpy as np

    from qontext.models.retriever import Retriever

    Array = np.ndarray[Any, Any]

SMOOTHING = 1e-4
"""a."""


class StaticOptions(config.Options):
    dimensions: int = Field(256, ge=1)
    """Dimensions of the table, by PCA; at most those of the encoder."""


class Static(Format):
    Options = StaticOptions

    @classmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        import numpy as np

        original = encoder_of(source, ("model2vec",))
        from model2vec.persistence import save_pretrained
        from tokenizers import Tokenizer

        if original.of("query") is not original:
            raise QontextError(
                "a static model is one table, and this encoder has a half for queries and one for passages",
                remedy="Export it to onnx or openvino, or fine-tune an encoder without --untied.",
            )
        tokens_VD = _token_vectors(original)
        table_Vd = reduced(tokens_VD, min(options.dimensions, tokens_VD.shape[1]))
        frequencies_V = 1 / np.arange(2, len(table_Vd) + 2)
        frequencies_V /= frequencies_V.sum()
        table_Vd *= (SMOOTHING / (SMOOTHING + frequencies_V))[:, None]
        tokenizer = Tokenizer.from_str(original.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        width = int(table_Vd.shape[1])
        settings = {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "apply_pca": width,
            "sif_coefficient": SMOOTHING,
            "hidden_dim": width,
            "seq_length": 1_000_000,
            "max_length": None,
            "normalize": True,
        }
        with work.write_folder(".") as folder:
            table: Any = table_Vd.astype(np.float32)
            save_pretrained(folder, table, tokenizer, cast(Any, settings), create_model_card=False)
        return {"dimension": width}


def _token_vectors(original: Retriever) -> Array:
    """[V, D] the vector of each token of the vocabulary alone."""
    import numpy as np

    from qontext.models.tokenizer import frame_of

    backend = original.tokenizer.backend_tokenizer
    frame = frame_of(original.tokenizer)
    count = backend.get_vocab_size(with_added_tokens=True)
    tokens = [np.array([*frame.before, id, *frame.after], np.int32) for id in range(count)]
    with log.progress("encode", count, "tokens") as advance:
        vectors: Array = original.encode_tokens(tokens, "passage", advance=advance)
    return vectors


def reduced(vectors_VD: Array, dimensions: int) -> Array:
    """[V, d] the principal components, in fp64."""
    import numpy as np

    centered = vectors_VD.astype(np.float64) - vectors_VD.mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :dimensions]
    largest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    components: Array = centered @ (axes * np.sign(largest))  # the sign of an axis is arbitrary
    return components
