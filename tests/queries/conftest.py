"""Small passages, a small sequence-to-sequence model and a chat server, shared by the tests of this folder."""

from __future__ import annotations

import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.tiny import CHAT, save_bert, save_llama

from qontext.data import records

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


NAMES = ["moss", "fern", "birch", "pine", "oak", "elm", "ash", "yew"]
NAMES += ["rose", "lily", "iris", "daisy", "clover", "thyme", "sage", "mint"]


@pytest.fixture
def labeled(tmp_path):
    """A labeled set in which the question is always 'what is NAME' for a passage about NAME."""
    from tests.tiny import write_collection

    passages = [
        {"_id": f"p{n}", "title": "", "text": f"{name} is a plant that grows in a garden"}
        for n, name in enumerate(NAMES)
    ]
    queries = [{"_id": f"q{n}", "text": f"what is {name}"} for n, name in enumerate(NAMES)]
    splits = {"train": range(16), "dev": range(12, 16)}
    qrels = {name: {f"q{n}": f"p{n}" for n in numbers} for name, numbers in splits.items()}
    return str(write_collection(tmp_path / "labeled", passages, queries, qrels))


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory):
    """A random T5 of one layer and a tokenizer that is trained here."""
    from qontext.queries.train_generator import from_scratch

    model, tokenizer = from_scratch(1, 32, 2, TEXTS * 3, 120, seed=1)
    folder = tmp_path_factory.mktemp("tiny-t5")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A random decoder-only model whose tokenizer has a chat template."""
    return save_llama(tmp_path_factory.mktemp("tiny-llama"), TEXTS, CHAT)


@pytest.fixture(scope="session")
def plain_llama(tmp_path_factory):
    """The same model without a chat template."""
    return save_llama(tmp_path_factory.mktemp("plain-llama"), TEXTS)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory, minilm):
    """A random encoder on MiniLM's tokenizer."""
    return save_bert(tmp_path_factory.mktemp("encoder"), minilm, num_hidden_layers=1, intermediate_size=16)


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


class Server:
    """Answers with the behaviors in `script`, one per request, then well. Keeps what it was asked.

    A behavior is the name of a method with its argument, or the bytes of a body, or of a whole reply.
    """

    def __init__(self):
        self.script, self.requests, self.headers, self.open, self.most_open = [], [], [], 0, 0
        self.answer = lambda body: json.dumps([f"what is number {n}?" for n in range(5)])
        self.guard = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with owner.guard:
                    owner.requests.append(body)
                    owner.headers.append(dict(self.headers))
                    owner.open += 1
                    owner.most_open = max(owner.most_open, owner.open)
                    behavior = owner.script.pop(0) if owner.script else "well"
                try:
                    if isinstance(behavior, bytes) and behavior.startswith(b"HTTP/"):
                        self.wfile.write(behavior)
                    elif isinstance(behavior, bytes):
                        owner.reply(self, 200, behavior)
                    else:
                        name, _, argument = behavior.partition(" ")
                        getattr(owner, name)(self, body, argument)
                finally:
                    with owner.guard:
                        owner.open -= 1

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def reply(self, handler, status, content, **headers):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    def well(self, handler, body, _):
        usage = {"prompt_tokens": 100, "completion_tokens": 20}
        value = {"choices": [{"message": {"content": self.answer(body)}}], "usage": usage}
        self.reply(handler, 200, json.dumps(value).encode())

    def status(self, handler, body, code):
        reply = {"error": {"message": f"no: {handler.headers.get('Authorization', '')}"}}
        self.reply(handler, int(code), json.dumps(reply).encode())

    def garbage(self, handler, body, _):
        self.reply(handler, 200, b"\x00\xff<html>not what you asked for</html>")

    def half(self, handler, body, _):
        self.reply(handler, 200, b'{"choices": [{"mess', Content_Length="500")

    def reset(self, handler, body, _):
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()


@pytest.fixture
def server(monkeypatch):
    """A chat server that misbehaves on request, and no long pauses between attempts."""
    from qontext.queries.generators.llm import Chat

    monkeypatch.setattr(Chat, "first_pause", 0.01)
    server_started = Server()
    yield server_started
    server_started.http.shutdown()
