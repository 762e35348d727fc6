"""What models that write text have in common: a tokenizer that fits them, and a token that ends a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer as the library reads it. Code that comes with it is never executed."""
    from transformers import AutoTokenizer

    from qontext.models.load import quiet

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(f"the tokenizer cannot be loaded: {first_line(error)}", place=folder) from None


def check_writer(model: Any, tokenizer: Any, end_token: int | None, folder: Path) -> None:
    """Refuse what cannot end a text or embed its tokens; `end_token` is taken where the model defines none."""
    generation = model.generation_config
    if generation.eos_token_id is None:
        generation.eos_token_id = end_token
    if generation.eos_token_id is None:
        raise QontextError("neither the model nor its tokenizer defines an end-of-text token", place=folder)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise QontextError(
            f"the tokenizer has {len(tokenizer):,} tokens, the model {rows:,}: they do not belong together",
            place=folder,
        )
