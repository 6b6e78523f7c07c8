"""Clips made by code, each with the outcome that the policy table (docs/clips.md) gives it. The number of a frame is written
into its pixels: eight vertical stripes, white for a one.

Example:
    python -m tests.media.corpus_video /tmp/clips       # writes all of them
"""

import json
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image as Pillow

HEIGHT, WIDTH = 48, 64
TOTAL = 30


@dataclass(frozen=True)
class Clip:
    """`rule`: what decides it. `make` writes the clip to the path that it is given. Of a good clip: its number of frames, their
    size before resizing and their last time in ms; of a bad one `error`, a pattern of the message."""

    rule: str
    file: str
    make: Callable[[Path], None]
    frames: int = TOTAL
    size: tuple[int, int] = (HEIGHT, WIDTH)
    last_ms: float | None = 2900
    error: str | None = None
    exact: bool = True  # the stripes can be read
    limits: Mapping[str, float] = field(default_factory=dict)


def stripes(number, height=HEIGHT, width=WIDTH):
    """uint8 `[height, width, 3]` that says `number`, most significant bit first."""
    bits = np.array([number >> b & 1 for b in range(7, -1, -1)], np.uint8) * 255
    row = np.repeat(bits, -(-width // 8))[:width]
    return np.ascontiguousarray(np.broadcast_to(row[None, :, None], (height, width, 3)))


def number(pixels):
    """The number that `stripes` wrote."""
    cells = np.array_split(pixels[pixels.shape[0] // 4 : -pixels.shape[0] // 4].mean(axis=(0, 2)), 8)
    return sum((c[len(c) // 4 : len(c) - len(c) // 4].mean() > 127) << (7 - i) for i, c in enumerate(cells))


def encode(path, codec="libx264", total=TOTAL, *, rate=10, times=None, height=HEIGHT, width=WIDTH, pix="yuv420p", fmt=None,
           container=None, **options):  # fmt: skip
    """`times`: presentation times in ms, for a variable rate."""
    with av.open(str(path), "w", format=fmt, options=container or {}) as file:
        stream = file.add_stream(
            codec, rate=1000 if times is not None else rate, options={k: str(v) for k, v in options.items()}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, pix
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(total):
            frame = av.VideoFrame.from_ndarray(stripes(i, height, width), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = int(times[i]), Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def made(**settings):
    return lambda path: encode(path, **settings)


def changed(change, **settings):
    """Encode, then change the bytes."""

    def make(path):
        encode(path, **settings)
        path.write_bytes(change(path.read_bytes()))

    return make


def written(data):
    return lambda path: path.write_bytes(data)


def cut(share):
    return lambda data: data[: int(len(data) * share)]


def spoil(data):
    """Overwrite the second half of the media data."""
    start, stop = data.index(b"mdat"), data.index(b"moov")
    start = (start + stop) // 2
    return data[:start] + bytes(np.random.default_rng(0).integers(0, 256, stop - start - 4, dtype=np.uint8)) + data[stop - 4 :]


def rotated(degrees):
    """Write a rotation into the track header of an mp4 file."""
    turn = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]

    def change(data):
        at = data.index(b"tkhd") + 4 + 40
        a, b, c, d = (v * 65536 for v in turn)
        matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000)
        return data[:at] + matrix + data[at + 36 :]

    return change


def audio(path, fmt=None):
    with av.open(str(path), "w", format=fmt) as file:
        stream = file.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def with_sound(path):
    """Three seconds of frames, six of sound."""
    with av.open(str(path), "w") as file:
        video, sound = file.add_stream("libx264", rate=10), file.add_stream("aac", rate=16000)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(TOTAL):
            file.mux(video.encode(av.VideoFrame.from_ndarray(stripes(i), format="rgb24")))
        for i in range(94):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 16000, i * 1024, Fraction(1, 16000)
            file.mux(sound.encode(frame))
        file.mux(video.encode())
        file.mux(sound.encode())


def no_frames(path):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        file.start_encoding()


def two_sizes(path):
    """Raw H.264 of two sizes, one after the other."""
    first, second = path.with_suffix(".a"), path.with_suffix(".b")
    encode(first, total=4, fmt="h264")
    encode(second, total=4, fmt="h264", height=96, width=128)
    path.write_bytes(first.read_bytes() + second.read_bytes())
    first.unlink(), second.unlink()


def folder(total=6, *, size=None, manifest=None, names="{}.png"):
    def make(path):
        path.mkdir()
        for i in range(total):
            height, width = (size or {}).get(i, (HEIGHT, WIDTH))
            Pillow.fromarray(stripes(i, height, width)).save(path / names.format(i))
        if manifest is not None:
            (path / "manifest.json").write_text(json.dumps(manifest))

    return make


def manifest(data, total=6):
    """A manifest beside its frames."""

    def make(path):
        folder(total)(path.with_suffix(""))
        path.write_text(json.dumps(data) if not isinstance(data, str) else data)

    return make


def frames_of(path, total=6):
    return [f"{path}/{i}.png" for i in range(total)]


VARIABLE = [0, *np.cumsum([33 if i % 2 else 200 for i in range(TOTAL - 1)]).tolist()]

CLIPS = {
    # codecs and containers
    "h264": Clip("file", "h264.mp4", made()),
    "h264_no_b_frames": Clip("file", "a.mp4", made(bf=0)),
    "h264_keys": Clip("file", "b.mp4", made(g=5)),
    "h264_open_gop": Clip("file", "c.mp4", made(g=6, **{"x264-params": "open-gop=1:bframes=3"})),
    "h264_444": Clip("depth", "d.mp4", made(pix="yuv444p")),
    "h264_mkv": Clip("file", "e.mkv", made()),
    "h264_mov": Clip("file", "f.mov", made()),
    "h264_ts": Clip("file", "g.ts", made()),
    "h264_fragments": Clip("file", "h.mp4", made(container={"movflags": "frag_keyframe+empty_moov"}, g=5)),
    "h264_raw": Clip("no_times", "i.h264", made(fmt="h264"), last_ms=None),
    "h264_flv": Clip("file", "j.flv", made()),
    "hevc": Clip("file", "hevc.mp4", made(codec="libx265", **{"x265-params": "log-level=none"})),
    "hevc_10_bits": Clip("depth", "k.mp4", made(codec="libx265", pix="yuv420p10le", **{"x265-params": "log-level=none"})),
    "vp8": Clip("file", "l.webm", made(codec="libvpx")),
    "vp9": Clip("file", "vp9.webm", made(codec="libvpx-vp9")),
    "av1": Clip("av1", "av1.mp4", made(codec="libsvtav1")),
    "av1_webm": Clip("av1", "m.webm", made(codec="libsvtav1")),
    "mpeg4": Clip("file", "mpeg4.mp4", made(codec="mpeg4")),
    "mpeg4_avi": Clip("file", "n.avi", made(codec="mpeg4", bf=2)),
    "mpeg2": Clip("file", "o.mpg", made(codec="mpeg2video", rate=25), last_ms=1160),
    "mjpeg": Clip("file", "p.avi", made(codec="mjpeg", pix="yuvj420p")),
    "ffv1": Clip("file", "q.mkv", made(codec="ffv1")),
    "gif": Clip("file", "r.gif", made(codec="gif", pix="rgb8")),
    # times
    "variable_rate": Clip("variable_rate", "vfr.mp4", made(times=VARIABLE), last_ms=VARIABLE[-1]),
    "variable_rate_webm": Clip("variable_rate", "vfr.webm", made(codec="libvpx-vp9", times=VARIABLE), last_ms=VARIABLE[-1]),
    "rate_23_976": Clip("variable_rate", "ntsc.mp4", made(rate=Fraction(24000, 1001)), last_ms=29 * 1001 / 24),
    "one_frame": Clip("few", "one.mp4", made(total=1), frames=1, last_ms=0),
    "one_second": Clip("few", "second.mp4", made(total=10), frames=10, last_ms=900),
    "odd": Clip("few", "odd.mp4", made(total=3), frames=3, last_ms=200),
    "sound_is_longer": Clip("sound", "sound.mp4", with_sound),
    # geometry
    "rotated_90": Clip("rotation", "r90.mp4", changed(rotated(90)), size=(WIDTH, HEIGHT), exact=False),
    "rotated_180": Clip("rotation", "r180.mp4", changed(rotated(180)), exact=False),
    "rotated_270": Clip("rotation", "r270.mp4", changed(rotated(270)), size=(WIDTH, HEIGHT), exact=False),
    "portrait": Clip("sides", "s.mp4", made(height=128, width=64), size=(128, 64)),
    "wide": Clip("sides", "t.mp4", made(height=16, width=512), size=(16, 512)),
    "odd_sides": Clip("sides", "u.mkv", made(codec="ffv1", height=33, width=65, pix="bgr0"), size=(33, 65), exact=False),
    "two_sizes": Clip("sizes", "v.h264", two_sizes, error="different sizes"),
    # limits
    "too_short": Clip("short", "nine.mp4", made(total=9), frames=9, last_ms=800),
    "too_large": Clip(
        "pixels", "large.mp4", made(), limits={"max_pixels": 1000}, error="3072 pixels are over the limit of 1000"
    ),
    "too_many": Clip("frames", "many.mp4", made(), limits={"max_frames": 29}, error="30 frames are over the limit of 29"),
    "too_many_in_folder": Clip("frames", "many", folder(), limits={"max_frames": 5}, error="6 frames are over the limit of 5"),
    "too_long": Clip("seconds", "long.mp4", made(), limits={"max_seconds": 2}, error="3 s are over the limit of 2 s"),
    "too_heavy": Clip("bytes", "heavy.mp4", made(), limits={"max_bytes": 100}, error="bytes are over the limit of 100"),
    # damage
    "empty": Clip("empty", "empty.mp4", written(b""), error="the file is empty"),
    "noise": Clip("not_clip", "noise.mp4", written(bytes(range(256)) * 8), error="not a readable clip"),
    "html": Clip("not_clip", "page.mp4", written(b"<!DOCTYPE html><title>404</title>"), error="an HTML or XML page"),
    "picture": Clip(
        "not_clip", "picture.mp4", lambda p: Pillow.fromarray(stripes(1)).save(p, "PNG"), error="not a readable clip"
    ),
    "playlist": Clip("playlist", "list.mp4", written(b"#EXTM3U\n#EXTINF:1,\nother.ts\n"), error="not a readable clip"),
    "no_index": Clip("truncated", "w.mp4", changed(cut(0.6)), error="not a readable clip|no video stream"),
    "cut_index_first": Clip("truncated", "x.mp4", changed(cut(0.7), container={"movflags": "faststart"}), error="truncated"),
    "cut_mkv": Clip("truncated", "y.mkv", changed(cut(0.5), codec="ffv1"), error="truncated"),
    "cut_webm": Clip("truncated", "z.webm", changed(cut(0.7), codec="libvpx-vp9", crf=10), error="truncated"),
    "cut_avi": Clip("truncated", "cut.avi", changed(cut(0.5), codec="mjpeg", pix="yuvj420p"), error="truncated"),
    "spoiled": Clip("corrupt", "spoiled.mp4", changed(spoil, bf=0), error="truncated or corrupt"),
    "audio_only": Clip("audio_only", "sound.m4a", lambda p: audio(p, "mp4"), error="no video stream"),
    "no_frames": Clip("no_frames", "none.mp4", no_frames, error="no frames|not a readable clip|no video stream"),
    "missing": Clip("missing", "missing.mp4", lambda p: None, error="no such file"),
    # pictures as clips
    "folder": Clip("folder", "frames", folder(), frames=6, last_ms=5000),
    "folder_natural_order": Clip("folder", "natural", folder(12), frames=12, last_ms=11000),
    "folder_with_manifest": Clip(
        "manifest", "listed", folder(manifest={"frames": [f"{i}.png" for i in range(6)], "fps": 2}), frames=6, last_ms=2500
    ),
    "manifest_times": Clip(
        "manifest",
        "t.json",
        manifest({"frames": frames_of("t"), "timestamps_s": [1, 1.5, 2, 4, 4.25, 9]}),
        frames=6,
        last_ms=8000,
    ),
    "manifest_outside": Clip(
        "outside", "o.json", manifest({"frames": ["../secret.png"]}), error="outside the manifest's folder"
    ),
    "manifest_unknown_key": Clip(
        "manifest_wrong", "k.json", manifest({"frames": frames_of("k"), "rate": 2}), error="the manifest has rate"
    ),
    "manifest_times_fall": Clip(
        "manifest_wrong", "f.json", manifest({"frames": frames_of("f", 2), "timestamps_s": [1, 1]}), error="rising"
    ),
    "manifest_no_json": Clip("manifest_wrong", "j.json", manifest("{"), error="not a readable manifest"),
    "manifest_missing_frame": Clip("missing", "m.json", manifest({"frames": ["m/9.png"]}), error="no such file"),
    "folder_empty": Clip("empty", "nothing", folder(0), error="no frames in"),
    "folder_sizes": Clip("sizes", "sizes", folder(size={3: (32, 32)}), error="different sizes"),
}


def write(folder_path):
    """All clips → name: path. Each lies in a folder of its own."""
    paths = {}
    for name, clip in CLIPS.items():
        (folder_path / name).mkdir(parents=True)
        paths[name] = folder_path / name / clip.file
        clip.make(paths[name])
    return paths


if __name__ == "__main__":
    write(Path(sys.argv[1]))
