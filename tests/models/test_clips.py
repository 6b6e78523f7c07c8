"""Clips in the policy: tubelets, their features, and where they go."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.models.nemotron_h_omni.video_processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3VideoProcessor

from omnirl.errors import PlaceholderMismatch
from omnirl.media.pixels import normalize, tubelets
from omnirl.media.video import FrameRule
from omnirl.models import load_policy
from omnirl.models.policy import place
from omnirl.types import TrainingBatch
from tests.omni import clip, clip_prompt, clip_prompts, make_prompt, make_trainer, picture, sample


@pytest.fixture(scope="module")
def policy(omni):
    return load_policy(omni.path)


def encoded(policy, store, prompts):
    digests = list(dict.fromkeys(ref.digest for prompt in prompts for ref in prompt.media))
    return dict(zip(digests, policy.encode([store.get(d) for d in digests]), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 2, 3, 6])
def test_features_are_those_of_transformers(policy, frames):
    ours = policy.encode([clip(1, frames)])[0]
    planes = np.stack([normalize(f, policy.spec.mean, policy.spec.std) for f in clip(1, frames)])
    theirs = policy.model.get_video_features(torch.from_numpy(planes), return_dict=True).pooler_output
    assert ours.shape[0] == policy.spec.video.rule.num_tubelets(frames) * theirs.shape[1]
    torch.testing.assert_close(ours, theirs.flatten(0, 1), rtol=0, atol=1e-6)


@torch.no_grad()
def test_pictures_and_clips_are_encoded_together(policy):
    media = [picture(0), clip(0, 4), picture(3), clip(3, 4), clip(1, 2)]
    together = policy.encode(media)
    for medium, features in zip(media, together, strict=True):
        torch.testing.assert_close(features, policy.encode([medium])[0], rtol=0, atol=1e-6)


def test_odd_clips_are_filled_by_their_last_frame(policy):
    planes = tubelets(clip(0, 3), 2, policy.spec.mean, policy.spec.std)
    assert planes.shape == (2, 6, 64, 64)
    np.testing.assert_array_equal(planes[1, :3], planes[1, 3:])
    np.testing.assert_array_equal(planes[0, 3:], normalize(clip(0, 3)[1], policy.spec.mean, policy.spec.std))


def test_each_tubelet_goes_to_its_own_place(omni, policy):
    prompt = clip_prompt(omni.spec, omni.store, "both", ((0, 5),), (1,))
    features = encoded(policy, omni.store, [prompt])
    placements = place(prompt, 2, 7, features)
    assert [(p.row, p.start, len(p.features)) for p in placements] == [
        (2, start + 7, count) for start, count in prompt.media_positions.tolist()
    ]
    found = torch.cat([p.features for p in placements[1:]])
    torch.testing.assert_close(found, features[prompt.media[1].digest], rtol=0, atol=0)


def test_embeddings_that_do_not_fit_the_tubelets(omni, policy):
    prompt = clip_prompt(omni.spec, omni.store)
    features = {digest: f[:-1] for digest, f in encoded(policy, omni.store, [prompt]).items()}
    with pytest.raises(
        PlaceholderMismatch, match=r"8 placeholders from position \d+ on, but the video of 64x64 pixels became 7"
    ):
        place(prompt, 0, 0, features)


def test_runs_that_do_not_add_up(omni):
    prompt = clip_prompt(omni.spec, omni.store)
    with pytest.raises(ValueError, match="1 runs are not those of its media"):
        list(replace(prompt, media_positions=prompt.media_positions[:1]).placed_media())


def test_the_size_rule_is_the_processor_s():
    rng = np.random.default_rng(0)
    for budget, keep in ((16, True), (1024, True), (1024, False), (250, True)):
        processor = NemotronH_Omni_Reasoning_V3VideoProcessor(
            norm_mean=[0.5] * 3, norm_std=[0.5] * 3, video_target_num_patches=budget, video_maintain_aspect_ratio=keep
        )
        rule = FrameRule(16, 2, budget, keep)
        for height, width in rng.integers(1, 4000, (500, 2)).tolist():
            columns, rows = processor._compute_target_patches(height, width)
            grid = rule.plan(height, width)
            assert (grid.height, grid.width, grid.num_tokens) == (rows * 16, columns * 16, rows * columns // 4)


def test_training_moves_the_part_that_a_batch_uses(omni):
    """Tubelets and pictures have projections of their own; the one without a gradient stays as it is."""
    tower = "vision_model.radio_model.model.patch_generator."
    for prompt, moves, stays in (
        (clip_prompt(omni.spec, omni.store), "video_embedder", "embedder"),
        (make_prompt(omni.spec, omni.store, pictures=(0,)), "embedder", "video_embedder"),
    ):
        trainer = make_trainer(omni.path, omni.store)
        before = {name: t.clone() for name, t in next(trainer.weights()).tensors.items()}
        trainer.train_step(TrainingBatch.of([sample(prompt, [40, 41])]), lr=1e-2)
        after = next(trainer.weights()).tensors
        assert not torch.equal(before[f"{tower}{moves}.weight"], after[f"{tower}{moves}.weight"])
        assert torch.equal(before[f"{tower}{stays}.weight"], after[f"{tower}{stays}.weight"])


def test_microbatches_of_clips_add_up(omni):
    samples = [sample(p, [40 + i, 50], advantage=1.0 - i / 2) for i, p in enumerate(clip_prompts(omni.spec, omni.store))]
    whole, parts = (
        make_trainer(omni.path, omni.store, micro_batch=size).train_step(TrainingBatch.of(samples), lr=1e-3) for size in (0, 2)
    )
    assert parts["train/loss"] == pytest.approx(whole["train/loss"], abs=1e-6)
    assert parts["train/grad_norm"] == pytest.approx(whole["train/grad_norm"], rel=1e-4)
