"""Addresses and keys: refused before any work, and no key in any message or file, whatever goes wrong."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading

import pytest

from qontext import api
from qontext.frame.errors import QontextError
from qontext.queries.generate import GenerateConfig
from qontext.queries.generators import chat
from qontext.queries.generators.chat import Chat, check_endpoint, hide, read_key

KEY = "sk-canary-Q7w3Zr9Lx2Vb5Nt8"


def leaks(text):
    """True if eight characters of the key stand in a row in the text."""
    return any(KEY[i : i + 8] in text for i in range(len(KEY) - 7))


@pytest.fixture
def passages(write_passages, passage):
    return write_passages([passage(n) for n in range(3)])


def generate(passages, out, endpoint, **settings):
    return api.generate(
        passages, out=out, generator="llm", chat_model="m", endpoint=endpoint, **{"retries": 0, **settings}
    )


@pytest.mark.parametrize(
    "endpoint",
    ["http://h:99999/v1", "http://h:0/v1", "http://h:-1/v1", "http://h:abc/v1", "http://[::1/v1", "http://a..b/v1",
     "http://h/ü", "http://ü/v1", "ftp://h/v1", "http://", "http:///v1", "h/v1", "localhost:8000", "", " ", "http://h/a b",
     " http://h", "http://h\n", "http://h/\x00", "file:///etc/passwd", f"http://{'a' * 64}.org", "http://" + "x" * 9000,
     "http://[::g]/v1", f"http://u:{KEY}@h/v1", f"http://{KEY}@h", f"http://h/v1?key={KEY}", f"http://h/v1#{KEY}",
     f"http://u:{KEY}@h:99999", f"//u:{KEY}@h", f"u:{KEY}@h"],
)  # fmt: skip
def test_a_bad_address_is_refused_before_any_work(passages, tmp_path, endpoint):
    with pytest.raises(QontextError, match=r"the address of the endpoint|contains a NUL") as error:
        generate(passages, tmp_path / "q", endpoint)
    assert not (tmp_path / "q").exists() and not leaks(str(error.value)) and len(str(error.value)) < 2000
    settings = {"passages": "none yet", "generator": "llm", "chat_model": "m", "endpoint": endpoint}
    with pytest.raises(
        QontextError, match=r"the address of the endpoint|contains a NUL"
    ):  # as a recipe does before its first step
        GenerateConfig.make(settings, where="generate")
    with pytest.raises(QontextError, match=r"the address of the endpoint|contains a NUL") as error:
        api.adapt(passages, out=str(tmp_path / "a"), generator="llm", generator_model="m", endpoint=endpoint)
    assert not (tmp_path / "a").exists() and not leaks(str(error.value))


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:8000/v1", "https://h", "HTTP://h/", "http://[::1]:80/v1", "http://a_b.c./"]
)
def test_a_good_address_is_taken(endpoint):
    check_endpoint(endpoint)


def test_blanks_around_a_key_are_not_sent(server, passages, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\r\n")
    generate(passages, tmp_path / "q", server.address, key_variable="MY_KEY")
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [("MY_KEY", f"{KEY}\n{KEY}", "line breaks"), ("MY_KEY", f"{KEY}é", "non-ASCII"), ("MY_KEY", f"a {KEY}", "spaces"),
     ("MY_KEY", "", "is not set"), ("MY_KEY", " \n", "is not set"), (KEY, "", "not the name"),
     (KEY.replace("-", ""), "", "is not set")],
)  # fmt: skip
def test_a_key_that_cannot_be_sent_is_not_repeated(
    server, passages, tmp_path, monkeypatch, variable, value, says
):
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(QontextError, match=says) as error:
        generate(passages, tmp_path / "q", server.address, key_variable=variable)
    assert not leaks(str(error.value)) and not server.requests
    monkeypatch.setenv("OPENAI_API_KEY", "\n")
    assert read_key("OPENAI_API_KEY", needed=False) is None


@pytest.mark.parametrize(
    "options",
    [{"api_key": KEY}, {"extra": [{"X-API-Key": KEY}]}, {"headers": {"Authorization": KEY}}, {"PASSWORD": KEY},
     {"auth_token": KEY}],
    ids=str,
)  # fmt: skip
def test_options_that_would_record_a_key_are_refused(passages, tmp_path, options):
    with pytest.raises(QontextError, match="options are recorded") as error:
        generate(passages, tmp_path / "q", "http://127.0.0.1:9", chat_options=json.dumps(options))
    assert not leaks(str(error.value)) and not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    "options",
    ["[" * 100_000, '{"a": NaN}', '{"a": ' + "[" * 900 + "]" * 900 + "}", "", "3", '{"a": Infinity}'],
)
def test_options_that_are_not_json_are_refused(passages, tmp_path, options):
    if options.startswith('{"a": ['):  # deep, but JSON: taken, if it can be written again
        options = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(QontextError, match="--chat-options is not"):
        generate(passages, tmp_path / "q", "http://127.0.0.1:9", chat_options=options)


def test_ordinary_options_are_taken(server, passages, tmp_path):
    generate(
        passages, tmp_path / "q", server.address, chat_options='{"max_tokens": 9, "stop_token_ids": [1]}'
    )
    assert server.requests[0]["stop_token_ids"] == [1]


@pytest.mark.parametrize("before", ["", "x", KEY[:5]])
@pytest.mark.parametrize(
    "shown", [KEY, KEY[:9], KEY[-9:], KEY[3:15], KEY * 2, KEY[:-1] + "…", f"{KEY}, {KEY}"]
)
def test_pieces_of_a_key_are_hidden(before, shown):
    hidden = hide(f"{before}{shown} is wrong", KEY)
    assert not leaks(hidden) and "***" in hidden and hidden.endswith(" is wrong")


def test_what_is_not_the_key_is_shown():
    text = "sk-can I have 7w3Zr9? " * 20
    assert hide(text, KEY) == text == hide(text, None)
    assert hide("abcab", "ab") == "***c***"


def answer_saying(text):
    return json.dumps({"error": {"message": text}}).encode()


ECHOES = {
    "plain": f"the key {KEY} is not known".encode(),
    "json": answer_saying(f"Bearer {KEY}"),
    "cut off": answer_saying("x" * 180 + KEY),
    "end of what is shown": b"x" * 190 + KEY.encode(),
    "long": answer_saying("x" * 660 + KEY + "y" * 9000),
    "cut by the server": answer_saying(KEY[:20]),
    "escaped": answer_saying(KEY).replace(b"-", b"\\u002d"),
    "a list": json.dumps([KEY, {"error": KEY}]).encode(),
    "deep": b"[" * 100_000 + KEY.encode(),
    "a field's name": json.dumps({KEY: 1}).encode(),
    "a URL": answer_saying(f"https://u:{KEY}@h/v1?key={KEY}"),
    "in a completion": json.dumps({"choices": [{"message": {"content": None, "refusal": KEY}}]}).encode(),
}
HEADS = {
    "ok": b"HTTP/1.1 200 OK",
    **{
        str(code): f"HTTP/1.1 {code} {KEY}".encode()
        for code in (204, 302, 308, 400, 401, 403, 404, 418, 429, 500, 599)
    },
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_server_that_repeats_the_key_does_not_make_us_repeat_it(
    server, passages, tmp_path, monkeypatch, capfd, head, echo
):
    monkeypatch.setenv("MY_KEY", KEY)
    location = f"Location: http://u:{KEY}@h/?key={KEY}\r\nRetry-After: {KEY}\r\nX-{KEY}: {KEY}\r\n\r\n"
    server.script = [head + b"\r\n" + location.encode() + echo] * 9
    with pytest.raises(QontextError) as error:
        generate(passages, tmp_path / "q", server.address, key_variable="MY_KEY", concurrency=1)
    spoken = capfd.readouterr()
    assert "endpoint" in str(error.value) or "got no reply" in str(error.value)
    assert not leaks(str(error.value) + spoken.out + spoken.err) and len(str(error.value)) < 2000
    assert server.headers[0]["Authorization"].endswith(KEY)


@pytest.mark.parametrize(
    "reply",
    [f"{KEY}\r\n\r\n", f"HTTP/1.1 {KEY}\r\n\r\n", f"HTTP/9.9 200 {KEY}\r\n\r\n",
     f"HTTP/1.1 200 OK\r\nA\r\n{KEY}: {KEY}\r\n\r\n{KEY}",
     f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n{KEY}",
     f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n",
     f"HTTP/1.1 200 OK\r\n{'x' * 70000}{KEY}"],
    ids=["no HTTP", "status", "version", "header", "length", "chunk", "long line"],
)  # fmt: skip
def test_a_broken_reply_with_the_key_in_it(server, monkeypatch, reply):
    head = reply.encode()
    server.script = ["raw"] * 2
    server.raw = lambda handler, body, _: handler.wfile.write(head)
    with pytest.raises(chat.CallFailed) as error:
        Chat(server.address, KEY, retries=1).ask({})
    assert not leaks(str(error.value))


def tls_server(folder, *, plain):
    """The address of a server whose certificate nobody signed, or that does not speak TLS at all."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not plain:
        certificate, key = folder / "cert.pem", folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context.load_cert_chain(certificate, key)

    def serve():
        while True:
            connection, _ = listener.accept()
            try:
                if plain:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                else:
                    context.wrap_socket(connection, server_side=True)
            except OSError:
                pass
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"https://localhost:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize(("plain", "says"), [(True, "does not speak TLS"), (False, "certificate")])
def test_tls_that_fails_stops_at_once(passages, tmp_path, monkeypatch, plain, says):
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(QontextError, match=says) as error:
        generate(
            passages, tmp_path / "q", tls_server(tmp_path, plain=plain), key_variable="MY_KEY", retries=9
        )
    assert not leaks(str(error.value))


def test_no_key_in_a_traceback_a_recipe_a_log_or_a_description(server, passages, tmp_path, warm):
    """A recipe in a process of its own, with every message on: it fails, resumes, and leaves no key anywhere."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[generate]\npassages = "{passages}"\ngenerator = "llm"\nchat_model = "m"\nendpoint = "{server.address}"\n'
        'key_variable = "MY_KEY"\nretries = 1\n'
    )
    argv = ["run", str(recipe), "--out", str(tmp_path / "run"), "-v", "--debug", "--trust"]
    argv += ["--set", "generate.key_variable=MY_KEY"]  # of which the file has only the name
    for script, code in ((["status 401"], 2), (["status 500"], 0)):
        server.script = list(script)
        running = warm.launch({"argv": argv}, tmp_path / "said", MY_KEY=KEY)
        assert running.wait() == {code}, running.text()
        assert not leaks(running.text())
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    encoded = base64.b64encode(KEY.encode()).decode()
    assert len(files) > 1
    assert not any(
        leaks(text) or encoded in text for text in (f.read_bytes().decode("latin-1") for f in files)
    )
