"""Pictures that come inside of rows (bytes of a table, data URLs) → files, so that a prompt holds a path, never bytes.

A file is named by its content, so that equal pictures are stored once, and written whole or not at all.

Example:
    PictureFolder(Path("~/.cache/omnirl/pictures")).keep(png_bytes, "train.parquet, row 3") → "/…/pictures/4f/4f0c….png"
"""

import os
import secrets
from pathlib import Path

import blake3

from omnirl.errors import DataError, MediaError
from omnirl.media import Sources

_ANY = Sources(max_bytes=2**62)  # the limit is that of the decoder, which reads the file
_MAGIC = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}


class KeptPicture(str):
    """The path of a picture that a row itself held."""

    __slots__ = ()


class PictureFolder:
    """Keeps pictures in `folder`, which is made when the first one comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()

    def keep(self, data: bytes, where: str) -> KeptPicture:
        """The path of a file with `data`. It is not decoded here. Raises `DataError` when empty, or when the disk refuses."""
        if not data:
            raise DataError(f"{where}: the picture is empty (0 bytes); write it again or remove the row")
        name = blake3.blake3(data).hexdigest(length=16) + _suffix(data)
        file = self.folder / name[:2] / name
        if file.is_file():
            return KeptPicture(file)
        draft = file.with_name(f".{name}.{secrets.token_hex(4)}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            os.replace(draft, file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DataError(
                f"{where}: its picture cannot be kept in {self.folder} ({error.strerror}); set cache_dir"
            ) from error
        return KeptPicture(file)

    def keep_url(self, url: str, where: str) -> KeptPicture:
        """The same for a data URL."""
        try:
            data = _ANY.read(url, name=where)
        except MediaError as error:
            raise DataError(str(error)) from error
        return self.keep(data, where)


def _suffix(data: bytes) -> str:
    return next((suffix for magic, suffix in _MAGIC.items() if data.startswith(magic)), ".bin")
