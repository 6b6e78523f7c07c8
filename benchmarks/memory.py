"""The estimate of `--dry-run` against live tensors: one train step and one generation of a miniature on the CPU, part by part.

Example:
    python benchmarks/memory.py          # one row a case: parts as measured, and estimate / measured
"""

import argparse
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omnirl.config.activations import Load, activations
from omnirl.config.architecture import parameter_shapes, tiny_architecture
from omnirl.config.memory import BYTES, STEP_COUNTER, count
from omnirl.config.schema import AlgoConfig, BackendConfig, HfConfig, LoraConfig, ModelConfig, TinyModelConfig, TrainerConfig
from omnirl.engines.hf import HfEngine
from omnirl.media import DictStore
from omnirl.models import read_spec
from omnirl.models.nemotron_omni.build import build_checkpoint
from omnirl.trainers.torch import TorchTrainer
from omnirl.types import (
    EncodedPrompt,
    ExpandedIds,
    GenerationRequest,
    MediaRef,
    SamplingParams,
    TrainingBatch,
    TrainingSample,
)

PATTERNS = ("*-*-", "M*M-", "ME*E")
SIDE = 96  # pixels of the square picture: 6 × 6 patches, 9 embeddings


@dataclass(frozen=True)
class Case:
    """One microbatch of `sequences` completions of `new` tokens, `group` of them of one prompt of `text` ids and a picture."""

    pattern: str
    dtype: str = "float32"
    sequences: int = 8
    group: int = 4
    text: int = 80
    new: int = 24
    checkpointing: bool = False
    freeze: tuple[str, ...] = ()
    lora: int = 0
    tiny: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> TinyModelConfig:
        return TinyModelConfig(pattern=self.pattern, **self.tiny)


class LiveTensors(TorchDispatchMode):
    """Bytes of the storages that operations made and that are still alive, and the most of them at once; without those of
    `parameters` and of their gradients."""

    def __init__(self, parameters: list[torch.nn.Parameter], gradients: dict[int, int]) -> None:
        super().__init__()
        self.gradients, self.now, self.peak = gradients, 0, 0
        self.known = weakref.WeakSet(p.untyped_storage() for p in parameters)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        self.peak = max(self.peak, self.now - sum(self.gradients.values()))
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        if storage in self.known:
            return
        self.known.add(storage)
        size = storage.nbytes()
        self.now += size
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


@contextmanager
def gradients_of(parameters: list[torch.nn.Parameter]) -> Iterator[dict[int, int]]:
    """Bytes of each parameter's gradient, as they come."""
    sizes: dict[int, int] = {}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: sizes.__setitem__(id(p), p.grad.untyped_storage().nbytes()))
        for p in parameters
        if p.requires_grad
    ]
    yield sizes
    for hook in hooks:
        hook.remove()


def prompts(case: Case, spec: Any, store: DictStore) -> list[EncodedPrompt]:
    """One for each sequence; the sequences of a group share theirs."""
    made = []
    for seed in range(-(-case.sequences // case.group)):
        pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        tokens = SIDE * SIDE // (spec.patch_size * spec.merge) ** 2
        ids = [spec.image_start_id, *[spec.image_id] * tokens, spec.image_end_id, *[40 + i % 50 for i in range(case.text)]]
        media = (MediaRef(store.put(pixels), SIDE, SIDE, tokens),)
        made.append(EncodedPrompt(f"p{seed}", ExpandedIds(ids), media, np.array([[1, tokens]], dtype=np.int32)))
    return [made[i // case.group] for i in range(case.sequences)]


def load_of(case: Case) -> Load:
    patches = (SIDE // 16) ** 2
    tokens = 2 + patches // 4 + case.text + case.new
    return Load(case.sequences, tokens, case.sequences * case.new, -(-case.sequences // case.group), patches)


def estimate(case: Case) -> dict[str, float]:
    """What the plan says of this case."""
    a, load, width = tiny_architecture(case.model), load_of(case), BYTES[case.dtype]
    counts = count(parameter_shapes(a), case.freeze, LoraConfig(rank=case.lora))
    found = activations(a, load, width, vision=not any("vision_model".startswith(p) for p in case.freeze))
    state = a.mamba.channels * a.mamba.conv * width + 4 * a.mamba.inner * a.mamba.state
    keys = 2 * a.pattern.count("*") * a.kv_heads * a.head_dim * width
    return {
        "weights": width * counts.total,
        "gradients": width * counts.trained,
        "optimizer": 2 * width * counts.trained + STEP_COUNTER * counts.tensors,
        "activations and logits": found.kept(case.checkpointing) + found.working(case.checkpointing),
        "caches": case.sequences * ((load.tokens - 1) * keys + a.pattern.count("M") * state),
    }


def measure(case: Case, folder: Path) -> dict[str, float]:
    """Bytes of live tensors: after a train step, at its peak, and of the engine's caches after its last token."""
    path = build_checkpoint(folder / f"{abs(hash(str(case.model)))}", case.model)
    spec, store = read_spec(path), DictStore()
    shown = prompts(case, spec, store)
    return _train(case, path, store, shown) | {"caches": _generate(case, path, store, shown)}


def _train(case: Case, path: Path, store: DictStore, shown: list[EncodedPrompt]) -> dict[str, float]:
    response = np.arange(40, 40 + case.new, dtype=np.int32)
    logprobs, mask = np.full(case.new, -2.0, np.float32), np.ones(case.new, np.float32)
    batch = TrainingBatch.of([TrainingSample(prompt, response, logprobs, 1.0, mask) for prompt in shown])
    settings = TrainerConfig(activation_checkpointing=case.checkpointing)
    model = ModelConfig(dtype=case.dtype, freeze=list(case.freeze), lora=LoraConfig(rank=case.lora))
    trainer = TorchTrainer(path, store, model, settings, AlgoConfig(), 1.0)
    parameters = list(trainer._policy.model.parameters())
    trainer.train_step(batch, 1e-6)  # whatever is made once
    optimizer = sum(_size(t) for state in trainer._optimizer.state.values() for t in state.values())
    gradients = sum(_size(p.grad) for p in parameters if p.grad is not None)
    trainer._optimizer.zero_grad(set_to_none=True)
    step, trainer._optimizer.step = trainer._optimizer.step, lambda: None
    with gradients_of(parameters) as grads, LiveTensors(parameters, grads) as live:
        trainer.train_step(batch, 1e-6)
    trainer._optimizer.step = step
    weights = sum({p.untyped_storage().data_ptr(): _size(p) for p in parameters}.values())
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer, "activations and logits": live.peak}


def _generate(case: Case, path: Path, store: DictStore, shown: list[EncodedPrompt]) -> float:
    backend = BackendConfig(max_model_len=512, hf=HfConfig(max_batch=case.sequences))
    engine = HfEngine(path, store, backend, case.dtype, "cpu")
    for i, prompt in enumerate(shown):
        engine.submit(GenerationRequest(f"r{i}", prompt, SamplingParams(max_new_tokens=case.new, seed=i, stop_ids=())))
    most = 0
    while engine._pending or engine._batch is None or engine._batch.sequences:
        engine.step()
        if engine._batch is None:
            break
        layers = engine._batch.decoding._cache.layers
        most = max(most, sum(_size(t) for layer in layers for t in _tensors(layer)))
    return most


def _tensors(layer: Any) -> list[torch.Tensor]:
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    for name in ("conv_states", "recurrent_states"):
        states = getattr(layer, name, None) or []
        found += list(states.values() if isinstance(states, dict) else states)
    return [t for t in found if isinstance(t, torch.Tensor)]


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def cases() -> list[Case]:
    """Every pattern in both precisions, with and without checkpointing, and what else changes a part."""
    main = [Case(pattern, dtype, checkpointing=again) for pattern in PATTERNS for dtype in BYTES for again in (False, True)]
    sizes = [Case(pattern, sequences=n, group=2) for pattern in PATTERNS for n in (1, 16)]
    frozen = [Case("M*E-", freeze=("vision_model",)), Case("*-*-", freeze=("vision_model", "multi_modal_projector"))]
    frozen.append(Case("M*E-", lora=4))
    return [*main, *sizes, *frozen, Case("M*E-", text=200, tiny={"chunk_size": 32, "hidden_size": 64, "ffn_size": 512})]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            expected, found = estimate(case), measure(case, Path(folder))
            ratios = {name: expected[name] / size for name, size in found.items() if size}
            for name, ratio in ratios.items():
                worst[name] = max(worst.get(name, 0.0), abs(ratio - 1))
            label = f"{case.pattern} {case.dtype} {case.sequences}×{load_of(case).tokens}"
            label += " checkpointing" * case.checkpointing + " frozen" * bool(case.freeze) + " lora" * bool(case.lora)
            print(f"{label:<40}" + "  ".join(f"{n} {found[n] / 1e6:.2f} MB ×{r:.3f}" for n, r in ratios.items()), flush=True)
    print("largest error: " + ", ".join(f"{name} {error:.1%}" for name, error in worst.items()))


if __name__ == "__main__":
    main()
