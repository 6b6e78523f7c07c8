import numpy as np
import pytest

from omnirl.errors import MediaError
from omnirl.media.grid import Grid
from omnirl.media.pixels import pixels_digest, resize_pixels
from omnirl.media.video import FrameRule, VideoJob, VideoLimits, load_video, resolve
from omnirl.media.video.policy import RULES
from omnirl.types import VideoSettings
from tests.media.corpus_video import CLIPS, TOTAL, VARIABLE, encode, number, stripes

GOOD = [name for name, clip in CLIPS.items() if clip.error is None]
FILES = [name for name in GOOD if "." in CLIPS[name].file and not CLIPS[name].file.endswith(".json")]
#: rules about where a clip comes from and what decodes it: `test_loader.py`, `test_pool.py`, and here
ELSEWHERE = {"root", "slow", "crash"}
#: what decord cannot do is an error that says so; what it does is the same bytes
DECORD_LACKS = {"h264_ts", "h264_raw", "av1", "av1_webm", "mpeg2", "gif"}


class Original(FrameRule):
    """Frames keep their size."""

    def plan(self, height, width):
        return Grid(height, width, 1)


def job(*, frame=None, backend="pyav", limits=None, timeout_s=60.0, **settings):
    rule = resolve(("row", VideoSettings(**(settings or {"num_frames": 1000}))))
    return VideoJob(rule, frame or Original(16, 2, 16), backend, limits or VideoLimits(), timeout_s)


def test_the_corpus_covers_every_rule_and_names_no_other():
    assert len(CLIPS) >= 60
    assert {clip.rule for clip in CLIPS.values()} == {rule.name for rule in RULES} - ELSEWHERE
    refused = {rule.name for rule in RULES if rule.refused}
    for name, clip in CLIPS.items():
        assert (clip.rule in refused) == (clip.error is not None), name


@pytest.mark.parametrize("name", GOOD)
def test_good_clips(clips, name):
    clip = CLIPS[name]
    video = load_video(clips[name], job(), name=name)
    assert video.pixels.dtype == np.uint8
    assert video.pixels.shape == (clip.frames, *clip.size, 3)
    assert video.sampling.source_frames == clip.frames
    assert video.sampling.clamped == video.sampling.requested - clip.frames > 0
    assert video.sampling.timestamps_ms[0] == 0
    if clip.last_ms is not None:
        assert video.sampling.timestamps_ms[-1] == pytest.approx(clip.last_ms, abs=1)
    if clip.exact:
        assert [number(frame) for frame in video.pixels] == list(range(clip.frames))
    assert video.digest == pixels_digest(video.pixels)
    assert not video.pixels.flags.writeable


@pytest.mark.parametrize("name", [name for name, clip in CLIPS.items() if clip.error])
def test_bad_clips(clips, name):
    with pytest.raises(MediaError, match=CLIPS[name].error) as caught:
        load_video(clips[name], job(limits=VideoLimits(**CLIPS[name].limits)), name=f"clip {name}")
    assert f"clip {name}" in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_any_choice_of_frames_has_the_same_pixels(clips, name):
    """Seeks and frames that are left out change nothing."""
    full = load_video(clips[name], job(), name=name)
    for count in (1, 2, 3, 7):
        few = load_video(clips[name], job(num_frames=count), name=name)
        assert np.array_equal(few.pixels, full.pixels[list(few.sampling.indices)])


@pytest.mark.parametrize("name", FILES)
def test_decord_gives_the_same_bytes_or_says_that_it_cannot(clips, name):
    pytest.importorskip("decord")
    if name in DECORD_LACKS:
        with pytest.raises(MediaError, match=r"decord cannot decode this clip.*media.video_backend=pyav"):
            load_video(clips[name], job(backend="decord"), name=name)
        return
    ours = load_video(clips[name], job(num_frames=5), name=name)
    theirs = load_video(clips[name], job(num_frames=5, backend="decord"), name=name)
    assert np.array_equal(theirs.pixels, ours.pixels)
    assert theirs.sampling == ours.sampling


@pytest.mark.parametrize(("name", "turns"), [("rotated_90", 1), ("rotated_180", 2), ("rotated_270", 3)])
def test_rotation_is_applied(clips, name, turns):
    turned = load_video(clips[name], job(), name=name).pixels
    plain = load_video(clips["h264"], job(), name=name).pixels
    # a track matrix turns clockwise
    assert np.array_equal(turned, np.rot90(plain, -turns, axes=(1, 2)))


def test_bytes_are_read_like_files(clips):
    data = clips["h264_mkv"].read_bytes()
    assert load_video(data, job(), name="upload").digest == load_video(clips["h264_mkv"], job(), name="file").digest


def test_variable_rates_have_their_own_times(clips):
    video = load_video(clips["variable_rate"], job(num_frames=5), name="vfr")
    assert video.sampling.timestamps_ms == tuple(VARIABLE[i] for i in video.sampling.indices)


def test_frames_come_at_their_final_size(clips):
    video = load_video(clips["portrait"], job(num_frames=3, frame=FrameRule(16, 2, 64)), name="portrait")
    full = load_video(clips["portrait"], job(num_frames=3), name="portrait")
    grid = FrameRule(16, 2, 64).plan(128, 64)
    assert video.pixels.shape == (3, grid.height, grid.width, 3)
    assert video.num_tokens == grid.num_tokens
    assert np.array_equal(video.pixels[1], resize_pixels(full.pixels[1], grid.height, grid.width))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_pixels": 1000}, "48.*= 3072 pixels are over the limit of 1000; .*`media.max_pixels`"),
        ({"max_frames": 29}, "30 frames are over the limit of 29; .*`media.max_video_frames`"),
        ({"max_seconds": 2}, "3 s are over the limit of 2 s; .*`media.max_video_s`"),
        ({"max_bytes": 100}, "bytes are over the limit of 100 .*`media.max_video_bytes`"),
    ],
)
@pytest.mark.parametrize("name", ["h264", "h264_mkv", "h264_ts"])
def test_limits_are_read_from_the_header(clips, monkeypatch, name, limits, message):
    monkeypatch.setitem(load_video.__globals__["READERS"], "pyav", None)  # nothing is decoded
    with pytest.raises(MediaError, match=message):
        load_video(clips[name], job(limits=VideoLimits(**limits)), name=name)


def test_the_deadline_is_looked_at_between_frames(clips):
    with pytest.raises(MediaError, match=r"slow: not decoded within 1e-09 s \(`media.decode_timeout_s`\)") as caught:
        load_video(clips["h264"], job(timeout_s=1e-9), name="slow")
    assert isinstance(caught.value, TimeoutError)


def test_equal_frames_have_one_digest(tmp_path):
    encode(tmp_path / "a.mkv", codec="ffv1", pix="bgr0", total=4)
    encode(tmp_path / "b.mkv", codec="ffv1", pix="bgr0", total=4, rate=5)
    first, second = (load_video(tmp_path / f, job(), name=f) for f in ("a.mkv", "b.mkv"))
    assert first.digest == second.digest == pixels_digest(np.stack([stripes(i) for i in range(4)]))
    assert first.sampling.timestamps_ms != second.sampling.timestamps_ms
    assert first.sampling.source_frames == 4 < TOTAL
