"""Scores and filters, by hand on a few passages."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.tiny import save_bert

from qontext import api
from qontext.data import records
from qontext.data.collection import read_passages
from qontext.queries.filter import Lookup
from qontext.queries.judges import overlap, ranks
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.index.lexical import LexicalIndex
from qontext.retrieve.system import IndexRanker

pytestmark = pytest.mark.numeric

GOOD = ["who built the lighthouse of aldermoor", "how do bees tell the direction of flowers",
        "why does bread rise with yeast", "what is a slow river of ice"]  # fmt: skip


@pytest.fixture
def few(write_passages, passage):
    return write_passages([passage(n) for n in range(4)])


@pytest.fixture
def queries(tmp_path):
    """For each of four passages a good query, and one that belongs to the next passage."""
    rows = []
    for n in range(4):
        rows += [{"passage": f"p{n}", "query": GOOD[n], "number": 0}]
        rows += [{"passage": f"p{n}", "query": GOOD[(n + 1) % 4], "number": 1}]
    records.write_table(tmp_path / "queries.parquet", records.table_of(rows, records.QUERIES))
    return str(tmp_path / "queries.parquet")


def table(artifact):
    return pq.read_table(artifact.parts(".parquet")[0]).to_pylist()


def test_overlap_by_hand():
    passages = "A lighthouse was built.", "A dog.", "of the"
    shares = overlap([*zip(["built lighthouses", "purple dogs", "the of"], passages)])
    assert shares.tolist() == [1.0, 0.5, 0.0]


def words_of(texts):
    return IndexRanker(LexicalIndex(Bm25.build(texts)))


def test_rank_counts_from_one():
    index = words_of(["bee flower", "bee honey wax", "stone ice"])
    assert ranks(index, ["bee honey", "bee honey", "ice"], np.array([1, 0, 0]), 10).tolist() == [1, 2, 0]
    assert ranks(index, ["bee honey"], np.array([0]), 1).tolist() == [0]


@pytest.mark.parametrize("options", [{"by": "overlap"}, {"by": "retrieval", "top": 1}])
def test_good_queries_stay_and_strangers_go(few, queries, tmp_path, options):
    done = api.filter(queries, passages=few, out=tmp_path / "f", **options)
    assert [(r["passage"], r["query"]) for r in table(done)] == [(f"p{n}", GOOD[n]) for n in range(4)]
    assert all(r["passed"] and r["score"] >= 0.5 for r in table(done))
    assert done.summary["queries"] == 8 and done.summary["passed"] == done.summary["kept"] == 4


def test_the_best_one_is_kept_though_it_fails(few, tmp_path):
    rows = [
        {"passage": "p0", "query": q, "number": n}
        for n, q in enumerate(["purple yeast", "the lighthouse of nowhere"])
    ]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    kept = api.filter(tmp_path / "q.parquet", passages=few, out=tmp_path / "kept", by="overlap", at_least=0.9)
    assert [(r["query"], r["passed"]) for r in table(kept)] == [("the lighthouse of nowhere", False)]
    lost = api.filter(
        tmp_path / "q.parquet",
        passages=few,
        out=tmp_path / "lost",
        by="overlap",
        at_least=0.9,
        keep_at_least=0,
    )
    assert table(lost) == []
    assert lost.summary["passages_that_lost_all"] == 1 == kept.summary["passages_where_none_passed"]


def test_copies_can_be_left_out(few, tmp_path):
    rows = [
        {"passage": "p3", "query": q, "number": n}
        for n, q in enumerate(["slow river of ice", "frozen river of ice"])
    ]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    done = api.filter(tmp_path / "q.parquet", passages=few, out=tmp_path / "f", by="overlap", at_most=0.9)
    assert [r["query"] for r in table(done)] == ["frozen river of ice"]


def test_queries_that_the_retriever_answers_already_can_be_left_out(few, tmp_path):
    queries = [f"{GOOD[1]} lighthouse", "yeast"]
    rows = [{"passage": "p0", "query": query, "number": n} for n, query in enumerate([GOOD[0], *queries])]
    rows += [{"passage": f"p{n}", "query": GOOD[n], "number": 0} for n in range(1, 4)]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    settings = {"passages": few, "keep_at_least": 0}
    ranked = api.filter(tmp_path / "q.parquet", out=tmp_path / "all", top=4, **settings)
    ranks = {(r["passage"], r["query"]): r["rank"] for r in table(ranked)}
    assert set(ranks.values()) == {1, 2}
    for skip, top in ((1, 4), (0, 1), (1, 2)):
        done = api.filter(
            tmp_path / "q.parquet", out=tmp_path / f"{skip}-{top}", top=top, skip=skip, **settings
        )
        expected = {pair for pair, rank in ranks.items() if skip < rank <= top}
        assert {(r["passage"], r["query"]) for r in table(done)} == expected


def test_filters_can_follow_each_other(few, queries, tmp_path):
    first = api.filter(queries, passages=few, out=tmp_path / "one", by="overlap", at_least=0.0)
    second = api.filter(first, passages=few, out=tmp_path / "two", by="retrieval", top=1)
    row = table(second)[0]
    assert row["overlap"] > 0.5 and row["rank"] == 1 and row["score"] == 1.0 and len(table(second)) == 4


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory, minilm):
    """A random cross-encoder on MiniLM's tokenizer."""
    sizes = {"num_hidden_layers": 1, "intermediate_size": 16}
    return save_bert(tmp_path_factory.mktemp("cross"), minilm, num_labels=1, **sizes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cross_encoder_scores_every_pair(few, queries, tmp_path, cross_encoder, precision, monkeypatch):
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", precision)
    done = api.filter(
        queries, passages=few, out=tmp_path / "f", by="reranker", reranker=cross_encoder, at_least=0.0
    )
    assert done.meta["computed"] == precision
    scores = [r["rerank"] for r in table(done)]
    assert len(scores) == 8 and all(0 < s < 1 for s in scores) and len(set(scores)) > 4


def test_a_dense_retriever_filters_too(few, queries, tmp_path, minilm):
    done = api.filter(queries, passages=few, out=tmp_path / "f", retriever=minilm, top=1)
    assert [(r["passage"], r["query"]) for r in table(done)] == [(f"p{n}", GOOD[n]) for n in range(4)]
    assert [p.name for p in done.path.iterdir() if p.suffix == ".npy"] == []  # the vectors are gone


def scores(artifact):
    return {
        (r["passage"], r["query"]): (r["rank"], r["score"])
        for part in artifact.parts(".parquet")
        for r in pq.read_table(part).to_pylist()
    }


@pytest.mark.parametrize("dense", [False, True])
def test_order_and_parts_do_not_matter(passages, tmp_path, tiny_encoder, dense):
    """Queries in passage order, in many parts or one, and shuffled, so that a passage's do not stand together."""
    settings = {"passages": passages, "top": 3, "keep_at_least": 5}
    settings |= {"retriever": tiny_encoder} if dense else {}
    generated = api.generate(passages, out=tmp_path / "q", generator="keyphrase", part_passages=7)
    rows = [row for part in generated.parts() for row in pq.read_table(part).to_pylist()]
    records.write_table(tmp_path / "one.parquet", records.table_of(rows, records.QUERIES))
    np.random.default_rng(3).shuffle(rows)
    records.write_table(tmp_path / "mixed.parquet", records.table_of(rows, records.QUERIES))
    many = scores(api.filter(generated, out=tmp_path / "many", **settings))
    assert len(many) == 200 and many == scores(
        api.filter(tmp_path / "one.parquet", out=tmp_path / "one", **settings)
    )
    mixed = scores(api.filter(tmp_path / "mixed.parquet", out=tmp_path / "mixed", **settings))
    # Vectors differ in their last bits.
    same = [mixed[pair][0] == score[0] for pair, score in many.items()]
    assert sum(same) >= 190 if dense else all(same)


@pytest.mark.parametrize("untied", [False, True])
def test_ranks_are_those_of_all_inner_products(passages, tmp_path, tiny_encoder, untied):
    from transformers import BertConfig, BertModel

    from qontext.models.retriever import Retriever

    if untied:  # queries have an encoder of their own
        pair = tmp_path / "pair"
        shutil.copytree(tiny_encoder, pair)
        shutil.copytree(tiny_encoder, pair / "query")
        BertModel(BertConfig.from_pretrained(tiny_encoder)).save_pretrained(pair / "query")
        tiny_encoder = pair
    generated = api.generate(passages, out=tmp_path / "q", generator="keyphrase")
    settings = {"passages": passages, "retriever": tiny_encoder, "keep_at_least": 5}
    done = api.filter(generated, out=tmp_path / "f", **settings)
    rows = table(done)
    encoder, lookup = Retriever(str(tiny_encoder)), Lookup(passages)
    texts = [passage.content for passage in read_passages(passages)]
    of = np.array([lookup.find([r["passage"]])[r["passage"]][0] for r in rows])
    products = encoder.encode([r["query"] for r in rows], "query") @ encoder.encode(texts, "passage").T
    mine = products[np.arange(len(rows)), of][:, None]

    def is_place(ranks, scores, most):
        """Between those that are surely better and those that are not surely worse; 0 beyond the depth."""
        least, last = (scores > mine + 1e-4).sum(1) + 1, (scores > mine - 1e-4).sum(1)
        return [
            low <= rank <= high or (rank == 0 and high > most) for rank, low, high in zip(ranks, least, last)
        ]

    assert all(is_place([r["rank"] for r in rows], products, 100))
    assert len({r["rank"] for r in rows}) > 10


def test_a_killed_filter_goes_on_after_its_last_vectors(passages, tmp_path, tiny_encoder, monkeypatch):
    from qontext.models.retriever import Retriever
    from qontext.retrieve import encode

    monkeypatch.setattr(encode, "BLOCK", 10)
    generated = api.generate(passages, out=tmp_path / "q", generator="keyphrase")
    settings = {"passages": passages, "by": "retrieval", "retriever": tiny_encoder}
    whole = api.filter(generated, out=tmp_path / "whole", **settings)
    real, sizes = Retriever.encode_tokens, []

    def dies(self, tokens, *kind, **more):
        sizes.append(len(tokens))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return real(self, tokens, *kind, **more)

    monkeypatch.setattr(Retriever, "encode_tokens", dies)
    with pytest.raises(KeyboardInterrupt):
        api.filter(generated, out=tmp_path / "f", **settings)
    assert len(list((tmp_path / "f").glob("vectors-*.npy"))) == 2
    assert api.filter(generated, out=tmp_path / "f", **settings).digest == whole.digest
    assert sizes == [10, 10, 10, 10, 10, 200]  # two blocks were there already
