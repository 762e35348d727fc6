"""Every format, as it is published, in a file written here."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from qontext import api
from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.corpus.split import SplitConfig
from qontext.data.collection import Passage, read_passages
from qontext.data.records import Document
from qontext.frame.errors import QontextError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".xz": lzma.compress,
}


def read(path: Path | str, **names: str) -> list[Document]:
    """All documents of a source that must have no problems, and whose progress must add up."""
    source = open_source(str(path), fields=FieldNames(**names))
    items = list(source.documents())
    assert not [item for item in items if isinstance(item, Problem)], items
    assert source.bytes_read == source.bytes_total
    return [item for item in items if isinstance(item, Document)]


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


BEIR = lines(
    {"_id": "moon#0", "title": "Moon", "text": "It is grey.", "doc_id": "moon"},
    {"_id": "moon#1", "title": "Moon", "text": "It is far.", "doc_id": "moon"},
    {"_id": "sun#0", "title": "Sun", "text": "Hot — très.", "doc_id": "sun"},
)


def test_records_of_one_document_are_joined_and_keep_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", BEIR)
    assert read(path) == [
        Document(
            "moon",
            "Moon",
            "",
            f"{path}:1",
            (("moon#0", "It is grey."), ("moon#1", "It is far.")),
            passage_places=(f"{path}:1", f"{path}:2"),
        ),
        Document("sun", "Sun", "", f"{path}:3", (("sun#0", "Hot — très."),)),
    ]


def test_a_record_without_document_is_a_document_of_one_passage(tmp_path: Path) -> None:
    content = lines(
        {"id": 7, "text": "seven", "extra": [1]}, {"id": 7, "contents": "again"}, {"doc_id": "d", "body": "b"}
    )
    documents = read(write(tmp_path / "docs.jsonl", content))
    assert [(d.id, d.title, d.passages) for d in documents] == [
        ("7", "", (("7", "seven"),)),
        ("7", "", (("7", "again"),)),
        ("d", "", (("d", "b"),)),
    ]


def test_paragraphs_are_numbered_passages_without_the_empty_ones(tmp_path: Path) -> None:
    path = write(
        tmp_path / "docs.jsonl", lines({"_id": "9", "title": "T", "paragraphs": ["one", " \n", "", "two"]})
    )
    assert read(path) == [Document("9", "T", "", f"{path}:1", (("9#0", "one"), ("9#1", "two")))]


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    assert FieldNames.parse("id=key,text=main|abstract") == FieldNames(id="key", text="main|abstract")
    for wrong in ("ids=key", "key", "id=a,b"):
        with pytest.raises(QontextError, match="is not FIELD=NAME"):
            FieldNames.parse(wrong)
    path = write(
        tmp_path / "docs.jsonl", lines({"key": "k", "head": "h", "abstract": "a", "of": "d", "id": "no"})
    )
    documents = read(path, id="key", title="head", text="main|abstract", doc="of")
    assert documents == [Document("d", "h", "", f"{path}:1", (("k", "a"),), metadata='{"id": "no"}')]


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_in_one_or_several_frames(tmp_path: Path, ending: str) -> None:
    half = BEIR.index(b"\n") + 1
    compress = COMPRESS[ending]
    path = write(tmp_path / f"corpus.jsonl{ending}", compress(BEIR[:half]) + compress(BEIR[half:]))
    assert [len(d.passages) for d in read(path)] == [2, 1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_other_encodings_byte_order_marks_and_line_ends(tmp_path: Path, encoding: str) -> None:
    content = '{"id": "1", "text": "déjà"}\r\n\r\n{"id": "2", "text": "vu"}'
    path = write(tmp_path / "docs.jsonl", content.encode(encoding))
    source = open_source(str(path), fields=FieldNames(), encoding=encoding.removesuffix("-sig"))
    assert [d.passages[0][1] for d in source.documents() if isinstance(d, Document)] == ["déjà", "vu"]


def test_msmarco_passages(tmp_path: Path) -> None:
    path = write(tmp_path / "collection.tsv", b'0\tThe "presence" of x.\n1\t"Quoted\n')
    source = open_source(str(path), fields=FieldNames())
    assert source.has_passages
    assert list(source.documents()) == [
        Document("0", "", "", f"{path}:1", (("0", 'The "presence" of x.'),)),
        Document("1", "", "", f"{path}:2", (("1", '"Quoted'),)),
    ]


def test_msmarco_documents_keep_title_and_text_apart(tmp_path: Path) -> None:
    content = gzip.compress(b"D1\thttp://x/y\tA title\tThe body.\nD2\thttp://z\t\tMore.\n")
    path = write(tmp_path / "msmarco-docs.tsv.gz", content)
    source = open_source(str(path), fields=FieldNames())
    assert not source.has_passages
    assert list(source.documents()) == [
        Document("D1", "A title", "The body.", f"{path}:1", metadata='{"url": "http://x/y"}'),
        Document("D2", "", "More.", f"{path}:2", metadata='{"url": "http://z"}'),
    ]


def test_documents_that_judgments_name_keep_their_ids(tmp_path: Path) -> None:
    """Split, a document is D1#0, D1#1 …; kept, it is D1."""
    path = write(tmp_path / "msmarco-docs.tsv", b"D1\thttp://x/y\tA title\tThe body. It ends.\n")
    passages = api.split(path, keep=True, max_tokens=5, out=tmp_path / "kept")
    assert list(read_passages(passages.path)) == [Passage("D1", "A title", "The body. It ends.", "D1")]
    parts = api.split(path, max_tokens=6, out=tmp_path / "split")
    assert [passage.id for passage in read_passages(parts.path)] == ["D1#0", "D1#1"]


@pytest.mark.parametrize("first", ["Chapter 1\tThe mill", "\tThe mill"])
def test_a_text_may_have_a_tab_in_its_first_line(tmp_path: Path, first: str) -> None:
    text = f"{first}\n\nIt stands by the river.\nIt grinds flour.\n"
    (document,) = read(write(tmp_path / "a.txt", text.encode()))
    assert [block.text.strip() for block in document.blocks][-1].endswith("It grinds flour.")
    (row,) = read(write(tmp_path / "b.txt", b"7\tIt grinds flour.\n"))
    assert row.id == "7"


def test_dpr_passages_of_one_title_are_a_document_and_are_unquoted(tmp_path: Path) -> None:
    content = (
        b"id\ttext\ttitle\n"
        b'1\t"Aaron (or ""Aharon"") is a prophet."\tAaron\n'
        b"2\tHe had a rod.\tAaron\n"
        b'3\t"A tab\there."\t"A ""quoted"" title"\n'
    )
    documents = read(write(tmp_path / "psgs_w100.tsv", content))
    assert [(d.id, d.title, d.passages) for d in documents] == [
        ("1", "Aaron", (("1", 'Aaron (or "Aharon") is a prophet.'), ("2", "He had a rod."))),
        ("3", 'A "quoted" title', (("3", "A tab\there."),)),
    ]


def test_a_header_names_columns_in_any_order_and_in_every_shard(tmp_path: Path) -> None:
    for n in (0, 1):
        write(tmp_path / "shards" / f"{n}.tsv", f"doc_id\tbody\tlang\tid\nd\ttext {n}\ten\tp{n}\n".encode())
    assert [(d.id, d.passages) for d in read(tmp_path / "shards")] == [
        ("d", (("p0", "text 0"), ("p1", "text 1")))
    ]


def test_parquet_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for n in (0, 1):
        rows = {
            "id": [2 * n, 2 * n + 1],
            "text": ["a", "b"],
            "doc_id": ["d", f"e{n}"],
            "other": [b"\0", None],
        }
        pq.write_table(pa.table(rows), folder / f"part-{n}.parquet", row_group_size=1)
    (folder / "README.md").write_text("# not a document")
    documents = read(folder)
    assert [(d.id, [i for i, _ in d.passages]) for d in documents] == [
        ("d", ["0"]),
        ("e0", ["1"]),
        ("d", ["2"]),
        ("e1", ["3"]),
    ]
    assert documents[2].place == f"{folder / 'part-1.parquet'}: row 1"
    nested = pa.table(
        {"_id": ["x"], "paragraphs": [["one", "two"]], "title": pa.array(["T"]).dictionary_encode()}
    )
    pq.write_table(nested, tmp_path / "nested.parquet")
    assert read(tmp_path / "nested.parquet")[0].passages == (("x#0", "one"), ("x#1", "two"))


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_beir_folder_is_its_corpus_file(tmp_path: Path, ending: str) -> None:
    compress = COMPRESS[ending]
    write(tmp_path / f"corpus.jsonl{ending}", compress(BEIR))
    write(tmp_path / "queries.jsonl", lines({"_id": "q", "text": "what?"}))
    assert [d.id for d in read(tmp_path)] == ["moon", "sun"]


def test_shards_are_read_in_order_as_one(tmp_path: Path) -> None:
    cut = BEIR.index(b"\n") + 1
    write(tmp_path / "b.jsonl.gz", gzip.compress(BEIR[cut:]))
    write(tmp_path / "a.jsonl", BEIR[:cut])
    write(tmp_path / ".c.jsonl", b"hidden")
    write(tmp_path / "info.json", b"{}")
    assert [len(d.passages) for d in read(tmp_path)] == [2, 1]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "\ufeffPlain\r\ntext.".encode())
    write(tmp_path / "a" / "z.md", b"intro\n\n```\n# no heading\n```\n\n## The *heading* ##\n\nBody.")
    write(tmp_path / "a" / "y.md", b"A title\n=======\n\nBody.")
    write(tmp_path / "a" / "x.rst", b"#########\n The title\n#########\n\nBody.")
    write(tmp_path / "c.MD", b"no heading here")
    write(tmp_path / "a" / ".hidden.txt", b"x")
    write(tmp_path / ".git" / "x.txt", b"x")
    write(tmp_path / "picture.png", b"x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    source = open_source(str(tmp_path), fields=FieldNames())
    assert not source.has_passages
    documents = read(tmp_path)
    assert [(d.id, d.title) for d in documents] == [
        ("a/x.rst", "The title"),
        ("a/y.md", "A title"),
        ("a/z.md", "The heading"),
        ("b.txt", "b"),
        ("c.MD", "c"),
    ]
    assert documents[3].content == "Plain\ntext."
    assert documents[3].place == str(tmp_path / "b.txt")


def test_text_is_read_whatever_its_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "docs" / "Mail.pm", b"package Mail;\n\nsub send { }\n")
    write(tmp_path / "docs" / "Guide.pod", "=head1 NAME\n\nMail — sends caf\u00e9 letters.\n".encode())
    write(tmp_path / "docs" / "old.log", "Le caf\u00e9 est ferm\u00e9.\n".encode("cp1252"))
    write(tmp_path / "docs" / "changelog.Debian.gz", gzip.compress(b"mail (1.2) unstable; urgency=low\n"))
    write(tmp_path / "docs" / "program", b"\x7fELF\2\1\1\0\0\0")
    write(tmp_path / "docs" / "noise.bin", bytes(range(256)) * 8)
    write(tmp_path / "docs" / "data.json", b"{}")
    source = open_source(str(tmp_path / "docs"), fields=FieldNames())
    texts = {d.id: d.content for d in read(tmp_path / "docs")}
    assert texts.keys() == {"Mail.pm", "Guide.pod", "old.log", "changelog.Debian.gz"}
    assert texts["old.log"] == "Le café est fermé.\n" and "café" in texts["Guide.pod"]
    assert dict(source.unread) == {".bin": 1, ".json": 1, "no ending": 1}
    api.split(tmp_path / "docs", out=tmp_path / "out")
    said = " ".join(capsys.readouterr().err.split())
    assert "3 files (1 .pod, 1 .pm, 1 .log) of unknown kinds read as text" in said, said
    assert read(tmp_path / "docs" / "Mail.pm")[0].content.startswith("package Mail;")


def test_an_ending_is_read_as_the_format_that_is_named(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    write(docs / "Mail.PM", b"package Mail;\n")
    write(docs / "long.pm.gz", gzip.compress(b"sub send { } " * 200))
    write(docs / "guide.foo", b"# A guide\n\nA *boat*.\n")
    write(docs / "note.json", b"A note.")
    write(docs / "b.jsonl", b'{"_id": "1"}\n' * 9)
    pairs = ("pm=text", ".Foo=markdown", "json=text", "jsonl=code")
    split = api.split(docs, read_as=pairs, workers=1, out=tmp_path / "out")
    passages = {p.doc: (p.title, p.text[:13].strip()) for p in [*read_passages(split)][::-1]}
    assert passages == {
        "Mail.PM": ("Mail", "package Mail;"),
        "long.pm.gz": ("long", "sub send { }"),
        "guide.foo": ("A guide", "A boat."),
        "note.json": ("note", "A note."),
        "b.jsonl": ("b.jsonl", '{"_id": "1"}'),
    }
    assert "not_read" not in split.summary
    one = api.split(docs / "note.json", read_as=("json=text",), workers=1, out=tmp_path / "one")
    assert one.summary["documents"] == 1


def test_what_is_read_as_what_is_part_of_the_identity(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "a.foo", b"# A\n\nA boat.\n")
    api.split(tmp_path / "docs", workers=1, out=tmp_path / "out")
    with pytest.raises(QontextError, match=r"read_as was \[\] and is now"):
        api.split(tmp_path / "docs", read_as=("foo=markdown",), workers=1, out=tmp_path / "out")
    made = [
        SplitConfig(source="docs", read_as=pairs).identity()
        for pairs in (("b=rst", "a=text"), (".A=text", "B=rst"))
    ]
    assert made[0] == made[1]


def test_rows_of_csv_name_their_columns(tmp_path: Path) -> None:
    write(tmp_path / "people.csv", b'name;born;note\r\nAda;1815;"two\r\nlines"\r\n\r\nAlan;1912;\r\n')
    (document,) = read(tmp_path / "people.csv")
    assert [(block.text, block.line) for block in document.blocks] == [
        ("name: Ada; born: 1815; note: two lines", 2),
        ("name: Alan; born: 1912", 5),
    ]


def test_texts_without_an_ending(tmp_path: Path) -> None:
    for name in ("README", "zlib/copyright", "NEWS.Debian", "CHANGES.gz", "data", "README.png", "notes.xyz"):
        write(tmp_path / name, gzip.compress(b"Words.") if name.endswith(".gz") else b"Words.")
    source = open_source(str(tmp_path), fields=FieldNames())
    others = ["data", "notes.xyz"]
    named = ["CHANGES.gz", "NEWS.Debian", "README", "zlib/copyright"]
    assert sorted(d.id for d in read(tmp_path)) == sorted([*named, *others])
    assert source.unread == {".png": 1} and source.as_text == {"no ending": 1, ".xyz": 1}
    assert read(tmp_path / "README")[0].content == "Words."


@pytest.mark.parametrize(
    ("records", "ids", "unread"),
    [(1, ["a.md", "b/c.txt"], {".jsonl": 1}), (9, ["r"] * 9, {".md": 1, ".txt": 1})],
)
def test_a_folder_holds_documents_or_records_whichever_are_larger(
    tmp_path: Path, records: int, ids: list[str], unread: dict[str, int]
) -> None:
    write(tmp_path / "few.jsonl", b'{"_id": "r", "text": "Some words."}\n' * records)
    write(tmp_path / "a.md", b"Some words, and some more of them.")
    write(tmp_path / "b" / "c.txt", b"Some words, and some more of them.")
    source = open_source(str(tmp_path), fields=FieldNames())
    assert [d.id for d in read(tmp_path)] == ids
    assert source.unread == unread
