"""A run folder → `report.html` in it; two → a comparison. The page appears whole or not at all.

Example:
    write_report(Path("runs/count"))                                  # runs/count/report.html
    write_report(Path("runs/count"), Path("runs/other"), out=Path("comparison.html"))
"""

import base64
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image as Pillow

from omnirl.errors import ConfigError, MediaError
from omnirl.media import ImagePolicy, load_image
from omnirl.media.video import frames_at
from omnirl.track.report import Thumbnail, load_run, render

from .completions import new_file
from .strip import film_strip

#: longest side of an embedded picture, and of a frame in a film strip, in pixels
_SIDE, _FRAME = 224, 96
_MAX_PIXELS = 100_000_000
_RAW = ("metrics.jsonl", "warmup.jsonl", "config.yaml", "run.json", "samples")


def write_report(run: Path, other: Path | None = None, *, out: Path | None = None, force: bool = False) -> Path:
    """Write the page and return its path. `out` left out: `report.html` in the run's folder, or `report-OTHER.html` for two;
    such a page is replaced. `force` replaces a file that `out` names.

    Raises `ConfigError` for a folder that is no run, a run without a finished step, or a page that cannot be written.
    """
    if other is not None and run.resolve() == other.resolve():
        raise ConfigError(f"{run} and {other} are one folder; give two runs to compare, or one alone")
    runs = [load_run(folder) for folder in (run, other) if folder is not None]
    name = "report.html" if other is None else f"report-{runs[1].name}.html"
    target = run / name if out is None else out
    html = render(runs, thumbnail, filmstrip, _links([loaded.folder for loaded in runs], target.expanduser().absolute().parent))
    with new_file(target, force=force or out is None) as file:
        file.write(html)
    return target


def thumbnail(path: str) -> Thumbnail:
    """A small picture as a data URL, through the one decoder; or why there is none."""
    try:
        image = load_image(Path(path), name=Path(path).name, policy=ImagePolicy(max_pixels=_MAX_PIXELS))
    except MediaError as error:
        return Thumbnail("", str(error))
    picture = Pillow.fromarray(image.pixels)
    picture.thumbnail((_SIDE, _SIDE))
    # drawings stay sharp and small without loss; photographs do not
    return _embedded(picture, lossless=picture.width * picture.height <= 96 * 96)


def filmstrip(path: str, indices: Sequence[int]) -> Thumbnail:
    """These frames of a clip beside each other, through the one reader; or why there are none."""
    try:
        frames = list(frames_at(Path(path), indices, name=Path(path).name))
    except MediaError as error:
        return Thumbnail("", str(error))
    return _embedded(film_strip(frames, side=_FRAME, columns=len(frames)), lossless=False)


def _embedded(picture: Pillow.Image, *, lossless: bool) -> Thumbnail:
    buffer = BytesIO()
    picture.save(buffer, "WEBP", lossless=lossless, quality=80)
    return Thumbnail(f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}")


def _links(folders: Sequence[Path], start: Path) -> list[tuple[str, str]]:
    """Raw files as addresses relative to the page, so that a moved run folder keeps them."""
    found = []
    for folder in folders:
        for name in _RAW:
            if (folder / name).exists():
                text = name if len(folders) == 1 else f"{folder.name}/{name}"
                found.append((text, Path(os.path.relpath(folder / name, start)).as_posix()))
    return found
