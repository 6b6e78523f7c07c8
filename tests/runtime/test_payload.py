from omnirl.media import DictStore
from omnirl.runtime.launchers.wire import pack
from omnirl.runtime.payload import payload_metrics
from omnirl.types import TrainingBatch
from tests.omni import clip_prompt, make_prompt, sample


def test_what_a_step_weighs(omni):
    store = DictStore()
    picture, clip = make_prompt(omni.spec, store, pictures=(0,)), clip_prompt(omni.spec, store, clips=((0, 5),))
    batches = [TrainingBatch.of([sample(p, [50]) for p in (picture, picture, clip)]), TrainingBatch.of([sample(clip, [50])])]
    one, five = 64 * 64 * 3, 5 * 64 * 64 * 3
    assert payload_metrics(batches, sent=0) == {
        "media/logical_bytes": 2 * one + 2 * five,
        "media/physical_bytes": one + five,
        "media/serialised_bytes": sum(pack(batch).nbytes for batch in batches),
        "media/visual_tokens": 2 * 4 + 2 * 3 * 4,
    }
    assert payload_metrics(batches, sent=12345)["media/serialised_bytes"] == 12345
