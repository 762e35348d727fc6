"""The tokens of a question that met tokens of a passage, where a system compares them.

    for each token i of the question: the token j of the passage with the greatest <e_i, sign(e_j)> / √D

Tokens are shown as the words that they are parts of; a word of several tokens has their mean, and meets the best match
of them. The passage is cut into tokens once more, as `encode` did, since only their bits are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.data.passage import Passage
from qontext.frame.files import opening
from qontext.models.folder import QUERY_FOLDER, TextKind, locate

if TYPE_CHECKING:
    from qontext.retrieve.rankers import TokenReranked


class TokenMatch(NamedTuple):
    """A word of the question, and the word of the passage whose token it met."""

    token: str
    met: str
    similarity: float


class _Read(NamedTuple):
    """A token: the word that it is a part of, and where that begins."""

    word: str
    begin: int


def matched_tokens(
    ranker: TokenReranked, question: str, passages: Sequence[Passage]
) -> list[list[TokenMatch]]:
    """For each passage the words of the question in their order, each with what it met; none if the passage cannot be read
    as it was."""
    from qontext.retrieve.encoded.vectors import prompts_of

    artifact, model = ranker.bits.encoded.artifact, ranker.encoder.model
    prompts = prompts_of(artifact)
    asked = _reader(model, prompts, "query", None)([question])
    read = _reader(model, prompts, "passage", artifact.summary["max_length"])
    (vectors_ID,) = ranker.encoder.token_vectors([question], "query")
    return [
        _matches(
            ranker.bits.products(vectors_ID, passage.id),
            asked,
            read(_as_encoded(artifact.summary, model, passage)),
        )
        for passage in passages
    ]


def _matches(products_IJ: Any, asked: Sequence[_Read], there: Sequence[_Read]) -> list[TokenMatch]:
    import numpy as np

    if products_IJ.shape != (len(asked), len(there)):
        return []
    best_I = products_IJ.argmax(1)
    met: dict[_Read, list[int]] = {}
    for number, token in enumerate(asked):
        if any(map(str.isalnum, token.word)):
            met.setdefault(token, []).append(number)
    matches = []
    for token, numbers in met.items():
        own = products_IJ[numbers, best_I[numbers]]
        nearest = there[best_I[numbers[int(own.argmax())]]].word
        matches.append(TokenMatch(token.word, nearest, round(float(np.mean(own)), 4)))
    return matches


def _as_encoded(how: Mapping[str, Any], model: str, passage: Passage) -> list[str]:
    """The texts that `encode` read of a passage."""
    from qontext.corpus.counting import counter
    from qontext.retrieve.encoded.windows import windows_of

    between = {"prepend": " ", "leave": None}.get(how.get("title", "prepend"), "[SEP]")
    windows = [passage.text]
    if how.get("window"):
        windows = windows_of(passage.text, how["window"], counter(str(locate(model).layout.transformer)))
    return [passage._replace(text=text).joined(between) for text in windows]


def _reader(
    model: str, prompts: Mapping[TextKind, str | None], kind: TextKind, longest: int | None
) -> Callable[[Sequence[str]], list[_Read]]:
    """The function texts → all their tokens that have vectors; see `Retriever.encode_each_token`."""
    from tokenizers import Tokenizer

    folder = locate(model)
    if kind == "query" and (folder.transformer / QUERY_FOLDER / "config.json").is_file():
        folder = locate(str(folder.transformer / QUERY_FOLDER))
    layout, file = folder.layout.prompted(prompts), folder.transformer / "tokenizer.json"
    if not file.is_file():
        return lambda texts: []
    with opening(file, "a tokenizer"):
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    if longest is not None:
        tokenizer.enable_truncation(longest)
    added = tokenizer.get_added_tokens_decoder()

    def read(texts: Sequence[str]) -> list[_Read]:
        tokens = []
        for number, text in enumerate(texts):
            prepared = (layout.prompt(kind) + text).strip()
            encoding: Any = tokenizer.encode(prepared.lower() if layout.lower else prepared)
            own = [place for place, id in enumerate(encoding.ids) if id not in added or not added[id].special]
            for place in own or range(len(encoding.ids)):
                word = encoding.token_to_word(place)
                begin, end = encoding.offsets[place] if word is None else encoding.word_to_chars(word)
                tokens.append(_Read(prepared[begin:end].strip(), begin + (number << 32)))
        return tokens

    return read
