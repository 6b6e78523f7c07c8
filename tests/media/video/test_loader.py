import shutil
from pathlib import Path

import pytest

from omnirl.errors import MediaError
from omnirl.media import DictStore
from omnirl.media.sources import Sources
from omnirl.media.video import ClipLoader, ClipPolicy, FrameRule
from omnirl.types import VideoSettings
from tests.media.corpus_video import encode

RULE = FrameRule(16, 2, 16)


def loader(sources=None, store=None, **policy):
    return ClipLoader(DictStore() if store is None else store, RULE, ClipPolicy(**policy), sources)


def test_a_reference_says_what_was_sampled(clips):
    ref = loader(recipe=VideoSettings(num_frames=5)).load(clips["h264"])
    grid = RULE.plan(48, 64)
    assert (ref.height, ref.width, ref.num_runs, ref.num_tokens) == (grid.height, grid.width, 3, 3 * grid.num_tokens)
    assert ref.sampling.origins[0] == ("num_frames", 5, "media.video_*")
    assert ref.sampling.indices == (0, 7, 14, 22, 29)


def test_rows_and_checkpoints_have_their_say(clips):
    clip_loader = loader(recipe=VideoSettings(max_frames=20), checkpoint=VideoSettings(fps=2.0))
    assert clip_loader.load(clips["h264"]).sampling.origins[0] == ("fps", 2.0, "checkpoint")
    row = clip_loader.load(clips["h264"], VideoSettings(num_frames=4)).sampling
    assert row.origins == (("num_frames", 4, "row"), ("min_frames", 1, "default"), ("max_frames", 20, "media.video_*"))
    with pytest.raises(MediaError, match=r"h264.mp4: min_frames=30 \(row\) is more than max_frames=20 \(media.video_\*\)"):
        clip_loader.load(clips["h264"], VideoSettings(min_frames=30))


def test_a_clip_is_decoded_once_for_each_sampling(clips, tmp_path):
    path = shutil.copy(clips["h264"], tmp_path / "clip.mp4")
    clip_loader = loader()
    first = clip_loader.load("clip.mp4", base=str(tmp_path))
    Path(path).unlink()
    assert clip_loader.load("clip.mp4", base=str(tmp_path)) == first
    with pytest.raises(MediaError, match="no such file"):
        clip_loader.load("clip.mp4", VideoSettings(num_frames=3), base=str(tmp_path))


def test_a_clip_that_changed_is_refused(tmp_path):
    store = DictStore(max_bytes=200_000)
    encode(tmp_path / "a.mp4", total=4)
    encode(tmp_path / "b.mp4", total=16, height=64, width=64)
    clip_loader = loader(store=store)
    clip_loader.load(tmp_path / "a.mp4")
    clip_loader.load(tmp_path / "b.mp4")  # drops the first
    encode(tmp_path / "a.mp4", total=5)
    with pytest.raises(MediaError, match="the clip has changed"):
        clip_loader.load(tmp_path / "a.mp4")


def test_clips_stay_in_the_allowed_folder(clips):
    root = clips["folder"].parent
    clip_loader = loader(Sources(root=root))
    assert clip_loader.load("frames", base=str(root)).num_runs == 3
    assert clip_loader.load(f"file://{clips['folder']}").num_runs == 3
    with pytest.raises(MediaError, match="outside of the folder"):
        clip_loader.load(clips["h264"])
    with pytest.raises(MediaError, match="http is not allowed"):
        clip_loader.load("http://127.0.0.1/clip.mp4")


def test_a_data_url(clips):
    import base64

    url = f"data:video/mp4;base64,{base64.b64encode(clips['h264'].read_bytes()).decode()}"
    assert loader().load(url).digest == loader().load(clips["h264"]).digest
