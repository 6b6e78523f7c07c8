"""Against a real server on 127.0.0.1, which is listed in `http_hosts` where it is to be reached."""

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from omnirl.errors import MediaError
from omnirl.media import Sources, load_image
from omnirl.media.fetch import _is_public
from tests.media.corpus import noise, save

PICTURE = noise(8, 8, 3)
BODY = save(PICTURE, "PNG")


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        getattr(self, self.path.strip("/").partition("?")[0].replace("-", "_"))()

    def answer(self, status=200, body=b"", **headers):
        self.send_response(status)
        for key, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def picture(self):
        self.answer(body=BODY)

    def page(self):
        self.answer(body=b"<html>please log in</html>")

    def missing(self):
        self.answer(404, b"<html>404</html>")

    def moved(self):
        self.answer(302, Location="/picture")

    def loop(self):
        self.answer(302, Location="/loop")

    def to_file(self):
        self.answer(302, Location="file:///etc/passwd")

    def to_private(self):
        self.answer(307, Location=f"http://localhost:{self.server.server_port}/picture")

    def gzipped(self):
        self.answer(body=BODY, Content_Encoding="gzip")

    def large(self):
        self.answer(**{"Content-Length": 10**9})

    def endless(self):
        self.send_response(200)
        self.end_headers()
        self.write_on(bytes(4096), 0)

    def dripping(self):
        self.send_response(200)
        self.end_headers()
        self.write_on(b"x", 0.05)

    def slow_headers(self):
        self.write_on(b"HTTP/1.1 200 OK\r\nX-A: ", 0.05)

    def silent(self):
        time.sleep(1)

    def cut(self):
        self.answer(body=BODY[:20], **{"Content-Length": len(BODY)})

    def write_on(self, data, pause):
        end = time.monotonic() + 3
        try:
            while time.monotonic() < end:
                self.wfile.write(data)
                self.wfile.flush()
                time.sleep(pause)
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ALLOWED = Sources(allow_http=True, http_hosts=frozenset({"127.0.0.1"}), fetch_timeout_s=0.4, max_bytes=50_000)


@pytest.mark.parametrize("path", ["picture", "moved", "picture?size=1#part"])
def test_a_picture_is_fetched(url, path):
    pixels = load_image(ALLOWED.read(f"{url}/{path}", name="it"), name="it").pixels
    np.testing.assert_array_equal(pixels, PICTURE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "HTTP status 404"),
        ("loop", "more than 5 redirects"),
        ("to_file", "redirected to file:///etc/passwd, which is neither http nor https"),
        ("to_private", r"localhost is (127.0.0.1|::1), which is not a public address"),
        ("gzipped", "compressed body"),
        ("large", r"1000000000 bytes are over the limit of 50000; .*`media.max_bytes`"),
        ("endless", r"more than 50000 bytes are over the limit of 50000"),
        ("dripping", r"did not answer in whole within 0.4 s \(`media.fetch_timeout_s`\)"),
        ("slow_headers", "did not answer in whole within 0.4 s"),
        ("silent", "did not answer in whole within 0.4 s"),
        ("cut", "cannot be fetched"),
    ],
)
def test_what_a_server_may_do_wrong(url, path, message):
    start = time.monotonic()
    with pytest.raises(MediaError, match=f"^row 17: .*{message}"):
        ALLOWED.read(f"{url}/{path}", name="row 17")
    assert time.monotonic() - start < 2


def test_an_error_page_is_no_picture(url):
    with pytest.raises(MediaError, match="row 17: not a picture but an HTML or XML page"):
        load_image(ALLOWED.read(f"{url}/page", name="row 17"), name="row 17")


def test_private_addresses_need_to_be_listed_and_http_to_be_allowed(url):
    with pytest.raises(MediaError, match=r"it: 127.0.0.1 is 127.0.0.1, which is not a public address; .*`media.http_hosts`"):
        Sources(allow_http=True).read(f"{url}/picture", name="it")
    with pytest.raises(MediaError, match=r"it: http is not allowed; .*`media.allow_http=true`"):
        Sources().read(f"{url}/picture", name="it")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        *((address, False) for address in (
            "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
            "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
            "2002:7f00:1::", "192.0.2.1",
        )),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address, public):
    assert _is_public(address) is public


@contextmanager
def resolving(monkeypatch, *answers, pause=0.0):
    def getaddrinfo(host, port, **_):
        time.sleep(pause)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, port)) for answer in answers]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield


def test_a_name_with_one_private_address_is_refused(monkeypatch):
    with resolving(monkeypatch, "8.8.8.8", "10.0.0.1"), pytest.raises(MediaError, match=r"pictures.example is 10.0.0.1"):
        Sources(allow_http=True).read("http://pictures.example/a.png", name="it")


def test_a_slow_resolver_is_not_waited_for(monkeypatch):
    sources = Sources(allow_http=True, fetch_timeout_s=0.1)
    with resolving(monkeypatch, "8.8.8.8", pause=0.5), pytest.raises(MediaError, match=r"within 0.1 s"):
        sources.read("http://pictures.example/a.png", name="it")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("http://", "neither http nor https"),
        ("http://user:secret@127.0.0.1/a.png", "holds a user name"),
        ("http://127.0.0.1:99999/a.png", "cannot be fetched"),
        ("http://[::1/a.png", "cannot be fetched"),
        ("http://127.0.0.1:1/a b.png", "cannot be fetched"),
        ("http://bücher.example/ü.png", "outside of ASCII"),
        ("http://127.0.0.1:1/a.png", "cannot be fetched"),
    ],
)
def test_urls_that_cannot_be_fetched(bad, message):
    with pytest.raises(MediaError, match=f"^it: .*{message}"):
        ALLOWED.read(bad, name="it")
