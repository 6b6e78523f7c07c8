"""Where a picture comes from: a path, `file://`, a data URL or http(s) → its bytes, within what a recipe allows.

Example:
    sources = Sources(root=Path("/data"), allow_http=False)
    sources.read("images/17.png", base="/data/clevr", name="images/17.png (prompt 'p')")
    sources.read("data:image/png;base64,iVBORw0…", name="messages[0].content[0]")
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from omnirl.errors import MediaError

from .files import inside, read_file, too_large

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Sources:
    """`root`: files must lie in it (None: anywhere). `allow_http`: http and https to public addresses, and to `http_hosts`.
    `fetch_timeout_s`: of one fetch in all. `max_bytes`: of one file or body."""

    root: Path | None = None
    allow_http: bool = False
    http_hosts: frozenset[str] = field(default_factory=frozenset)
    fetch_timeout_s: float = 10.0
    max_bytes: int = 64 * 2**20

    def read(self, source: str | Path, *, name: str, base: str = "") -> bytes:
        """`base`: folder of relative paths. Raises `MediaError` naming the source, the limit and its key."""
        if isinstance(source, Path):
            return self._file(source, name)
        if source.startswith("data:"):
            return self._data_url(source, name)
        scheme = match[1].lower() if (match := _SCHEME.match(source)) else ""
        if scheme in ("http", "https"):
            return self._fetch(source, name)
        if scheme == "file":
            return self._file(_file_path(source, name), name)
        if scheme:
            raise MediaError(f"{name}: {scheme}:// is not read; give a path, file://, a data URL, or http(s)")
        return self._file(Path(base, source), name)

    def locate(self, source: str | Path, *, name: str, base: str = "") -> Path | bytes:
        """As `read`, but a path stays one: for clips, which may be folders, and files too large to hold. `name`, `base` and
        errors as in `read`."""
        if isinstance(source, str) and (source.startswith("data:") or _SCHEME.match(source)):
            if not source.lower().startswith("file://"):
                return self.read(source, name=name, base=base)
            source = _file_path(source, name)
        path = Path(base, source)
        return path if self.root is None else inside(path, self.root, name)

    def _file(self, path: Path, name: str) -> bytes:
        return read_file(path, name=name, max_bytes=self.max_bytes, root=self.root)

    def _fetch(self, url: str, name: str) -> bytes:
        if not self.allow_http:
            raise MediaError(f"{name}: http is not allowed; save the picture to a file, or set `media.allow_http=true`")
        from .fetch import FetchLimits, fetch

        return fetch(url, name=name, limits=FetchLimits(self.fetch_timeout_s, self.max_bytes, self.http_hosts))

    def _data_url(self, url: str, name: str) -> bytes:
        head, comma, body = url.partition(",")
        if not comma:
            raise MediaError(f"{name}: not a data URL: it has no comma; write data:image/png;base64,…")
        if len(body) * 3 // 4 > self.max_bytes:
            raise too_large(name, len(body) * 3 // 4, self.max_bytes)
        if not head.endswith(";base64"):
            return unquote_to_bytes(body)
        try:
            return base64.b64decode(unquote(body) if "%" in body else body, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MediaError(f"{name}: the data URL is not base64 ({error}); encode the picture's bytes again") from error


def _file_path(url: str, name: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise MediaError(f"{name}: file://{parts.netloc}/… names another machine; write file:///path")
    return Path(unquote(parts.path))


def located(source: str, base: str) -> str:
    """A path with its folder; a URL as it is."""
    return source if source.startswith("data:") or _SCHEME.match(source) else str(Path(base, source))


def shortened(source: str) -> str:
    """For messages and tables: a data URL without its data, anything else at most 200 characters."""
    if source.startswith("data:"):
        return f"{source.partition(',')[0][:60]},… ({len(source)} characters)"
    return source if len(source) <= 200 else f"{source[:200]}…"
