"""Speed of the one decoder: decode + hash against plain Pillow and plain readers of clips, in processor seconds (those of the
worker included), the best of several alternating runs.

Example:
    python benchmarks/media.py        # one line each: seconds, and plain ÷ ours (1.0: nothing is lost)
"""

import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import decord
import numpy as np
from PIL import Image as Pillow

from omnirl.media import load_image
from omnirl.media.pixels import resize_pixels
from omnirl.media.video import DecodePool, FrameRule, VideoJob, load_video, resolve
from omnirl.types import VideoSettings

RUNS = 12
FORMATS = {"JPEG": {"quality": 90}, "PNG": {}, "WEBP": {"quality": 90}}


def photograph(height: int = 1080, width: int = 1920) -> Pillow.Image:
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([y * 255 // height, x * 255 // width, (x + y) % 256], axis=-1)
    grain = np.random.default_rng(0).integers(-12, 12, smooth.shape)
    return Pillow.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def plain(data: bytes) -> None:
    np.asarray(Pillow.open(io.BytesIO(data)).convert("RGB"))


def ours(data: bytes) -> None:
    load_image(data, name="benchmark")


def clip(path: Path, frames: int = 300) -> None:
    """Ten seconds of 720p H.264: a picture that moves."""
    still = np.asarray(photograph(720, 1280 + frames))
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        for i in range(frames):
            moved = np.ascontiguousarray(still[:, i : i + 1280])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        file.mux(stream.encode())


CHOSEN = VideoSettings(num_frames=32)
RULE = FrameRule(16, 2, 1024)


def with_pyav(path: Path) -> None:
    indices = set(np.rint(np.linspace(0, 299, 32)).astype(int).tolist())
    grid = RULE.plan(720, 1280)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        stream.thread_type = "AUTO"
        chosen = (f.to_ndarray(format="rgb24") for i, f in enumerate(file.decode(stream)) if i in indices)
        np.stack([resize_pixels(pixels, grid.height, grid.width) for pixels in chosen])


def with_decord(path: Path) -> None:
    grid = RULE.plan(720, 1280)
    frames = decord.VideoReader(str(path)).get_batch(np.rint(np.linspace(0, 299, 32)).astype(int).tolist()).asnumpy()
    np.stack([resize_pixels(pixels, grid.height, grid.width) for pixels in frames])


def seconds(work: Callable[[], None], child: int | None = None) -> float:
    """Processor seconds of this process and of `child`."""

    def used() -> float:
        if child is None:
            return time.process_time()
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    start = used()
    work()
    return used() - start


def clips() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.mp4")
        clip(path)
        job = VideoJob(resolve(("benchmark", CHOSEN)), RULE)
        pool = DecodePool(1)
        pool.load(path, job, name="clip")  # starts the worker
        (worker,) = (w._process.pid for w in pool._idle)
        readers: dict[str, tuple[Callable[[], object], int | None]] = {
            "PyAV": (lambda: with_pyav(path), None),
            "decord": (lambda: with_decord(path), None),
            "inline": (lambda: load_video(path, job, name="clip"), None),
            "worker": (lambda: pool.load(path, job, name="clip"), worker),
        }
        best = dict.fromkeys(readers, float("inf"))
        for _ in range(RUNS // 2):
            for name, (work, child) in readers.items():
                best[name] = min(best[name], seconds(work, child))
        pool.close()
    fastest = min(best["PyAV"], best["decord"])
    print("clip: " + ", ".join(f"{name} {value:.3f} s" for name, value in best.items()))
    print(f"clip: fastest plain reader / inline {fastest / best['inline']:.3f}, / worker {fastest / best['worker']:.3f}")


def main() -> None:
    pictures()
    clips()


def pictures() -> None:
    picture = photograph()
    for kind, options in FORMATS.items():
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        best = dict.fromkeys((plain, ours), float("inf"))
        for _ in range(RUNS):
            for decode in best:
                start = time.process_time()
                decode(buffer.getvalue())
                best[decode] = min(best[decode], time.process_time() - start)
        print(f"{kind}: plain {best[plain]:.4f} s, ours {best[ours]:.4f} s, plain / ours {best[plain] / best[ours]:.3f}")


if __name__ == "__main__":
    main()
