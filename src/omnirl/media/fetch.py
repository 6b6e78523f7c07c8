"""http(s) URL → bytes, to public addresses only, within one deadline and one limit of bytes.

Every connection, also those of redirects, resolves its host once, refuses it unless all its addresses are public, and connects
to the address that was checked. Proxies of the environment are not used. The body is asked for uncompressed.

Example:
    fetch("https://example.org/17.png", name="row 17", limits=FetchLimits(timeout_s=10.0, max_bytes=2**26))
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

from omnirl.errors import DeadlineExceeded, MediaError
from omnirl.types import Deadline

from .files import too_large

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SCHEMES = frozenset({"http", "https"})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    OSError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`timeout_s`: for the whole fetch. `hosts`: names or addresses that may be private."""

    timeout_s: float = 10.0
    max_bytes: int = 64 * 2**20
    hosts: frozenset[str] = frozenset()


def fetch(url: str, *, name: str, limits: FetchLimits) -> bytes:
    """Raises `MediaError`: an address that is not public, a status other than 200, too slow, too large, or no connection."""
    deadline = Deadline.after(limits.timeout_s)
    try:
        with httpcore.ConnectionPool(network_backend=_Guard(name, limits, deadline), max_connections=1) as pool:
            for _ in range(MAX_REDIRECTS + 1):
                found = _get(pool, _checked(url, name), name, limits, deadline)
                if isinstance(found, bytes):
                    return found
                if urlsplit(url).scheme == "https" and urlsplit(found).scheme == "http":
                    raise MediaError(f"{name}: redirected from https to {found}; give the https address")
                url = found
    except MediaError:
        raise
    except (DeadlineExceeded, httpcore.TimeoutException) as error:
        raise MediaError(
            f"{name}: {url} did not answer in whole within {limits.timeout_s:g} s (`media.fetch_timeout_s`)"
        ) from error
    except _FAILURES as error:
        raise MediaError(f"{name}: {url} cannot be fetched ({error or type(error).__name__})") from error
    raise MediaError(f"{name}: more than {MAX_REDIRECTS} redirects, the last to {url}")


def _checked(url: str, name: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise MediaError(f"{name}: redirected to {url:.200}, which is neither http nor https")
    if not url.isascii():
        raise MediaError(f"{name}: the URL holds characters outside of ASCII; write them percent-encoded, a host name as xn--…")
    if parts.username is not None:
        raise MediaError(f"{name}: the URL holds a user name; make the picture readable without one, or save it to a file")
    return url


def _get(pool: httpcore.ConnectionPool, url: str, name: str, limits: FetchLimits, deadline: Deadline) -> bytes | str:
    """The body, or the URL of a redirect."""
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), limits.timeout_s)  # the guard shortens them
    headers = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "omnirl")]
    with pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response:
        found = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in response.headers}
        if response.status in _REDIRECTS and "location" in found:
            return urljoin(url, found["location"])
        if response.status != 200:
            raise MediaError(f"{name}: {url} answered with HTTP status {response.status}; check the address")
        if found.get("content-encoding", "identity") != "identity":
            raise MediaError(f"{name}: {url} sends a compressed body, though asked not to; save the picture to a file")
        if (length := found.get("content-length", "0")).isdecimal() and int(length) > limits.max_bytes:
            raise too_large(name, length, limits.max_bytes)
        body = bytearray()
        for chunk in response.iter_stream():
            body += chunk
            if len(body) > limits.max_bytes:
                raise too_large(name, f"more than {limits.max_bytes}", limits.max_bytes)
            deadline.check(url)
        return bytes(body)


class _Guard(httpcore.NetworkBackend):
    """Connects to checked addresses, and gives every operation what is left of the deadline."""

    def __init__(self, name: str, limits: FetchLimits, deadline: Deadline) -> None:
        self._name, self._limits, self._deadline = name, limits, deadline
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = _resolve(host, port, self._deadline)
        if host not in self._limits.hosts and (private := [a for a in addresses if not _is_public(a)]):
            raise MediaError(
                f"{self._name}: {host} is {private[0]}, which is not a public address; save the picture to a file, or list the "
                "host in `media.http_hosts`"
            )
        stream = self._backend.connect_tcp(addresses[0], port, _left(self._deadline), local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    """A stream whose operations end with the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _left(self._deadline)), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(deadline: Deadline) -> float:
    deadline.check("the fetch")
    return max(deadline.remaining(), 1e-3)


def _resolve(host: str, port: int, deadline: Deadline) -> list[str]:
    """Addresses of `host`. The system's resolver knows no deadline, so a thread waits for it."""
    found: list[str] = []
    failed: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(OSError(str(error)))

    _run(look_up, _left(deadline))
    if failed:
        raise failed[0]
    if not found:
        raise DeadlineExceeded(f"the name {host} was not resolved within {deadline.seconds:g} s")
    return found


def _run(work: Callable[[], None], seconds: float) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


def _is_public(address: str) -> bool:
    """False for private, loopback, link-local, shared, reserved and multicast addresses, also inside of an IPv6 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None and not _is_public(str(inner)):
            return False
    return ip.is_global and not ip.is_multicast
