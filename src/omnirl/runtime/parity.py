"""The same prompts through several backends, before and after a refit → a table and `parity.json`.

The judge is the torch trainer: it makes one optimizer step, whose weights every engine then receives, and it scores what
engines sampled.

Example:
    exit_code = parity(cfg, ("hf", "vllm"), samples=50, out=Path("runs/parity"), console=Console())
"""

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from omnirl.config.limits import CHOICES
from omnirl.config.schema import ClipsConfig, Config, DatasetConfig
from omnirl.data import Dataset
from omnirl.errors import ConfigError, ParityError
from omnirl.parity import GATES, Answer, PairReport, compare, mixed_prompts
from omnirl.sync import WeightTransfer
from omnirl.types import (
    Deadline,
    EncodedPrompt,
    GenerationRequest,
    MediaStore,
    Prompt,
    SamplingParams,
    TrainingBatch,
    TrainingSample,
    WorkerGroup,
)

from .models import ensure_model
from .pixels import check_pixels
from .session import engine_group, make_encoder, media_store, model_spec, trainer_group

TRAINER = "trainer:torch"
#: clips that parity looks at; few, and small enough for any context
CLIPS = ClipsConfig(num_train=1, num_eval=6, frames=5)
STAGES = ("loaded", "refitted")
#: columns of the table where no terminal says how many there are
_WIDTH = 140
#: learning rate of the step between the stages: large enough that every answer changes
STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Finding:
    """One pair at one stage on greedy or sampled tokens. `pixels_equal`: pictures with the same bits in both (engines only)."""

    stage: str
    tokens_by: str
    report: PairReport
    problems: tuple[str, ...]
    pixels_equal: int | None


def parity(cfg: Config, backends: Sequence[str], *, samples: int, out: Path | None, console: Console) -> int:
    """Returns 0, or 3 when a gate of `model.dtype` is not met. Raises `ConfigError` for fewer than two backends."""
    if len(set(backends)) != len(backends) or len(backends) < 2:
        raise ConfigError(f"--backends {','.join(backends)}: name at least two, each once, of hf, vllm, megatron")
    if unknown := [name for name in backends if name not in CHOICES["backend.name"]]:
        raise ConfigError(f"--backends: '{unknown[0]}' is not an engine; choose of {', '.join(CHOICES['backend.name'])}")
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is not a folder; choose another")
    started = time.monotonic()
    with ExitStack() as stack:
        session = _Session(cfg, samples, stack)
        observed = {name: session.observe(name, console) for name in backends}
        findings = list(session.findings(observed))
    seconds = time.monotonic() - started
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(_table(findings))
    problems = [f"{f.stage}, {f.report.a} and {f.report.b}: {text}" for f in findings for text in f.problems]
    for text in problems:
        console.print(f"gate  {text}", style="bold red", highlight=False, soft_wrap=True)
    console.print(f"{cfg.recipe_name}, {cfg.model.dtype}: {len(findings)} comparisons, {seconds:.1f} s", highlight=False)
    if out is not None:
        _write(out, cfg, samples, findings, seconds)
    return ParityError.exit_code if problems else 0


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What one backend did. `answers`: (stage, greedy | sampled) → one a prompt. `pixels`: digest of a picture → hash of what
    the vision tower was handed."""

    answers: dict[tuple[str, str], list[Answer]]
    pixels: dict[str, str]


class _Session:
    """Prompts, judge and weights that all backends share."""

    def __init__(self, cfg: Config, samples: int, stack: ExitStack) -> None:
        self._cfg = cfg
        self._checkpoint = ensure_model(cfg)
        spec = model_spec(cfg, self._checkpoint)
        self._store: MediaStore = media_store(cfg)
        stack.callback(self._store.close)
        encoder = make_encoder(cfg, spec, self._store)
        dataset = Dataset(cfg.dataset, Path(cfg.cache_dir).expanduser())
        prompts = mixed_prompts(dataset.prompts("eval"), samples, _clips(cfg) if spec.video else ())
        self._prompts = [encoder.encode(prompt) for prompt in prompts]
        self._media = list({ref.digest: ref for prompt in self._prompts for ref in prompt.media}.values())
        self._digests = [ref.digest for ref in self._media]
        self._names = [f"{prompt.id} ({prompt.meta['kind']})" for prompt in prompts]
        self._spec = spec
        self._banned = spec.media_ids
        judges = {stage: stack.enter_context(trainer_group(cfg, self._checkpoint, self._store)) for stage in STAGES}
        self._judges: dict[str, WorkerGroup] = judges
        check_pixels(spec, {TRAINER: judges["loaded"]}, self._deadline())
        self._step(judges["refitted"])

    def _deadline(self) -> Deadline:
        return Deadline.after(self._cfg.rollout.timeout_s)

    def _step(self, trainer: WorkerGroup) -> None:
        """One optimizer step on made-up responses moves every trainable weight."""
        rng = np.random.default_rng(self._cfg.seed)
        allowed = np.setdiff1d(np.arange(32, 256), self._banned).astype(np.int32)
        responses = [rng.choice(allowed, 4).astype(np.int32) for _ in self._prompts]
        samples = [_sample(p, r) for p, r in zip(self._prompts, responses, strict=True)]
        trainer.call("warmup_step", TrainingBatch.of(samples), STEP, deadline=self._deadline())

    def observe(self, backend: str, console: Console) -> Observed:
        """Pixels and answers at both stages. The engine lives only here."""
        cfg = dataclasses.replace(self._cfg, backend=dataclasses.replace(self._cfg.backend, name=backend))
        found = {}
        started = time.monotonic()
        with engine_group(cfg, self._checkpoint, self._store) as engines:
            check_pixels(self._spec, {f"engine {backend}": engines}, self._deadline())
            planes = engines.call("pixel_values", self._media, deadline=self._deadline())[0]
            pixels = {d: _hash(p) for d, p in zip(self._digests, planes, strict=True)}
            for stage in STAGES:
                if stage != STAGES[0]:
                    WeightTransfer(self._judges[stage], engines).sync(STAGES.index(stage), self._deadline())
                for kind, temperature in (("greedy", 0.0), ("sampled", cfg.rollout.temperature)):
                    found[stage, kind] = self._generate(engines, stage, temperature)
        console.print(f"{backend} answered in {time.monotonic() - started:.1f} s", highlight=False)
        return Observed(found, pixels)

    def _generate(self, engines: WorkerGroup, stage: str, temperature: float) -> list[Answer]:
        """No stop ids: every answer has the whole budget."""
        requests = [
            GenerationRequest(
                f"{stage}/{temperature:g}/{name}",
                prompt,
                SamplingParams(self._cfg.rollout.max_new_tokens, temperature, seed=i, banned_ids=self._banned),
            )
            for i, (name, prompt) in enumerate(zip(self._names, self._prompts, strict=True))
        ]
        deadline = self._deadline()
        completions = engines.call("generate", requests, deadline.remaining(), deadline=deadline)[0]
        return [Answer(c.ids, c.logprobs) for c in completions]

    def findings(self, observed: Mapping[str, Observed]) -> Iterator[Finding]:
        """Pixels and greedy answers of each pair of engines; sampled answers of each engine against the trainer."""
        gate = GATES[self._cfg.model.dtype]
        exact = self._cfg.model.dtype == "float32"
        for stage in STAGES:
            for a, b in itertools.combinations(observed, 2):
                left, right = observed[a], observed[b]
                greedy = left.answers[stage, "greedy"], right.answers[stage, "greedy"]
                report = compare(a, b, self._names, *greedy, self._judge(stage))
                other = [digest for digest in self._digests if left.pixels[digest] != right.pixels[digest]]
                problems = report.problems(gate, exact_tokens=exact)
                if other:
                    problems.insert(0, f"pixels of {len(other)} of {len(self._digests)} pictures differ; first {other[0]}")
                yield Finding(stage, "greedy", report, tuple(problems), len(self._digests) - len(other))
            for name, own in observed.items():
                sampled = own.answers[stage, "sampled"]
                report = compare(name, TRAINER, self._names, sampled, self._scored(stage, sampled), self._judge(stage))
                yield Finding(stage, "sampled", report, tuple(report.problems(gate, exact_tokens=exact)), None)

    def _scored(self, stage: str, answers: Sequence[Answer]) -> list[Answer]:
        """The same tokens with the trainer's log-probs."""
        batch = TrainingBatch.of([_sample(p, a.ids) for p, a in zip(self._prompts, answers, strict=True)])
        scores = self._judges[stage].call("logprobs", batch, deadline=self._deadline())[0]
        return [Answer(a.ids, s) for a, s in zip(answers, scores, strict=True)]

    def _judge(self, stage: str) -> Callable[[int, NDArray[np.int32], int, int], float]:
        def gap(index: int, prefix: NDArray[np.int32], token_a: int, token_b: int) -> float:
            both = [_sample(self._prompts[index], np.append(prefix, t).astype(np.int32)) for t in (token_a, token_b)]
            scores = self._judges[stage].call("logprobs", TrainingBatch.of(both), deadline=self._deadline())[0]
            return float(abs(scores[0][-1] - scores[1][-1]))

        return gap


def _clips(cfg: Config) -> list[Prompt]:
    """Rows with short clips of an odd number of frames, made by code."""
    made = DatasetConfig(make="clips", clips=CLIPS)
    return Dataset(made, Path(cfg.cache_dir).expanduser()).prompts("eval")


def _hash(planes: NDArray[np.float32]) -> str:
    return hashlib.blake2b(str(planes.shape).encode() + planes.tobytes(), digest_size=16).hexdigest()


def _sample(prompt: EncodedPrompt, response: NDArray[np.int32]) -> TrainingSample:
    zeros = np.zeros(len(response), dtype=np.float32)
    return TrainingSample(prompt, response, zeros, 0.0, zeros + 1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "tokens", "a", "b"):
        table.add_column(name)
    for name in ("pixels", "answers", "equal", "ties", "mean |Δ|", "p99 |Δ|", "max |Δ|", "tmpe", "gen_kl", "gate"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        r = finding.report
        pixels = "" if finding.pixels_equal is None else str(finding.pixels_equal)
        table.add_row(
            finding.stage, finding.tokens_by, r.a, r.b, pixels, str(r.samples), str(r.equal), str(r.ties),
            f"{r.mean_abs:.1e}", f"{r.p99_abs:.1e}", f"{r.max_abs:.1e}", f"{r.tmpe_mean:.7f}", f"{r.gen_kl_error:.1e}",
            "missed" if finding.problems else "met",
        )  # fmt: skip
    return table


def _write(out: Path, cfg: Config, samples: int, findings: Sequence[Finding], seconds: float) -> None:
    pairs = [
        {
            "stage": f.stage,
            "tokens_by": f.tokens_by,
            "pixels_equal": f.pixels_equal,
            **dataclasses.asdict(f.report),
            "problems": list(f.problems),
        }
        for f in findings
    ]
    record = {
        "recipe": cfg.recipe_name,
        "dtype": cfg.model.dtype,
        "samples": samples,
        "seconds": seconds,
        "gate": dataclasses.asdict(GATES[cfg.model.dtype]),
        "pairs": pairs,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = out / ".parity.json.partial"
        partial.write_text(json.dumps(record, indent=1) + "\n")
        partial.replace(out / "parity.json")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}; choose another folder") from error
