from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.nemotron_h_omni.processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3Processor
from transformers.video_utils import VideoMetadata

from omnirl.errors import MediaError, PlaceholderMismatch, PromptTooLong
from omnirl.media.video import ClipPolicy
from omnirl.prompt.clips import clip_text
from omnirl.types import ImagePart, Message, Prompt, TextPart, VideoPart, VideoSettings
from tests.media.corpus_video import encode, folder

RED = ImagePart("red.png")


@pytest.fixture(scope="module")
def clips(pictures):
    """Beside the pictures: clip.mp4 (8 frames at 2 a second, 64x64 → 4 embeddings a tubelet), `frames` (3 pictures)."""
    encode(pictures / "clip.mp4", total=8, rate=2, height=64, width=64)
    folder(3, size=dict.fromkeys(range(3), (64, 64)))(pictures / "frames")
    return pictures


def prompt(*parts, root="", **fields):
    parts = tuple(TextPart(p) if isinstance(p, str) else p for p in parts)
    return Prompt("train-17", (Message("user", parts),), "3", root=str(root), **fields)


def clip(name="clip.mp4", **settings):
    return VideoPart(name, VideoSettings(**settings))


def processor_text(timestamps_ms, count, tubelet=2):
    """What transformers' processor writes for a clip of 1000 fps whose indices are milliseconds."""
    self = SimpleNamespace(
        image_start_token="<img>", image_token="<image>", image_end_token="</img>", video_temporal_patch_dim=tubelet
    )
    metadata = VideoMetadata(total_num_frames=10**6, fps=1000, frames_indices=list(timestamps_ms))
    return NemotronH_Omni_Reasoning_V3Processor.replace_video_token(
        self, {"num_tokens": [count]}, 0, num_frames=len(timestamps_ms), video_metadata=metadata
    )


@given(st.lists(st.integers(0, 4_000_000), min_size=1, max_size=9).map(sorted), st.integers(1, 3))
def test_the_words_are_the_processor_s(timestamps, tubelet):
    ours = clip_text(timestamps, tubelet, "<img><image><image></img>")
    assert ours == processor_text(timestamps, 2, tubelet)


def test_ids_of_a_clip(make_encoder, tokenizer, clips):
    encoded = make_encoder().encode(prompt("Look: ", clip(num_frames=3), "How many?", root=clips))
    ref = encoded.media[0]
    assert (ref.kind, ref.num_runs, ref.num_tokens, ref.sampling.timestamps_ms) == ("video", 2, 8, (0, 2000, 3500))
    words = processor_text(ref.sampling.timestamps_ms, 4)
    assert encoded.ids.tolist() == tokenizer.encode(
        f"<|im_start|>user\nLook: {words}How many?<|im_end|>\n<|im_start|>assistant\n"
    )
    for start, count in encoded.media_positions.tolist():
        assert encoded.ids.array[start - 1 : start + count + 1].tolist() == [21, *[18] * count, 22]


def test_pictures_and_clips_in_one_prompt(make_encoder, clips):
    encoder = make_encoder()
    encoded = encoder.encode(prompt(RED, clip("frames"), "and", clip(num_frames=1), RED, root=clips))
    assert [ref.kind for ref in encoded.media] == ["image", "video", "video", "image"]
    assert [ref.num_runs for ref in encoded.media] == [1, 2, 1, 1]
    assert [len(runs) for _, runs in encoded.placed_media()] == [1, 2, 1, 1]
    assert encoder.loader.store.get(encoded.media[1].digest).shape == (3, 64, 64, 3)
    assert encoder.loader.store.get(encoded.media[3].digest).shape == (64, 64, 3)


def test_literal_markers_beside_a_clip_stay_text(make_encoder, clips):
    encoder = make_encoder()
    encoded = encoder.encode(prompt("is <video> or <image> ", clip(num_frames=2), " here <video>?", root=clips))
    assert (len(encoded.media_positions), encoded.ids.tolist().count(20)) == (1, 0)
    assert "is <video> or <image> Frame 1" in encoder.decode(encoded.ids.tolist())


def test_a_template_that_loses_or_reorders_clips(make_encoder, clips, tmp_path):
    template = tmp_path / "t.jinja"
    for body, found in (("<video>", "video"), ("<video><image>", "video, image"), ("", "none")):
        template.write_text(body + "x")
        with pytest.raises(PlaceholderMismatch, match=f"rendered {found} for the parts image, video"):
            make_encoder(template=str(template)).encode(prompt(RED, clip(num_frames=2), root=clips))


def test_clips_count_as_media(make_encoder, clips):
    with pytest.raises(MediaError, match="2 pictures and clips, the limit is 1"):
        make_encoder(max_media=1).encode(prompt(RED, clip(), root=clips))


def test_too_many_frames_for_the_context(make_encoder, clips):
    with pytest.raises(PromptTooLong, match=r"16 of them pictures and clips.*media.video_num_frames"):
        make_encoder(context=64).encode(prompt(clip(num_frames=8), root=clips))


def test_a_checkpoint_without_clips(make_encoder, clips):
    """Said of each row without opening anything, and again when it is encoded."""
    encoder = make_encoder()
    encoder.clips = None
    message = (
        r"(clip|gone).mp4 \(prompt 'train-17'\): the checkpoint .* \(model.family=nemotron_omni\) takes no clips; .*`model"
    )
    for judge, name in ((encoder.check, "gone.mp4"), (encoder.encode, "clip.mp4")):
        with pytest.raises(MediaError, match=message):
            judge(prompt("Look: ", clip(name), root=clips))


def test_a_row_against_the_recipe_is_judged_without_opening_it(make_encoder):
    encoder = make_encoder()
    encoder.clips.policy = ClipPolicy(recipe=VideoSettings(max_frames=4))
    encoder.check(prompt(clip("gone.mp4", num_frames=4)))
    message = r"gone.mp4 \(prompt 'train-17'\): min_frames=5 \(row\) is more than max_frames=4 \(media.video_\*\)"
    with pytest.raises(MediaError, match=message):
        encoder.check(prompt(clip("gone.mp4", min_frames=5)))


def test_a_bad_clip_names_its_prompt(make_encoder, clips):
    with pytest.raises(MediaError, match=r"gone.mp4 \(prompt 'train-17'\): no such file"):
        make_encoder().encode(prompt(clip("gone.mp4"), root=clips))
