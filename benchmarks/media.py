"""Speed of the one decoder: decode + hash against plain Pillow, in processor seconds, the best of several alternating runs.

Example:
    python benchmarks/media.py        # one line a format: seconds of each, and plain ÷ ours (1.0: nothing is lost)
"""

import io
import time

import numpy as np
from PIL import Image as Pillow

from omnirl.media import load_image

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


def main() -> None:
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
