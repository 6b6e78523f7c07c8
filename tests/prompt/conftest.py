from pathlib import Path

import pytest
from PIL import Image as Pillow

from omnirl.config.schema import PromptConfig
from omnirl.media import DictStore, GridRule, ImagePolicy, MediaLoader
from omnirl.media.video import ClipLoader, FrameRule
from omnirl.models.nemotron_omni.tokenizer import MEDIA, save_tokenizer
from omnirl.prompt import PromptEncoder, Tokenizer
from omnirl.types import ModelSpec, VideoSpec

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(checkpoint) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@pytest.fixture(scope="session")
def spec(checkpoint) -> ModelSpec:
    return ModelSpec(
        family="nemotron_omni", path=checkpoint, vocab_size=512, context=2048, pad_id=3, stop_ids=(11,),
        image_id=18, image_start_id=21, image_end_id=22, media_ids=(18, 20, 21, 22, 23, 24, 25), media_markers=MEDIA,
        rule=GridRule(16, 2, 16, 256), mean=MEAN, std=STD,
        video=VideoSpec("<video>", FrameRule(16, 2, 16)),
        processor="NemotronH_Omni_Reasoning_V3ImageProcessor (processor_config.json)",
    )  # fmt: skip


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """A folder with red.png (64x64 → 4 embeddings) and wide.png (80x128 → 12)."""
    folder = tmp_path_factory.mktemp("pictures")
    Pillow.new("RGB", (64, 64), "red").save(folder / "red.png")
    Pillow.linear_gradient("L").resize((128, 80)).convert("RGB").save(folder / "wide.png")
    return folder


@pytest.fixture
def make_encoder(tokenizer, spec):
    def make(context=2048, max_new_tokens=16, max_media=8, cache_size=8192, **prompt) -> PromptEncoder:
        store = DictStore()
        loader = MediaLoader(store, spec.rule, ImagePolicy(max_pixels=10**6))
        return PromptEncoder(
            tokenizer,
            spec,
            loader,
            PromptConfig(**prompt),
            context=context,
            max_new_tokens=max_new_tokens,
            max_media=max_media,
            clips=ClipLoader(store, spec.video.rule),
            cache_size=cache_size,
        )

    return make
