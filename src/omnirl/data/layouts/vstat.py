"""VSTAT in the layout in which it is published: `vstat_qa_clean.json` beside `videos/`.

Example:
    dataset.name=vstat dataset.path=VSTAT     # {"video": "17.mp4", "question": "…", "answer": "3"} → a clip and its question
"""

import json
from pathlib import Path
from typing import Any

from omnirl.errors import DataError

from .request import Request, Rows, field, user

_LETTERS = "ABCDEFGHIJ"


def vstat(request: Request) -> Rows:
    """Each question with its clip, by name or path under `videos/`; `options` (a list) are put below the question by letters.
    Raises `DataError` for a file that is not a list of objects, a row without its fields, or a clip that is not there."""
    file = request.folder / f"{request.split}.json"
    for number, row in enumerate(_read(file)):
        where = f"{file}, row {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with `video`, `question` and `answer`, found {type(row).__name__}")
        text = field(row, "question", where)
        if options := row.get("options"):
            if not isinstance(options, list) or len(options) > len(_LETTERS):
                raise DataError(f"{where}: `options` must be a list of at most {len(_LETTERS)}, found {options!r:.40}")
            text += "".join(f"\n{letter}. {option}" for letter, option in zip(_LETTERS, options, strict=False))
        video = {"type": "video", "video": _clip(request.folder, field(row, "video", where), where)}
        answer = str(row.get("answer", "")).strip()
        more = {"kind": str(row["category"])} if row.get("category") else {}
        content = [video, {"type": "text", "text": text}]
        identity = str(row.get("id", f"{request.split}-{number}"))
        target = f"<answer>{answer}</answer>"
        yield where, {"id": identity, "messages": user(content), "answer": answer, "target": target, **more}


def _read(file: Path) -> list[Any]:
    try:
        rows = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        there = ", ".join(sorted(other.stem for other in file.parent.glob("*.json"))) or "none"
        raise DataError(f"{file}: no such file; it lies beside `videos/` (JSON files there: {there})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"{file}: expected a list of questions, found {type(rows).__name__}")
    return rows


def _clip(folder: Path, name: str, where: str) -> str:
    for candidate in (Path("videos", name), Path(name)):
        if not candidate.is_absolute() and (folder / candidate).exists():
            return str(candidate)
    raise DataError(f"{where}: no clip {folder / 'videos' / name}; unpack the clips there")
