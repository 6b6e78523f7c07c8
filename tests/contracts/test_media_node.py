"""One `media` node feeds a whole run: encoder, engine, trainer and record have the same processor arguments, and the processors
of transformers and vLLM, which might resize, are never called."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from omnirl.config.compose import compose_config
from omnirl.errors import EngineError, ModelError, PlaceholderMismatch
from omnirl.media import GridRule, normalize
from omnirl.media.pixels import tubelets
from omnirl.media.video import FrameRule
from omnirl.models.processor import NESTED
from omnirl.rollout import RolloutRunner
from omnirl.runtime.models import ensure_model
from omnirl.runtime.pixels import check_pixels, pixel_record
from omnirl.runtime.session import engine_group, make_encoder, media_store, model_spec, trainer_group
from omnirl.runtime.train import train
from omnirl.types import (
    Deadline,
    GenerationRequest,
    ImagePart,
    Message,
    PixelContract,
    Prompt,
    TextPart,
    TrainingBatch,
    VideoPart,
)
from tests.media.corpus_video import folder
from tests.omni import MINUTE, sample

#: none of these is a default of the recipe or of the miniature
MEDIA = (
    "min_patches=36",
    "max_patches=100",
    "background=black",
    "max_per_prompt=5",
    "video_num_frames=3",
    "video_max_frames=9",
)
MEDIA += ("video_patches=36", "video_min_frames=2", "video_workers=0")
SMALL = ("hidden_size=64", "num_heads=2", "ffn_size=64", "vision_hidden_size=32", "vision_layers=1", "vision_heads=2")
NAMES = [pytest.param(name, marks=() if name == "hf" else pytest.mark.engines) for name in ("hf", "vllm", "megatron")]


def config(*more, engine="hf"):
    overrides = [*(f"media.{key}" for key in MEDIA), *(f"model.tiny.{key}" for key in SMALL), f"backend.name={engine}"]
    overrides += ["backend.max_model_len=512", "backend.vllm.kv_cache_memory_mb=64", "backend.vllm.max_num_seqs=8"]
    overrides += ["backend.vllm.max_num_batched_tokens=512", "backend.megatron.max_requests=8"]
    return compose_config("tiny_omni_count", [*overrides, *more])


class Run:
    """The parts of a run with one configuration, and a row with a see-through picture and a clip of five frames."""

    def __init__(self, cfg, root):
        self.cfg, self.model = cfg, ensure_model(cfg)
        self.spec, self.store = model_spec(cfg, self.model), media_store(cfg)
        self.encoder = make_encoder(cfg, self.spec, self.store)
        Image.new("RGBA", (400, 300), (255, 0, 0, 0)).save(root / "clear.png")
        folder(5, size=dict.fromkeys(range(5), (64, 64)))(root / "clip")
        parts = (ImagePart("clear.png"), VideoPart("clip"), TextPart("How many?"))
        self.encoded = self.encoder.encode(Prompt("row", (Message("user", parts),), "3", root=str(root)))


@pytest.fixture
def run(tmp_path):
    return Run(config(), tmp_path)


def deadline():
    return Deadline.after(MINUTE)


def test_the_node_is_what_the_encoder_uses_and_the_record_says(run):
    """All arguments at once, as the recipe sets them: sizes, frames, colour; and what the checkpoint says of the rest."""
    encoder, spec, media = run.encoder, run.spec, run.cfg.media
    assert encoder.loader.rule == spec.rule == GridRule(16, 2, media.min_patches, media.max_patches)
    assert encoder.clips.rule == spec.video.rule == FrameRule(16, 2, media.video_patches, tubelet=2)
    picture, clip = run.encoded.media
    assert (picture.height, picture.width) == (spec.rule.plan(300, 400).height, spec.rule.plan(300, 400).width)
    assert not run.store.get(picture.digest).any(), "black under what is see-through"
    assert (len(clip.sampling.indices), clip.num_runs) == (3, 2)
    record = json.loads(json.dumps(pixel_record(spec, encoder)))
    assert record["size_rule"] == {"name": "GridRule", **dataclasses.asdict(spec.rule)}
    assert record["frame_rule"] == {"name": "FrameRule", **dataclasses.asdict(spec.video.rule)}
    assert record["video_sampling"] == {
        "num_frames": [3, "media.video_*"],
        "min_frames": [2, "media.video_*"],
        "max_frames": [9, "media.video_*"],
    }
    assert (record["background"], record["mean"], record["std"]) == ([0, 0, 0], list(spec.mean), list(spec.std))
    assert (record["processor"], record["resize"]) == (None, "Pillow bicubic")


@pytest.mark.parametrize("name", NAMES)
def test_engine_and_trainer_use_what_the_encoder_made(run, name):
    """Arguments, bits and bans are the encoder's, on both sides."""
    cfg = config(engine=name)
    runner = RolloutRunner(None, run.encoder, None, run.spec, cfg.rollout, seed=0)
    with engine_group(cfg, run.model, run.store) as engines, trainer_group(cfg, run.model, run.store) as trainers:
        check_pixels(run.spec, {"engine": engines, "trainer": trainers}, deadline())
        contracts = {group.call("pixel_contract", deadline=deadline())[0] for group in (engines, trainers)}
        assert contracts == {PixelContract.of(run.spec)}
        assert runner.sampling("a").banned_ids == contracts.pop().media_ids
        digests = [ref.digest for ref in run.encoded.media]
        picture, clip = engines.call("pixel_values", run.encoded.media, deadline=deadline())[0]
        spec = run.spec
        np.testing.assert_array_equal(picture, normalize(run.store.get(digests[0]), spec.mean, spec.std))
        np.testing.assert_array_equal(clip, tubelets(run.store.get(digests[1]), spec.video.rule.tubelet, spec.mean, spec.std))
        request = GenerationRequest("a", run.encoded, runner.sampling("a"))
        (done,) = engines.call("generate", [request], MINUTE, deadline=deadline())[0]
        scores = trainers.call("logprobs", TrainingBatch.of([sample(run.encoded, done.ids)]), deadline=deadline())[0]
        np.testing.assert_allclose(done.logprobs, scores[0], rtol=0, atol=1e-5)


@pytest.fixture
def no_processor(monkeypatch):
    """Transformers' processors, fast, slow and of clips, raise when they are called or looked for."""
    import transformers
    from transformers import image_processing_utils, processing_utils, video_processing_utils

    def never(*args, **kwargs):
        raise AssertionError("a processor of transformers was used")

    for owner, method in (
        (image_processing_utils.BaseImageProcessor, "__call__"),
        (image_processing_utils.BaseImageProcessor, "preprocess"),
        (video_processing_utils.BaseVideoProcessor, "__call__"),
        (processing_utils.ProcessorMixin, "__call__"),
    ):
        monkeypatch.setattr(owner, method, never)

    def forbid_loading():
        for auto in (transformers.AutoProcessor, transformers.AutoImageProcessor, transformers.AutoVideoProcessor):
            monkeypatch.setattr(auto, "from_pretrained", never)

    return never, forbid_loading


@pytest.mark.parametrize("name", NAMES)
def test_no_other_processor_sees_a_picture(run, name, no_processor, monkeypatch):
    """vLLM may load one when it starts; no argument reaches it, and no picture does."""
    cfg, (never, forbid_loading) = config(engine=name), no_processor
    if name != "vllm":
        forbid_loading()
    with engine_group(cfg, run.model, run.store) as engines, trainer_group(cfg, run.model, run.store) as trainers:
        if name == "vllm":
            from vllm.multimodal.processing import BaseMultiModalProcessor

            multimodal = engines.local.engine._core.vllm_config.model_config.multimodal_config
            assert not multimodal.mm_processor_kwargs
            for method in ("apply", "_call_hf_processor", "_cached_apply_hf_processor"):
                monkeypatch.setattr(BaseMultiModalProcessor, method, never)
            forbid_loading()
        sampling = RolloutRunner(None, run.encoder, None, run.spec, cfg.rollout, seed=0).sampling("a")
        request = GenerationRequest("a", run.encoded, sampling)
        (done,) = engines.call("generate", [request], MINUTE, deadline=deadline())[0]
        trainers.call("train_step", TrainingBatch.of([sample(run.encoded, done.ids)]), 1e-4, deadline=deadline())


def other_mean(model, tmp_path):
    """The same checkpoint with another mean in all its files."""
    copy = shutil.copytree(model, tmp_path / "other")
    for name in (NESTED, "config.json"):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace("0.48145466", "0.5"))
    return copy


@pytest.mark.parametrize("name", NAMES)
def test_another_mean_on_one_side_is_refused(run, name, tmp_path):
    """And would show: its vision tower is handed other bits."""
    cfg, copy = config(engine=name), other_mean(run.model, tmp_path)
    ref = run.encoded.media[0]
    with engine_group(cfg, copy, run.store) as engines:
        with pytest.raises(ModelError, match=r"the engine \(worker 0\) reads another checkpoint there .*mean: \(0.4814.*\(0.5"):
            check_pixels(run.spec, {"engine": engines}, deadline())
        planes = engines.call("pixel_values", [ref], deadline=deadline())[0][0]
        assert (planes != normalize(run.store.get(ref.digest), run.spec.mean, run.spec.std)).any()


def test_another_mean_of_the_trainer_is_refused(run, tmp_path):
    with (
        trainer_group(run.cfg, other_mean(run.model, tmp_path), run.store) as trainers,
        pytest.raises(ModelError, match=r"the trainer \(worker 0\) reads another checkpoint there"),
    ):
        check_pixels(run.spec, {"trainer": trainers}, deadline())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", "qwen_vl"),
        ("patch_size", 14),
        ("merge", 4),
        ("tubelet", 0),
        ("mean", (0.5, 0.5, 0.5)),
        ("std", (0.5, 0.5, 0.5)),
        ("image_id", 19),
        ("media_ids", (18,)),
        ("vocab_size", 9),
    ],
)
def test_any_difference_names_the_argument_and_the_worker(run, field, value):
    ours = PixelContract.of(run.spec)

    class Workers:
        def call(self, method, deadline):
            return [ours, dataclasses.replace(ours, **{field: value})]

    with pytest.raises(ModelError, match=rf"the engine \(worker 1\) .*: {field}: .*; give all machines the same folder"):
        check_pixels(run.spec, {"engine": Workers()}, deadline())
    assert {f.name for f in dataclasses.fields(PixelContract)} <= {
        *("family", "patch_size", "merge", "tubelet", "mean", "std", "image_id", "media_ids", "vocab_size")
    }


@pytest.mark.parametrize("name", NAMES)
def test_another_size_rule_on_one_side_is_refused(run, name, tmp_path):
    """Ids of one budget of patches with the pixels of another, in any engine and in the trainer."""
    (tmp_path / "b").mkdir()
    other = Run(config("media.max_patches=64", "media.video_patches=64", engine=name), tmp_path / "b")
    for ref in other.encoded.media:
        run.store.put(other.store.get(ref.digest))
    mixed = dataclasses.replace(run.encoded, media=other.encoded.media)
    cfg = config(engine=name)
    sampling = RolloutRunner(None, run.encoder, None, run.spec, cfg.rollout, seed=0).sampling("a")
    with engine_group(cfg, run.model, run.store) as engines, trainer_group(cfg, run.model, run.store) as trainers:
        message = r"prompt 'row': \d+ placeholders are recorded .* has \d+ embeddings, .*`media.max_patches`"
        with pytest.raises(EngineError, match=f"request 'a': {message}"):
            engines.call("generate", [GenerationRequest("a", mixed, sampling)], MINUTE, deadline=deadline())
        with pytest.raises(
            PlaceholderMismatch, match=r"prompt 'row': \d+ placeholders .* became \d+ embeddings; .*`media.max_p"
        ):
            trainers.call("logprobs", TrainingBatch.of([sample(mixed, [40, 50])]), deadline=deadline())


def test_a_whole_run_records_its_node(tmp_path, session_cache):
    quick = ["trainer.warmup.max_steps=0", "trainer.max_steps=0", "eval.every=0", "eval.final_samples=1"]
    quick += ["dataset.synthetic.num_train=16", "dataset.synthetic.num_eval=4", "algo.prompts_per_step=2", "algo.group_size=2"]
    cfg = config(*quick, "logger.tensorboard=false", "logger.report=false", "checkpoint.every=0")
    assert train(cfg, tmp_path / "run", Console(quiet=True)) == 0
    spec = model_spec(cfg, ensure_model(cfg))
    store = media_store(cfg)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["pixels"]
    assert recorded == json.loads(json.dumps(pixel_record(spec, make_encoder(cfg, spec, store))))
