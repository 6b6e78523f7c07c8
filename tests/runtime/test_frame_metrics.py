import numpy as np
import pytest

from omnirl.runtime.payload import frame_metrics
from omnirl.track import describe
from omnirl.types import EncodedPrompt, ExpandedIds, MediaRef, TrainingBatch, TrainingSample, VideoSampling


def sample(*media):
    runs = sum(ref.num_runs for ref in media)
    prompt = EncodedPrompt("p", ExpandedIds(np.arange(4)), media, np.zeros((runs, 2), np.int32))
    return TrainingSample(prompt, np.arange(2, dtype=np.int32), np.zeros(2, np.float32), 0.5, np.ones(2, np.float32))


def clip(digest, frames, clamped=0, limited=0):
    sampling = VideoSampling(tuple(range(frames)), tuple(range(frames)), 30, 10.0, frames + clamped + limited, clamped, limited)
    return MediaRef(digest, 32, 32, 4, "video", 1, sampling)


def test_frames_of_distinct_clips_are_counted():
    short, long, picture = clip("a", 3, clamped=5), clip("b", 8, limited=40), MediaRef("c", 32, 32, 4)
    batches = [TrainingBatch.of([sample(short), sample(short)]), TrainingBatch.of([sample(picture, long)])]
    found = frame_metrics(batches)
    assert found == {"media/frames_sampled": 11, "media/frames_clamped": 5, "media/frames_limited": 40}
    assert all(describe(name) for name in found)


@pytest.mark.parametrize("media", [(), (MediaRef("c", 32, 32, 4),)])
def test_a_step_without_clips_says_nothing_about_frames(media):
    assert frame_metrics([TrainingBatch.of([sample(*media)])]) == {}
