"""Public datasets in the layout in which they are published, downloaded into a folder.

Example:
    dataset.name=clevr_cogent dataset.path=Clevr_CoGenT_TrainA_70K_Complex
"""

import json
import math
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omnirl.data.rows import Rows
from omnirl.data.tables import read_table
from omnirl.errors import DataError

from .request import Request, field, user, with_pictures

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PLACEHOLDER = re.compile(r"<image(?:_(\d+))?>")


def clevr_cogent(request: Request) -> Rows:
    """CLEVR-CoGenT questions with `image`, `problem` and `solution`; the answer is what the solution's tags hold."""
    for number, (where, row) in enumerate(read_table(request.folder, request.split, request.pictures)):
        answers = _ANSWER.findall(field(row, "solution", where))
        if not answers:
            raise DataError(f"{where}: column `solution` holds no <answer>…</answer>")
        answer = answers[-1].strip()
        image = {"type": "image", "image": field(row, "image", where)}
        content = [image, {"type": "text", "text": field(row, "problem", where)}]
        target = f"<answer>{answer}</answer>"
        yield where, {"id": f"{request.split}-{number}", "messages": user(content), "answer": answer, "target": target}


def geometry3k(request: Request) -> Rows:
    """Geometry3K problems with `images`, `problem` (with `<image>` where a picture stands) and `answer`."""
    for number, (where, row) in enumerate(read_table(request.folder, request.split, request.pictures)):
        question = with_pictures(field(row, "problem", where), field(row, "images", where, list))
        yield where, {"id": f"{request.split}-{number}", "answer": field(row, "answer", where), **question}


def mmpr_tiny(request: Request) -> Rows:
    """MMPR-Tiny: `mmpr_tiny.parquet` beside the unpacked `images.zip`. Rows with several pictures are kept: `<image_2>` is the
    second one, `<image>` the next; without a placeholder they come first."""
    for number, (where, row) in enumerate(read_table(request.folder, request.split, request.pictures)):
        images = [_find(request.folder, path, where) for path in field(row, "images", where, list)]
        content = _interleave(field(row, "extra_info.question", where), images, where)
        answer = field(row, "reward_model.ground_truth", where)
        yield where, {"id": f"{request.split}-{number}", "messages": user(content), "answer": answer}


def refcoco(request: Request) -> Rows:
    """RefCOCO with COCO's picture folders (`train2014`) beside it. `bbox` (x1, y1, x2, y2 in pixels of the original picture) is
    rescaled to 0 … `dataset.box_space`, which the question states. Of several captions a training row takes one by a hash of
    its number, a held-out row the longest."""
    space = request.cfg.box_space
    for number, (where, row) in enumerate(read_table(request.folder, request.split, request.pictures)):
        captions = [text for text in field(row, "captions", where, list) if isinstance(text, str) and text.strip()]
        if not captions:
            raise DataError(f"{where}: column `captions` holds no text")
        identity = f"{request.split}-{number}"
        caption = max(captions, key=len) if request.held_out else captions[_hash(identity) % len(captions)]
        path = _find(request.folder, field(row, "image_path", where), where)
        scaled = _scaled(field(row, "bbox", where, list), _size(row, Path(request.folder, path), where), space, where)
        text = f"Give the box of: {caption}\nAnswer with [x1, y1, x2, y2], each from 0 to {space} of the picture's side."
        content = [{"type": "image", "image": path}, {"type": "text", "text": text}]
        answer = f"[{', '.join(map(str, scaled))}]"
        yield where, {"id": identity, "messages": user(content), "answer": answer, "target": f"<answer>{answer}</answer>"}


def _scaled(box: list[Any], size: tuple[int, int], space: int, where: str) -> list[int]:
    """(x1, y1, x2, y2) in pixels of a picture of `size` (width, height) → 0 … `space`. Raises `DataError` for what is no box in
    this picture, by more than a pixel of rounding: corner, width and height, for example."""
    numbers = [float(v) for v in box if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    width, height = size
    if len(box) == len(numbers) == 4:
        left, top, right, bottom = numbers
        if -1 <= left < right <= width + 1 and -1 <= top < bottom <= height + 1:
            sides = (width, height, width, height)
            return [min(max(round(v / side * space), 0), space) for v, side in zip(numbers, sides, strict=True)]
    raise DataError(
        f"{where}: column `bbox` must be x1 < x2 ≤ {width}, y1 < y2 ≤ {height} as [x1, y1, x2, y2], found {box!r:.60}"
    )


def _interleave(question: str, images: list[str], where: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    end, following, used = 0, 0, set()
    for marker in _PLACEHOLDER.finditer(question):
        index = int(marker[1]) - 1 if marker[1] else following
        following = index + 1
        if not 0 <= index < len(images):
            raise DataError(f"{where}: {marker[0]} stands for picture {index + 1}, but the row has {len(images)}")
        parts += _text(question[end : marker.start()])
        parts.append({"type": "image", "image": images[index]})
        used.add(index)
        end = marker.end()
    rest = _text(question[end:])
    if not used:
        return [*({"type": "image", "image": image} for image in images), *rest]
    if len(used) < len(images):
        raise DataError(f"{where}: the question uses {len(used)} of its {len(images)} pictures")
    return parts + rest


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _find(folder: Path, path: Any, where: str) -> str:
    """A picture's path as published, under `folder`: as it is, or without its first folder. Raises `DataError`."""
    if not isinstance(path, str) or not path:
        raise DataError(f"{where}: a picture must be a path, found {path!r:.40}")
    shorter = Path(*Path(path).parts[1:]) if not Path(path).is_absolute() else Path(path)
    for candidate in (Path(path), shorter):
        if (folder / candidate).is_file():
            return str(candidate)
    raise DataError(f"{where}: no picture {folder / path}, nor {folder / shorter}; unpack the dataset's pictures there")


def _size(row: dict[str, Any], file: Path, where: str) -> tuple[int, int]:
    """(width, height) that the box refers to: what the row says, else what the file says."""
    info = row.get("raw_image_info")
    try:
        parsed = json.loads(info) if isinstance(info, str) else info
        if isinstance(parsed, dict):
            size = int(parsed["width"]), int(parsed["height"])
        else:
            from PIL import Image

            with Image.open(file) as picture:
                size = picture.size
    except (ValueError, KeyError, TypeError, OSError, OverflowError) as error:
        raise DataError(f"{where}: column `raw_image_info`: the size of {file} cannot be found ({error})") from error
    if min(size) < 1:
        raise DataError(f"{where}: column `raw_image_info` says that {file} has {size[0]}x{size[1]} pixels")
    return size


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
