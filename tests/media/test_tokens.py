"""Predicted embeddings against the processor's own count, and against what the vision tower makes."""

import numpy as np

from omnirl.media import GridRule
from omnirl.models import load_policy

PUBLISHED = GridRule(16, 2, 1024, 13312)


def test_the_processors_count_for_2000_sizes():
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import get_patch_grid_size

    for height, width in np.random.default_rng(0).integers(16, 4001, (2000, 2)).tolist():
        plan = PUBLISHED.plan(height, width)
        rows, columns = get_patch_grid_size(plan.height, plan.width, 16, 2, 1024, 13312)
        assert plan.num_tokens == rows * columns // 4
        once = get_patch_grid_size(height, width, 16, 2, 1024, 13312)
        if max(height, width) < 8 * min(height, width):  # beyond, the processor may not be stable under its own output
            assert once == (rows, columns)


def test_the_embeddings_of_40_sizes(omni):
    rule, policy = omni.spec.rule, load_policy(omni.path)
    rng = np.random.default_rng(1)
    plans = list({rule.plan(*size) for size in rng.integers(16, 2000, (200, 2)).tolist()})[:40]
    assert len(plans) == 40
    features = policy.encode([rng.integers(0, 256, (p.height, p.width, 3), dtype=np.uint8) for p in plans])
    assert [len(f) for f in features] == [p.num_tokens for p in plans]
