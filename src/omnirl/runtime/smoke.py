"""The whole path of recipes in miniature, in one process: data → model → supervised steps → GRPO steps → resume → refit →
export → reload, with a gate at each station where trainer and engine must agree.

Example:
    exit_code = smoke([cfg], Path("folder"), Console())   # 0; 3 when a gate is not met, 1 when a check could not run
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from omnirl.config.schema import Config
from omnirl.data import Dataset
from omnirl.envs import make_env
from omnirl.errors import CheckpointError, ConfigError, OmnirlError, ParityError
from omnirl.rollout import RolloutRunner
from omnirl.sync import WeightTransfer
from omnirl.track import Check, CheckTable, Verdict, read_rows
from omnirl.types import Deadline, ModelSpec, Prompt, TrainingBatch, TrainingSample, Turn, WorkerGroup

from .checkpoints import STATE, Checkpoint, CheckpointStore
from .export import export
from .models import ensure_model
from .session import engine_group, make_encoder, media_store, model_spec, trainer_group
from .train import train

#: smallest recipe of each kind of layer: attention, Mamba-2, experts
RECIPES = ("tiny_omni_count", "tiny_omni_hybrid", "tiny_omni_moe")

#: What makes a recipe small enough. float32, because the gates are those of float32; one thread, because more only slow such
#: a model down; a reward for the form, so that completions of a model that has learnt little else differ.
SETTINGS = (
    "model.dtype=float32",
    "dataset.synthetic.num_train=64",
    "dataset.synthetic.num_eval=16",
    "trainer.warmup.max_steps=20",
    "trainer.warmup.batch_size=16",
    "trainer.warmup.lr=2e-3",
    "trainer.warmup.lr_warmup_steps=5",
    "trainer.warmup.eval_from=1000",
    "trainer.threads=1",
    "backend.hf.threads=1",
    "trainer.max_steps=2",
    "algo.group_size=8",
    "algo.prompts_per_step=8",
    "algo.train_batch_size=null",
    "env.rewards.exact=0.5",
    "env.rewards.format=0.5",
    "rollout.max_new_tokens=8",
    "eval.samples=8",
    "eval.final_samples=8",
    "checkpoint.every=1",
    "checkpoint.keep=100",
    "checkpoint.resume=null",
    "logger.tensorboard=false",
    "logger.samples_every=0",
)

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"

#: largest `token_mult_prob_error` (mean exp|Δ log-prob|) between trainer and engine in float32
AGREEMENT = 1.00001
#: largest |Δ log-prob| between an engine with refitted weights and one that loaded the same weights from an export
RELOAD = 1e-6


def smoke(configs: Sequence[Config], folder: Path, console: Console) -> int:
    """Run all checks of all `configs`, which are changed to build everything in `folder`. A gate that is not met ends nothing;
    an error ends its recipe. Returns the exit code. Raises `ConfigError` for a configuration without a GRPO step."""
    if short := next((cfg for cfg in configs if cfg.trainer.max_steps < 1), None):
        raise ConfigError(
            f"{short.recipe_name}: trainer.max_steps=0 leaves no GRPO step to check; the smoke test needs at least 1"
        )
    started, checks = time.monotonic(), list[Check]()
    with CheckTable(console) as table, ExitStack() as stack:
        runner = _Runner(table, checks)
        runner.run("", [("import", lambda: _import(folder, stack))])
        for cfg in configs:
            cfg.cache_dir = str(folder / "cache")
            with ExitStack() as recipe_stack:
                path = _RecipePath(cfg, folder / cfg.recipe_name, recipe_stack)
                runner.run(cfg.recipe_name, path.checks())
    good = sum(check.verdict is Verdict.OK for check in checks)
    console.print(f"{good} of {len(checks)} checks in order, {time.monotonic() - started:.1f} s", highlight=False)
    if any(check.verdict in (Verdict.ERROR, Verdict.SKIPPED) for check in checks):
        return OmnirlError.exit_code
    return 0 if good == len(checks) else ParityError.exit_code


class _Runner:
    """Times checks and turns what they raise into verdicts."""

    def __init__(self, table: CheckTable, checks: list[Check]) -> None:
        self._table = table
        self._checks = checks

    def run(self, subject: str, checks: Sequence[tuple[str, Callable[[], str]]]) -> None:
        broken = False
        for name, call in checks:
            if broken:
                self._end(Check(subject, name, Verdict.SKIPPED, "", 0.0))
                continue
            self._table.begin(subject, name)
            started = time.monotonic()
            try:
                verdict, text = Verdict.OK, call()
            except ParityError as error:
                verdict, text = Verdict.GATE, str(error)
            except (OmnirlError, OSError) as error:  # OSError: a full disk
                verdict, text = Verdict.ERROR, str(error)
                broken = True
            self._end(Check(subject, name, verdict, text, time.monotonic() - started))

    def _end(self, check: Check) -> None:
        self._checks.append(check)
        self._table.end(check)


def _import(folder: Path, stack: ExitStack) -> str:
    """The heavy imports, once and with a time of their own. What they do unasked is undone: torch makes a folder for compiled
    kernels among the temporary files, transformers prints advice on faster ones."""
    if _TORCH_CACHE not in os.environ:
        os.environ[_TORCH_CACHE] = str(folder / "cache" / "torch")
        stack.callback(os.environ.pop, _TORCH_CACHE)
    torch, transformers = import_module("torch"), import_module("transformers")
    for module in ("omnirl.engines.hf", "omnirl.trainers.torch"):
        import_module(module)
    stack.callback(transformers.logging.set_verbosity, transformers.logging.get_verbosity())
    transformers.logging.set_verbosity_error()
    return f"torch {torch.__version__}, transformers {transformers.__version__}"


class _RecipePath:
    """One recipe's way; each check returns what it measured, and raises `ParityError` when that misses its gate.

    Files: `run` (the uninterrupted run), `resumed` (the same, continued from its last checkpoint but one), `export`, `log.txt`.
    """

    def __init__(self, cfg: Config, folder: Path, stack: ExitStack) -> None:
        self._cfg = cfg
        self._folder = folder
        self._run = folder / "run"
        self._stack = stack
        self._store = media_store(cfg)
        stack.callback(self._store.close)

    def checks(self) -> list[tuple[str, Callable[[], str]]]:
        """Names and calls, in order; each needs those before it."""
        return [
            ("data", self.data),
            ("model", self.model),
            ("supervised", self.supervised),
            ("grpo", self.grpo),
            ("agreement", self.agreement),
            ("resume", self.resume),
            ("refit", self.refit),
            ("export", self.export),
        ]

    # -- parts, made on first use -----------------------------------------------------------------------------------------

    @cached_property
    def _dataset(self) -> Dataset:
        return Dataset(self._cfg.dataset, Path(self._cfg.cache_dir).expanduser())

    @cached_property
    def _prompts(self) -> list[Prompt]:
        """Held-out rows."""
        return self._dataset.prompts("eval", limit=self._cfg.eval.final_samples)

    @cached_property
    def _spec(self) -> ModelSpec:
        return model_spec(self._cfg, ensure_model(self._cfg))

    @cached_property
    def _trainers(self) -> WorkerGroup:
        """Holds the weights of the last checkpoint."""
        group = self._stack.enter_context(trainer_group(self._cfg, self._spec.path, self._store))
        group.call("load", self._checkpoint.folder / "trainer", deadline=self._deadline())
        return group

    @cached_property
    def _engines(self) -> WorkerGroup:
        """Starts with the weights that the run started from."""
        return self._stack.enter_context(engine_group(self._cfg, self._spec.path, self._store))

    @property
    def _checkpoint(self) -> Checkpoint:
        found = CheckpointStore(self._run / "checkpoints").latest()
        if found is None:
            raise CheckpointError(f"{self._run} has no checkpoint")
        return found

    def _deadline(self) -> Deadline:
        return Deadline.after(self._cfg.rollout.timeout_s)

    def _turns(self, engines: WorkerGroup, *, greedy: bool = False) -> list[Turn]:
        """One completion of each held-out prompt; sampled ones depend only on weights and prompt."""
        encoder = make_encoder(self._cfg, self._spec, self._store)
        runner = RolloutRunner(engines, encoder, make_env(self._cfg.env), self._spec, self._cfg.rollout, self._cfg.seed)
        groups = runner.generate(self._prompts, 1, step=-1, deadline=self._deadline(), greedy=greedy)
        return [turn for group in groups for turn in group]

    def _error(self, turns: Sequence[Turn]) -> float:
        """`token_mult_prob_error` of the trainer's log-probs against those that came with `turns`."""
        logprobs = [turn.completion.logprobs for turn in turns]
        samples = [
            TrainingSample(turn.prompt, turn.completion.ids, given, 0.0, np.ones_like(given))
            for turn, given in zip(turns, logprobs, strict=True)
        ]
        scored = self._trainers.call("logprobs", TrainingBatch.of(samples), deadline=self._deadline())[0]
        return float(np.exp(np.abs(np.concatenate(scored) - np.concatenate(logprobs)).astype(np.float64)).mean())

    def _train(self, **changes: Any) -> None:
        """`omnirl train` with changed `trainer` or `checkpoint` keys; what it shows goes to the log."""
        cfg = dataclasses.replace(self._cfg)
        for section, values in changes.items():
            setattr(cfg, section, dataclasses.replace(getattr(cfg, section), **values))
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log.txt").open("a", encoding="utf-8") as log:
            code = train(cfg, self._run, Console(file=log, width=160))
        if code:  # a signal
            raise SystemExit(code)

    # -- checks -----------------------------------------------------------------------------------------------------------

    def data(self) -> str:
        """Rows can be read and their pictures decoded."""
        rows = self._dataset.prompts("train")
        return f"{len(rows)} training rows, {len(self._prompts)} held-out rows"

    def model(self) -> str:
        """A checkpoint directory is there, and prompts fit its context."""
        encoder = make_encoder(self._cfg, self._spec, self._store)
        lengths = [len(encoder.encode(prompt).ids) for prompt in self._prompts]
        return f"vocabulary {self._spec.vocab_size}, prompts of {min(lengths)} to {max(lengths)} tokens"

    def supervised(self) -> str:
        """The supervised loss falls."""
        self._train(trainer={"max_steps": 0}, checkpoint={"every": 0})
        losses = [row["warmup/loss"] for row in read_rows(self._run / "warmup.jsonl")]
        if not losses:
            return "the recipe has no warm-up"
        text = f"loss {_number(losses[0])} → {_number(losses[-1])} in {len(losses)} steps"
        if None in losses or losses[-1] >= losses[0]:
            raise ParityError(f"{text}: it must fall")
        return text

    def grpo(self) -> str:
        """Optimizer steps are made and move the weights."""
        before = _weights(self._checkpoint)
        self._train(checkpoint={"resume": "auto"})
        after = _weights(self._checkpoint)
        rows = self._steps()
        steps = sum(int(row["train/num_optimizer_steps"]) for row in rows)
        moved = sum(not np.array_equal(before[name], after[name]) for name in before)
        rewards = " → ".join(_number(row["rollout/reward_mean"]) for row in rows)
        text = f"{steps} optimizer steps, reward {rewards}, {moved} of {len(before)} tensors moved"
        if steps == 0 or moved == 0:
            raise ParityError(f"{text}: at least one of each is expected")
        return text

    def agreement(self) -> str:
        """In those steps, the trainer gave the sampled tokens the log-probs that the engine gave them."""
        errors = [row["train/token_mult_prob_error"] for row in self._steps() if "train/token_mult_prob_error" in row]
        if not errors or None in errors:
            raise ParityError("token_mult_prob_error was not measured, or is not a number")
        return _gate(f"token_mult_prob_error {max(errors):.7f}", max(errors), AGREEMENT)

    def resume(self) -> str:
        """Continued from the last checkpoint but one, the run ends with the same bits."""
        store = CheckpointStore(self._run / "checkpoints")
        last = store.steps()[-1]
        resumed = self._folder / "resumed"
        shutil.copytree(self._run, resumed, ignore=shutil.ignore_patterns(f"step_{last:06d}", "export"))
        self._train(checkpoint={"resume": str(resumed)})
        expected, found = store.at(last), CheckpointStore(resumed / "checkpoints").at(last)
        text = f"step {last - 1} → {last} again"
        if (expected.folder / STATE).read_bytes() != (found.folder / STATE).read_bytes():
            raise ParityError(f"{text}: the controller's state differs from the uninterrupted run's")
        left, right = _weights(expected), _weights(found)
        if different := [name for name in left if not np.array_equal(left[name], right[name])]:
            largest = max(float(np.abs(left[name] - right[name]).max()) for name in different)
            raise ParityError(f"{text}: {len(different)} tensors differ, by up to {largest:.3g} ({different[0]})")
        return f"{text}: the same weights, bit by bit"

    def refit(self) -> str:
        """An engine with the old weights disagrees with the trainer; after the transfer it agrees."""
        before = self._error(self._turns(self._engines))
        moved = WeightTransfer(self._trainers, self._engines).sync(1, self._deadline())
        turns = self._turns(self._engines)
        after = self._error(turns)
        text = f"token_mult_prob_error {before:.4f} → {after:.7f}, {moved['sync/tensors']:.0f} tensors"
        if before <= AGREEMENT:
            raise ParityError(f"{text}: before the transfer the engine should have disagreed")
        if stale := sum(turn.completion.versions[0].version != 1 for turn in turns):
            raise ParityError(f"{text}: {stale} completions carry another policy version than 1")
        return _gate(text, after, AGREEMENT)

    def export(self) -> str:
        """An engine that loads the exported checkpoint gives the refitted engine's greedy tokens and log-probs."""
        out = self._folder / "export"
        export(self._run, out)
        with engine_group(self._cfg, out, self._store) as engines:
            found = self._turns(engines, greedy=True)
        expected = self._turns(self._engines, greedy=True)
        different = sum(a.completion.ids.tolist() != b.completion.ids.tolist() for a, b in zip(expected, found, strict=True))
        if different:
            raise ParityError(f"{different} of {len(expected)} greedy answers differ after reloading the export")
        logprobs = [np.concatenate([turn.completion.logprobs for turn in turns]) for turns in (expected, found)]
        largest = float(np.abs(logprobs[0] - logprobs[1]).max())
        return _gate(f"{len(expected)} greedy answers equal, |Δ log-prob| at most {largest:.2g}", largest, RELOAD)

    def _steps(self) -> list[dict[str, Any]]:
        """Metrics of the GRPO steps."""
        return [row for row in read_rows(self._run / "metrics.jsonl") if "train/num_optimizer_steps" in row]


def _gate(text: str, value: float, limit: float) -> str:
    if not value <= limit:  # not a number is no agreement
        raise ParityError(f"{text}: the gate is {limit:g}")
    return text


def _weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Name → float32 array of what is trained: all weights, or adapters."""
    from safetensors.torch import load_file

    from omnirl.trainers.lora import ADAPTER as ADAPTER_FILE
    from omnirl.trainers.state import ADAPTER, WEIGHTS

    folder = checkpoint.folder / "trainer"
    file = folder / WEIGHTS if (folder / WEIGHTS).is_file() else folder / ADAPTER / ADAPTER_FILE
    return {name: tensor.float().numpy() for name, tensor in load_file(file).items()}


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.3f}"
