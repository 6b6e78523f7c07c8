"""Miniatures for tests of models, engines and trainers: checkpoints small enough to build in a tenth of a second, prompts and
samples made by hand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from omnirl.config.schema import (
    AlgoConfig,
    BackendConfig,
    HfConfig,
    MegatronEngineConfig,
    ModelConfig,
    TinyModelConfig,
    TrainerConfig,
    VllmConfig,
)
from omnirl.media import DictStore
from omnirl.types import (
    Deadline,
    EncodedPrompt,
    ExpandedIds,
    GenerationRequest,
    MediaRef,
    SamplingParams,
    TrainingSample,
    VideoSampling,
)

#: attention, Mamba-2 + attention, Mamba-2 + attention + MoE
PATTERNS = ("*-*-", "M*M-", "ME*E")
#: the miniature of the other family
QWEN = "qwen_vl"
#: what contracts are run with
MODELS = (*PATTERNS, QWEN)
#: heights and widths that the grid rule leaves as they are
SIZES = ((64, 64), (64, 96), (96, 64), (64, 64), (32, 128))
TINY = TinyModelConfig(
    hidden_size=64, num_heads=2, ffn_size=64, vision_hidden_size=32, vision_layers=1, vision_heads=2, init_scale=3.0
)
MINUTE = 60.0


def tiny(pattern="*-*-", **changes):
    return TinyModelConfig(**{**vars(TINY), "pattern": pattern, **changes})


def picture(seed):
    """uint8 noise in one of `SIZES`."""
    height, width = SIZES[seed % len(SIZES)]
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def make_prompt(spec, store, name="p", text=(40, 50, 60, 70), pictures=()):
    """`text` ids around `pictures` (seeds): half of the text, the pictures, the other half."""
    half = len(text) // 2
    ids, media, positions = list(text[:half]), [], []
    for seed in pictures:
        pixels = picture(seed)
        count = pixels.shape[0] * pixels.shape[1] // (spec.patch_size * spec.merge) ** 2
        media.append(MediaRef(store.put(pixels), pixels.shape[0], pixels.shape[1], count))
        positions.append((len(ids) + 1, count))
        ids += [spec.image_start_id, *[spec.image_id] * count, spec.image_end_id]
    ids += text[half:]
    return EncodedPrompt(name, ExpandedIds(ids), tuple(media), np.array(positions, dtype=np.int32).reshape(-1, 2))


def mixed_prompts(spec, store):
    """Prompts of different lengths with 1, 0 and 2 pictures."""
    return [
        make_prompt(spec, store, "one", (40, 50, 60, 70), (0,)),
        make_prompt(spec, store, "none", (33, 45, 90)),
        make_prompt(spec, store, "two", (99, 100, 101, 102, 103, 104), (1, 4)),
    ]


def sampling(spec, **changes):
    return SamplingParams(
        **{"max_new_tokens": 8, "seed": 1, "stop_ids": spec.stop_ids, "banned_ids": spec.media_ids, **changes}
    )


def request(spec, name, prompt, **changes):
    return GenerationRequest(name, prompt, sampling(spec, **changes))


def result(handle):
    return handle.result(Deadline.after(MINUTE))


def sample(prompt, response, advantage=1.0, logprobs=None, mask=None, **fields):
    response = np.array(response, dtype=np.int32)
    logprobs = np.full(len(response), -2.0, np.float32) if logprobs is None else np.asarray(logprobs, np.float32)
    mask = np.ones(len(response), np.float32) if mask is None else np.asarray(mask, np.float32)
    return TrainingSample(prompt, response, logprobs, advantage, mask, **fields)


def make_trainer(path, store, *, model=None, algo=None, temperature=1.0, rank=0, world_size=1, **settings):
    from omnirl.trainers.torch import TorchTrainer

    configs = ModelConfig(**(model or {})), TrainerConfig(**settings), AlgoConfig(**(algo or {}))
    return TorchTrainer(Path(path), store, *configs, temperature, MINUTE, rank, world_size)


def make_engine(path, store, max_batch=8, max_model_len=256):
    from omnirl.engines import make_engine as make

    backend = BackendConfig(max_model_len=max_model_len, hf=HfConfig(max_batch=max_batch))
    return make("hf", checkpoint=Path(path), store=store, backend=backend, dtype="float32", device="cpu")


def make_vllm(path, store, max_batch=8, max_model_len=256, dtype="float32", **settings):
    from omnirl.engines import make_engine as make

    vllm = VllmConfig(max_num_seqs=max_batch, **{"kv_cache_memory_mb": 32, **settings})
    backend = BackendConfig(name="vllm", max_model_len=max_model_len, vllm=vllm)
    return make("vllm", checkpoint=Path(path), store=store, backend=backend, dtype=dtype, device="cpu")


def make_megatron(path, store, max_batch=8, max_model_len=256, dtype="float32", **settings):
    from omnirl.engines import make_engine as make

    megatron = MegatronEngineConfig(max_requests=max_batch, **{"block_size": 16, **settings})
    backend = BackendConfig(name="megatron", max_model_len=max_model_len, megatron=megatron)
    return make("megatron", checkpoint=Path(path), store=store, backend=backend, dtype=dtype, device="cpu")


def build_all(folder):
    """Pattern, or `QWEN` → checkpoint, its spec, a media store, and prompts with 1, 0 and 2 pictures."""
    from omnirl.models import family, read_spec

    models = {}
    for i, name in enumerate(MODELS):
        own, settings = (family(QWEN), tiny()) if name == QWEN else (family("nemotron_omni"), tiny(name))
        path = own.build_checkpoint(folder / str(i), settings)
        spec, store = read_spec(path), DictStore()
        models[name] = SimpleNamespace(path=path, spec=spec, store=store, prompts=mixed_prompts(spec, store))
    return models


def clip(seed, frames):
    """uint8 noise `[frames, H, W, 3]` in one of `SIZES`."""
    height, width = SIZES[seed % len(SIZES)]
    return np.random.default_rng([seed, frames]).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def clip_prompt(spec, store, name="clip", clips=((0, 4),), pictures=()):
    """Words, pictures (seeds), clips (seed, frames) with words between their tubelets, words."""
    ids, media, positions = [40, 50], [], []

    def run(count):
        ids.append(spec.image_start_id)
        positions.append((len(ids), count))
        ids.extend([*[spec.image_id] * count, spec.image_end_id])

    for seed in pictures:
        pixels = picture(seed)
        count = pixels.shape[0] * pixels.shape[1] // (spec.patch_size * spec.merge) ** 2
        media.append(MediaRef(store.put(pixels), *pixels.shape[:2], count))
        run(count)
    for seed, frames in clips:
        pixels = clip(seed, frames)
        runs = spec.video.rule.num_tubelets(frames)
        count = pixels.shape[1] * pixels.shape[2] // (spec.patch_size * spec.merge) ** 2
        times = tuple(range(0, 500 * frames, 500))
        sampling = VideoSampling(tuple(range(frames)), times, frames, 2.0, frames)
        media.append(MediaRef(store.put(pixels), *pixels.shape[1:3], runs * count, "video", runs, sampling))
        for i in range(runs):
            ids += [60 + i, 70]
            run(count)
    ids += [80, 90]
    return EncodedPrompt(name, ExpandedIds(ids), tuple(media), np.array(positions, dtype=np.int32).reshape(-1, 2))


def clip_prompts(spec, store):
    """A clip, an odd one, one frame, a picture and a clip, two clips and two pictures, no media."""
    return [
        clip_prompt(spec, store, "even"),
        clip_prompt(spec, store, "odd", ((1, 5),)),
        clip_prompt(spec, store, "one", ((2, 1),)),
        clip_prompt(spec, store, "both", ((0, 4),), (1,)),
        clip_prompt(spec, store, "many", ((0, 4), (3, 3)), (0, 4)),
        make_prompt(spec, store, "none", (33, 45, 90)),
    ]
