"""What becomes of a clip: the table of every case. The page `docs/clips.md` is made from it, and each clip of the hostile
corpus (`tests/media/corpus_video.py`) names the rule that decides it.

Example:
    [rule.case for rule in RULES if rule.refused]
"""

from omnirl.media.policy import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "file",
        "MP4, MOV, Matroska, WebM, AVI, MPEG-TS, MPEG, FLV, GIF, … with H.264, HEVC, VP8, VP9, MPEG-2/4, MJPEG, FFV1, …",
        "frames, each as it is shown",
    ),
    Rule("av1", "AV1", "frames, by pyav and torchcodec; decord has no AV1 and says so"),
    Rule("depth", "10 bits, 4:4:4, RGB", "8-bit RGB"),
    Rule("rotation", "rotation in the metadata", "applied once"),
    Rule("sides", "any size and aspect ratio, odd sides", "kept; the grid rule gives the final size"),
    Rule("variable_rate", "variable rate, or one that is no whole number", "each frame has its own time"),
    Rule("no_times", "no times in the container (raw H.264)", "frames in order at the stream's rate"),
    Rule("sound", "sound beside the frames", "ignored, also where it is longer"),
    Rule("few", "one frame, one second, an odd number of frames", "all of them; the last tubelet repeats the last frame"),
    Rule("short", "more frames asked than there are", "what there is, each once; the difference is counted"),
    Rule("folder", "folder of pictures", "its frames in natural order (`2.png` before `10.png`), one a second"),
    Rule(
        "manifest",
        '`{"frames": [paths under its folder], "fps": 2}`, or with `"timestamps_s"`; also as a folder\'s `manifest.json`',
        "frames at these times",
    ),
    Rule("manifest_wrong", "manifest with other fields, falling times, or that is no JSON", "refused", refused=True),
    Rule("outside", "frame outside of its manifest's folder", "refused", refused=True),
    Rule("sizes", "frames of different sizes", "refused", refused=True),
    Rule("pixels", "frames of more than `media.max_pixels`", "refused by the header", refused=True),
    Rule("frames", "more than `media.max_video_frames`", "refused before anything is decoded", refused=True),
    Rule("seconds", "longer than `media.max_video_s`", "refused before anything is decoded", refused=True),
    Rule("bytes", "file over `media.max_video_bytes`", "refused unread", refused=True),
    Rule("empty", "no bytes, or a folder without pictures", "refused", refused=True),
    Rule("not_clip", "an HTML page, a picture, noise, … under a clip's name", "refused by what it is", refused=True),
    Rule("playlist", "playlists and whatever else names other files", "refused, nothing is opened", refused=True),
    Rule("audio_only", "sound without frames", "refused", refused=True),
    Rule("no_frames", "a video stream without a frame", "refused", refused=True),
    Rule("truncated", "the file ends before what its header says", "refused", refused=True),
    Rule("corrupt", "damaged packets or frames", "refused", refused=True),
    Rule("missing", "no such file", "refused", refused=True),
    Rule("root", "path or `file://` outside of `media.root`, where that is set", "refused, links resolved first", refused=True),
    Rule("slow", "not decoded within `media.decode_timeout_s`", "refused; its process is ended and replaced", refused=True),
    Rule("crash", "a clip that crashes the decoder", "refused; its process is replaced", refused=True),
)
