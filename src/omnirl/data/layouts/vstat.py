"""VSTAT in the layout in which it is published: `vstat_qa_clean.json` beside `videos/`.

The file holds `{"data": {category: [question, …]}}`; a question has `video_path` (`videos/synthetic/…/17.mp4`), `question`,
`answer`, and, where letters answer it, `choices` and `answer_index`.

Example:
    dataset.name=vstat dataset.path=VSTAT
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnirl.data.rows import Rows
from omnirl.errors import DataError

from .request import Request, field, user

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def vstat(request: Request) -> Rows:
    """Each question with its clip; its category is the row's `kind`. Choices that the question does not spell out stand below
    it, by letters, and the answer is a letter. Raises `DataError` for another structure, a row without its fields, or a
    missing clip."""
    file = request.folder / f"{request.split}.json"
    for where, category, number, row in _questions(file):
        text, choices = field(row, "question", where), row.get("choices") or []
        if not isinstance(choices, list) or len(choices) > len(_LETTERS):
            raise DataError(f"{where}: `choices` must be a list of at most {len(_LETTERS)}, found {choices!r:.40}")
        if not _spelled_out(choices, text):
            text += "".join(f"\n{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=False))
        answer = _answer(row, choices, where)
        video = {"type": "video", "video": _clip(request.folder, field(row, "video_path", where), where)}
        yield (
            where,
            {
                "id": str(row.get("id", f"{category}-{number}")),
                "messages": user([video, {"type": "text", "text": text}]),
                "answer": answer,
                "target": f"<answer>{answer}</answer>",
                "kind": category,
            },
        )


def _questions(file: Path) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """(where, category, number in it, question)."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        there = ", ".join(sorted(other.stem for other in file.parent.glob("*.json"))) or "none"
        raise DataError(f"{file}: no such file; it lies beside `videos/` (JSON files there: {there})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    data = content.get("data", content) if isinstance(content, dict) else content
    if not isinstance(data, dict) or not all(isinstance(rows, list) for rows in data.values()):
        raise DataError(f'{file}: expected {{"data": {{category: [question, …]}}}}, found {type(content).__name__}')
    for category, rows in data.items():
        for number, row in enumerate(rows):
            where = f"{file}, {category} {number}"
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected an object with `video_path` and `question`, found {type(row).__name__}")
            yield where, category, number, row


def _spelled_out(choices: list[Any], text: str) -> bool:
    """Whether the question says which letter each choice has: `A. one`, `(B) two`, `C: three`."""
    return all(
        re.search(rf"(?<!\w){letter}[.):]+\s*{re.escape(str(choice))}", text)
        for letter, choice in zip(_LETTERS, choices, strict=False)
    )


def _answer(row: dict[str, Any], choices: list[Any], where: str) -> str:
    """The answer as text; with choices, its letter: as the row gives it, or that of the choice with this text."""
    answer = str(field(row, "answer", where, (str, int, float))).strip()
    index = row.get("answer_index")
    if not choices:
        return answer
    found = {_LETTERS[i] for i, choice in enumerate(choices) if str(choice).strip() == answer}
    if len(answer) == 1 and answer.upper() in _LETTERS[: len(choices)]:
        found.add(answer.upper())
    if len(found) == 1:
        return found.pop()
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(choices):
        return _LETTERS[index]
    raise DataError(
        f"{where}: the `answer` {answer!r:.40} is {'several' if found else 'no letter'} of its choices, "
        f"nor is `answer_index` {index!r:.40} one of them"
    )


def _clip(folder: Path, name: str, where: str) -> str:
    if Path(name).is_absolute() or not (folder / name).exists():
        raise DataError(f"{where}: no clip {folder / name}; download and unpack the clips there")
    return name
