"""`qontext train-tokenizer`: passages → a WordPiece tokenizer for encoders trained from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = 1000
"""Maximum number of distinct characters; rarer ones become unknown tokens."""


class TrainTokenizerConfig(StageConfig):
    passages: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split'."""

    vocabulary: int = Field(30_522, ge=100, le=1 << 24)
    """Vocabulary size, including special tokens (30,522 in BERT). Token ids are stored in two bytes each for up to
    65,536 entries, else in four."""

    lowercase: bool = True
    """Lowercase and strip accents, as bert-base-uncased does."""

    min_frequency: int = Field(2, ge=1)
    """Drop pieces that occur less often."""


def run(config: TrainTokenizerConfig, work: Workdir) -> dict[str, Any]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    from qontext.data import records

    def wordpiece(vocabulary: dict[str, int]) -> Any:
        model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    total = records.count_rows(config.passages)
    with log.progress("read", 2 * total, "passages") as advance:
        tokenizer = wordpiece(train(wordpiece({}), config, advance))
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    with work.write("tokenizer.json") as path:
        tokenizer.save(str(path))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL))
    # The class name lets transformers load the folder like BERT's.
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": config.lowercase,
        "model_max_length": 512,
        **names,
    }
    work.write_json("tokenizer_config.json", settings)
    sample = tokenizer.encode("A sentence that shows how words are split.").tokens
    return {"vocabulary": size, "passages": total, "sample": " ".join(sample)}


def train(tokenizer: Any, config: TrainTokenizerConfig, advance: Callable[[int], None]) -> dict[str, int]:
    """A deterministic vocabulary: by default the trainer numbers characters in random order and breaks ties
    by these numbers. So the alphabet is passed to it, in both of its forms."""
    from tokenizers import trainers

    letters: Counter[str] = Counter()
    for batch in _texts(config.passages, advance):
        for text in batch:
            letters.update(tokenizer.normalizer.normalize_str(text))
    room = min(LETTERS, (config.vocabulary - len(SPECIAL)) // 2)
    common = sorted((c for c in letters if not c.isspace()), key=lambda c: (-letters[c], c))[:room]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocabulary,
        min_frequency=config.min_frequency,
        special_tokens=[*SPECIAL, *(f"##{c}" for c in sorted(common))],
        initial_alphabet=common,
        limit_alphabet=len(common),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(config.passages, advance), trainer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if len(vocabulary) <= len(SPECIAL) + 2 * len(common):
        raise QontextError("the passages have too few words to train a tokenizer", place=config.passages)
    return vocabulary


def _texts(passages: str, advance: Callable[[int], None]) -> Iterator[list[str]]:
    from qontext.data import records

    for batch in records.read_table(passages, records.PASSAGES, columns=["title", "text"]):
        advance(len(batch))
        for name in ("title", "text"):
            yield batch.column(name).to_pylist()


STAGE = Stage(
    verb="train-tokenizer",
    config=TrainTokenizerConfig,
    run=run,
    examples="""
        qontext train-tokenizer passages --out tokenizer
        qontext train-tokenizer passages --vocabulary 8192 --out tokenizer
    """,
)
