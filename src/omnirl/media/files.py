"""A path → its bytes, within a limit and a root folder; never a pipe, a device or a folder, and never waiting for one.

Example:
    read_file(Path("images/17.png"), name="images/17.png (prompt 'p')", max_bytes=2**26, root=Path("/data"))
"""

import os
import stat
from pathlib import Path

from omnirl.errors import MediaError


def read_file(path: Path, *, name: str, max_bytes: int, root: Path | None = None) -> bytes:
    """The whole file. `root`: the file must lie in this folder once links are resolved.

    Raises `MediaError`: missing, unreadable, not a plain file, over `max_bytes`, outside `root`.
    """
    try:
        if root is not None:
            path = inside(path, root, name)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
        try:
            _check(os.fstat(descriptor), path, name, max_bytes)
        except MediaError:
            os.close(descriptor)
            raise
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(max_bytes + 1)  # it may grow, or not know its size
    except MediaError:  # it is a ValueError too
        raise
    except FileNotFoundError as error:
        raise MediaError(f"{name}: no such file {path}; paths are relative to the dataset file's folder") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"{name}: cannot read {str(path)!r} ({reason}); check the path and its permissions") from error
    if len(data) > max_bytes:
        raise too_large(name, len(data), max_bytes)
    return data


def _check(found: os.stat_result, path: Path, name: str, max_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "not a plain file"
        raise MediaError(f"{name}: cannot be read: {str(path)!r} is {what}; give the path of a file")
    if found.st_size > max_bytes:
        raise too_large(name, found.st_size, max_bytes)


def too_large(name: str, size: int | str, limit: int) -> MediaError:
    """The error for a file or body of more than `media.max_bytes`."""
    return MediaError(f"{name}: {size} bytes are over the limit of {limit}; make it smaller or raise `media.max_bytes`")


def inside(path: Path, root: Path, name: str) -> Path:
    """`path` with links resolved. Raises `MediaError` when it does not lie in `root`."""
    resolved, folder = path.resolve(), root.resolve()
    if not resolved.is_relative_to(folder):
        raise MediaError(f"{name}: {resolved} is outside of the folder {folder} that `media.root` allows")
    return resolved
