import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.media import GridRule, patchify, pixels_digest, resize
from omnirl.types import Image

RULE = GridRule(16, 2, 16, 256)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def picture(height, width):
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image(pixels, "noise", pixels_digest(pixels))


def test_resize_is_the_identity_when_the_size_fits():
    image = picture(64, 64)
    assert resize(image, RULE.plan(64, 64)) is image.pixels


def test_resize_is_pillow_bicubic():
    image = picture(100, 60)
    grid = RULE.plan(100, 60)
    expected = Pillow.fromarray(image.pixels).resize((grid.width, grid.height), Pillow.Resampling.BICUBIC)
    np.testing.assert_array_equal(resize(image, grid), np.asarray(expected))


def test_digest_depends_on_shape_and_bytes():
    pixels = picture(4, 6).pixels
    assert pixels_digest(pixels) == pixels_digest(pixels.copy())
    assert pixels_digest(pixels) == pixels_digest(np.asfortranarray(pixels))
    assert pixels_digest(pixels) != pixels_digest(pixels.reshape(6, 4, 3))
    changed = pixels.copy()
    changed[0, 0, 0] ^= 1
    assert pixels_digest(pixels) != pixels_digest(changed)


def test_patchify_against_loops():
    pixels = picture(4, 6).pixels
    patches = patchify(pixels, 2, MEAN, STD)
    assert patches.dtype == np.float32
    assert patches.flags.c_contiguous
    expected = [
        [(pixels[2 * r + y, 2 * c + x, k] / 255 - MEAN[k]) / STD[k] for k in range(3) for y in range(2) for x in range(2)]
        for r in range(2)
        for c in range(3)
    ]
    np.testing.assert_allclose(patches, expected, atol=1e-6)


def test_patchify_refuses_a_size_that_does_not_divide():
    with pytest.raises(ValueError, match="5x6 pixels does not divide into patches of 2"):
        patchify(picture(5, 6).pixels, 2, MEAN, STD)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (80, 128), (37, 211), (500, 27), (1, 1), (300, 300)])
def test_the_processor_agrees_and_its_own_resize_is_the_identity(height, width):
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3ImageProcessor

    processor = NemotronH_Omni_Reasoning_V3ImageProcessor(
        patch_size=16, min_num_patches=16, max_num_patches=256, image_mean=list(MEAN), image_std=list(STD)
    )
    grid = RULE.plan(height, width)
    pixels = resize(picture(height, width), grid)
    output = processor(Pillow.fromarray(pixels), return_tensors="pt")
    assert output["image_grid_hw"].tolist() == [[grid.height // 16, grid.width // 16]]
    np.testing.assert_allclose(patchify(pixels, 16, MEAN, STD), output["pixel_values"].numpy(), atol=1e-6)
