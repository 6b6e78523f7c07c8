"""Whole runs of a miniature: what they leave, how they end, and that a resumed run is the uninterrupted one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from omnirl.config.compose import compose_config
from omnirl.config.paths import options
from omnirl.config.schema import (
    AlgoConfig,
    BackendConfig,
    CheckpointConfig,
    Config,
    DatasetConfig,
    DynamicSamplingConfig,
    EvalConfig,
    KlConfig,
    LoggerConfig,
    MismatchConfig,
    ModelConfig,
    PromptConfig,
    RolloutConfig,
    SyntheticConfig,
    TrainerConfig,
    WarmupConfig,
)
from omnirl.data import PromptSampler, ensure_dataset, load_prompts
from omnirl.errors import (
    CheckpointError,
    CheckpointMismatch,
    ConfigError,
    DataError,
    EngineError,
    MediaError,
    ModelError,
    NothingToLearn,
    TrainingDiverged,
)
from omnirl.rollout import RolloutRunner
from omnirl.runtime import train as train_module
from omnirl.runtime.budget import TimeBudget
from omnirl.runtime.checkpoints import CheckpointStore
from omnirl.runtime.models import ensure_model
from omnirl.runtime.run_folder import RunFolder
from omnirl.runtime.train import train
from omnirl.track.names import describe
from omnirl.trainers.torch import TorchTrainer
from omnirl.types import EnvReply, ImagePart, Reward
from tests.omni import tiny

WARMUP, STEPS, ROWS = 2, 3, 24


class Coin:
    """Rewards a completion by the parity of its ids, so that an untrained model has something to learn; `on_call` gets the
    number of the call."""

    concurrency = 1

    def __init__(self, on_call=lambda number: None):
        self.calls, self.on_call = 0, on_call

    def check(self, prompt):
        pass

    def close(self):
        pass

    def respond(self, prompt, turns):
        self.calls += 1
        self.on_call(self.calls)
        value = float(turns[0].completion.ids.sum() % 2)
        return EnvReply(reward=Reward(value, {"exact": value}))


@pytest.fixture
def env(monkeypatch):
    """Put an environment into the runs of this test; the first is a `Coin`."""

    def use(environment):
        monkeypatch.setattr(train_module, "make_env", lambda cfg: environment)

    use(Coin())
    return use


@pytest.fixture
def config(session_cache):
    def make(**groups):
        warmup = WarmupConfig(max_steps=WARMUP, batch_size=4, eval_from=1, eval_every=1, eval_samples=4, stop_accuracy=2.0)
        settings = {
            "model": ModelConfig(tiny=tiny()),
            "backend": BackendConfig(max_model_len=128),
            "dataset": DatasetConfig(synthetic=SyntheticConfig(num_train=ROWS, num_eval=8)),
            "algo": AlgoConfig(group_size=4, prompts_per_step=4),
            "trainer": TrainerConfig(max_steps=STEPS, lr=1e-3, warmup=warmup),
            "rollout": RolloutConfig(max_new_tokens=3),
            "eval": EvalConfig(every=2, samples=4, final_samples=8),
            "checkpoint": CheckpointConfig(every=1, keep=100),
            "logger": LoggerConfig(progress=False, samples_every=2),
        }
        names = {"recipe_name": "test", "suite": "smoke", "description": "a miniature", "cache_dir": str(session_cache)}
        return Config(**{**names, **settings, **groups})

    return make


def rows(file):
    """Metrics rows without what depends on the clock."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))} for row in found]


def numbers(folder):
    return list(CheckpointStore(folder / "checkpoints").steps())


def assert_same_run(folder, expected):
    for name in ("metrics.jsonl", "warmup.jsonl"):
        assert rows(folder / name) == rows(expected / name)
    found, wanted = (load_file(path / "export" / "model.safetensors") for path in (folder, expected))
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A place for the uninterrupted run, made by the first test that needs it."""
    return tmp_path_factory.mktemp("whole") / "run"


@pytest.fixture
def whole(whole_run, config, env):
    if not whole_run.exists():
        assert train(config(), whole_run) == 0
    return whole_run


class TestWholeRun:
    def test_leaves_one_folder(self, whole):
        names = {path.name for path in whole.iterdir()}
        files = {"config.yaml", "run.json", "metrics.jsonl", "warmup.jsonl", "report.html"}
        assert names == files | {"tensorboard", "samples", "checkpoints", "export"}
        assert numbers(whole) == [1, 2, 3, 4, 5]
        assert [p.name for p in (whole / "samples").iterdir()] == ["step_000002.jsonl"]
        assert len(list((whole / "tensorboard").iterdir())) == 1

    def test_records_how_pixels_were_made(self, whole):
        pixels = json.loads((whole / "run.json").read_text())["pixels"]
        assert (pixels["resize"], pixels["processor"]) == ("Pillow bicubic", None)
        assert pixels["checkpoint_processor"] == "NemotronH_Omni_Reasoning_V3ImageProcessor (processor_config.json)"
        assert pixels["size_rule"].items() >= {"name": "GridRule", "patch_size": 16, "merge": 2}.items()
        assert len(pixels["mean"]) == len(pixels["std"]) == 3

    def test_logs_every_step(self, whole):
        assert [row["step"] for row in rows(whole / "metrics.jsonl")] == [0, 1, 2, 3]
        assert [row["step"] for row in rows(whole / "warmup.jsonl")] == [1, 2]
        evaluated = [row["step"] for row in rows(whole / "metrics.jsonl") if "eval/accuracy" in row]
        assert evaluated == [0, 2, 3]
        last = rows(whole / "metrics.jsonl")[-1]
        assert last["eval/samples"] == 8
        assert last["rollout/num_samples"] == 16
        assert last["train/policy_version"] == 3

    def test_learns_something(self, whole):
        steps = rows(whole / "metrics.jsonl")[1:]
        assert all(row["rollout/kept_groups"] > 0 for row in steps)
        assert all(row["train/grad_norm"] > 0 for row in steps)
        assert all(row["train/token_mult_prob_error"] < 1 + 1e-4 for row in steps)
        store = CheckpointStore(whole / "checkpoints")
        first, last = (load_file(store.folder / f"step_{n:06d}" / "trainer" / "model.safetensors") for n in (2, 5))
        assert any(not np.array_equal(first[name], last[name]) for name in first)

    def test_every_metric_is_in_the_glossary(self, whole):
        files = [whole / "metrics.jsonl", whole / "warmup.jsonl"]
        names = {name for file in files for line in file.read_text().splitlines() for name in json.loads(line)} - {"step"}
        assert {name for name in names if describe(name) is None} == set()

    def test_samples_can_be_read(self, whole):
        sample = json.loads((whole / "samples" / "step_000002.jsonl").read_text().splitlines()[0])
        assert len(sample["completions"]) == 4
        assert all(Path(medium["path"]).is_file() and medium["digest"] for medium in sample["media"])
        assert (
            sample["rendered"].count("<image>") == len(sample["media"]) == sum(m["parts"].count(0) for m in sample["messages"])
        )
        assert [c["advantage"] for c in sample["completions"]] != [None] * 4

    def test_the_same_again(self, whole, config, tmp_path):
        assert train(config(), tmp_path / "again") == 0
        assert_same_run(tmp_path / "again", whole)

    def test_a_second_run_there_is_refused_before_anything_is_loaded(self, whole, config, monkeypatch):
        monkeypatch.setattr(train_module, "ensure_model", lambda cfg: pytest.fail("the model was built"))
        before = (whole / "config.yaml").read_text()
        with pytest.raises(ConfigError, match=r"holds a run already .* continue it with checkpoint\.resume=auto"):
            train(config(seed=5), whole)
        assert (whole / "config.yaml").read_text() == before


class TestResume:
    @pytest.mark.parametrize("number", range(1, WARMUP + STEPS + 1))
    def test_from_every_checkpoint(self, whole, config, tmp_path, number):
        """As if the run had been killed a little later: rows after the checkpoint are there already."""
        folder = shutil.copytree(whole, tmp_path / "run")
        for later in range(number + 1, WARMUP + STEPS + 1):
            shutil.rmtree(folder / "checkpoints" / f"step_{later:06d}")
        shutil.rmtree(folder / "export")
        assert train(config(checkpoint=CheckpointConfig(every=1, keep=100, resume=str(folder))), tmp_path / "unused") == 0
        assert_same_run(folder, whole)
        assert not (tmp_path / "unused").exists()
        assert len(json.loads((folder / "run.json").read_text())["resumed"]) == 1

    @pytest.mark.parametrize(
        ("signum", "call", "saved"),
        [
            (signal.SIGTERM, 2, 1),  # the accuracy check of the first warm-up step
            (signal.SIGINT, 6, 2),  # that of the last: the phase ends, the next does not begin
            (signal.SIGTERM, 12, 2),  # the evaluation before GRPO
            (signal.SIGINT, 20, 3),  # scoring of GRPO step 1
            (signal.SIGTERM, 16 + 2 * 16, 4),  # scoring of step 2, which also evaluates
        ],
    )
    def test_after_a_signal(self, whole, config, env, tmp_path, signum, call, saved):
        env(Coin(lambda number: os.kill(os.getpid(), signum) if number == call else None))
        seldom = CheckpointConfig(every=0, resume="auto")
        assert train(config(checkpoint=seldom), tmp_path / "run") == 128 + signum
        assert numbers(tmp_path / "run") == [saved]
        assert not (tmp_path / "run" / "export").exists()
        env(Coin())
        assert train(config(checkpoint=seldom), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_a_signal_at_the_check_that_ends_the_warm_up(self, config, env, tmp_path):
        """The phase must not go on after it, which it would if only its steps were remembered."""
        trainer = config().trainer
        trainer.warmup.max_steps, trainer.warmup.stop_accuracy = 5, -1.0
        env(Coin(lambda number: os.kill(os.getpid(), signal.SIGTERM) if number == 1 else None))
        auto = CheckpointConfig(every=0, resume="auto")
        assert train(config(trainer=trainer, checkpoint=auto), tmp_path) == 128 + signal.SIGTERM
        assert train(config(trainer=trainer, checkpoint=auto), tmp_path) == 0
        assert [row["step"] for row in rows(tmp_path / "warmup.jsonl")] == [1]

    def test_a_penalty_keeps_its_reference(self, config, env, tmp_path):
        algo = AlgoConfig(group_size=4, prompts_per_step=4, kl=KlConfig(coef=0.1))
        assert train(config(algo=algo), tmp_path / "whole") == 0
        for number in (2, 4):
            folder = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
            for later in range(number + 1, 6):
                shutil.rmtree(folder / "checkpoints" / f"step_{later:06d}")
            assert train(config(algo=algo, checkpoint=CheckpointConfig(every=1, keep=9, resume=str(folder))), folder) == 0
            assert_same_run(folder, tmp_path / "whole")

    def test_auto_in_a_new_folder_starts_a_run(self, whole, config, tmp_path):
        assert train(config(checkpoint=CheckpointConfig(every=1, keep=9, resume="auto")), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_auto_where_no_checkpoint_was_reached_starts_over(self, whole, config, env, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(TorchTrainer, "warmup_step", diverge)
            with pytest.raises(TrainingDiverged):
                train(config(), tmp_path / "run")
        assert numbers(tmp_path / "run") == [], "nothing was learnt"
        assert train(config(checkpoint=CheckpointConfig(every=1, keep=9, resume="auto")), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_more_steps(self, whole, config, env, tmp_path):
        folder = shutil.copytree(whole, tmp_path / "run")
        longer = config(checkpoint=CheckpointConfig(resume=str(folder)))
        longer.trainer.max_steps = STEPS + 1
        assert train(longer, tmp_path) == 0
        assert [row["step"] for row in rows(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4]
        assert f"max_steps: {STEPS}" in (folder / "config.yaml").read_text()
        assert f"max_steps: {STEPS + 1}" in (folder / "config.resume_1.yaml").read_text()
        assert RunFolder(folder).load_config().trainer.max_steps == STEPS + 1
        shorter = config(checkpoint=CheckpointConfig(resume=str(folder)))
        shorter.trainer.max_steps = STEPS
        with pytest.raises(CheckpointMismatch, match=rf"trainer\.max_steps={STEPS}, but .* is of GRPO step {STEPS + 1}"):
            train(shorter, tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 1}, "seed was 0, is 1"),
            ({"recipe_name": "other"}, "recipe_name was 'test', is 'other'"),
            ({"algo": AlgoConfig(group_size=2, prompts_per_step=4)}, r"algo\.group_size was 4, is 2"),
            ({"prompt": PromptConfig(suffix=" Think.")}, r"prompt\.suffix was '', is ' Think\.'"),
            ({"rollout": RolloutConfig(max_new_tokens=3, temperature=0.5)}, r"rollout\.temperature was 1\.0, is 0\.5"),
            (
                {"dataset": DatasetConfig(synthetic=SyntheticConfig(num_train=20, num_eval=8))},
                r"the training rows .*: hash",
            ),
            ({"model": ModelConfig(tiny=tiny("M*M-"))}, r"model\.tiny\.pattern was '\*-\*-', is 'M\*M-'"),
        ],
    )
    def test_another_configuration_leaves_the_run_as_it_is(self, whole, config, env, tmp_path, change, message):
        before = {p: p.read_bytes() for p in whole.iterdir() if p.is_file()}
        with pytest.raises(CheckpointMismatch, match=message) as caught:
            train(config(**{"checkpoint": CheckpointConfig(resume=str(whole)), **change}), tmp_path)
        assert caught.value.exit_code == 2
        assert "config.yaml, or start a new run" in str(caught.value)
        assert {p: p.read_bytes() for p in whole.iterdir() if p.is_file()} == before

    def test_a_folder_without_a_checkpoint(self, config, tmp_path):
        with pytest.raises(CheckpointMismatch, match=r"there is no checkpoint to resume from \(no such folder\)"):
            train(config(checkpoint=CheckpointConfig(resume=str(tmp_path / "nowhere"))), tmp_path)
        assert not list(tmp_path.iterdir())

    def test_one_checkpoint_instead_of_the_run(self, whole, config, tmp_path):
        step = whole / "checkpoints" / "step_000002"
        with pytest.raises(CheckpointMismatch, match=rf"is one checkpoint; .*checkpoint\.resume={whole}"):
            train(config(checkpoint=CheckpointConfig(resume=str(step))), tmp_path)
        assert not list(tmp_path.iterdir())


def diverge(*_):
    raise TrainingDiverged("loss nan")


def fail_at(monkeypatch, method, call, error):
    """The trainer's `method` raises at its n-th call."""
    original, count = getattr(TorchTrainer, method), iter(range(1, 1000))

    def failing(self, *args):
        if next(count) == call:
            raise error
        return original(self, *args)

    monkeypatch.setattr(TorchTrainer, method, failing)


class TestFailure:
    """With no periodic checkpoints: what there is was saved because of the failure."""

    SELDOM = CheckpointConfig(every=0)
    AUTO = CheckpointConfig(every=0, resume="auto")

    @pytest.mark.parametrize(("method", "call", "saved"), [("warmup_step", 2, 1), ("train_step", 1, 2), ("train_step", 3, 4)])
    def test_divergence_saves_the_last_whole_step(self, whole, config, env, tmp_path, monkeypatch, method, call, saved):
        with monkeypatch.context() as patch:
            fail_at(patch, method, call, TrainingDiverged("loss nan"))
            with pytest.raises(TrainingDiverged, match="loss nan"):
                train(config(checkpoint=self.SELDOM), tmp_path / "run")
        assert numbers(tmp_path / "run") == [saved]
        assert train(config(checkpoint=self.AUTO), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_half_a_step_is_not_saved(self, config, env, tmp_path, monkeypatch):
        fail_at(monkeypatch, "train_step", 2, TrainingDiverged("loss nan"))
        algo = AlgoConfig(group_size=4, prompts_per_step=4, train_batch_size=2)
        with pytest.raises(TrainingDiverged):
            train(config(algo=algo, checkpoint=self.SELDOM), tmp_path / "run")
        assert numbers(tmp_path / "run") == []

    def test_a_picture_that_breaks_in_the_middle(self, whole, config, env, tmp_path, session_cache, monkeypatch):
        data = shutil.copytree(ensure_dataset(config().dataset, session_cache), tmp_path / "data")
        monkeypatch.setattr(train_module, "_TRIED", 1)
        order, warm = PromptSampler(ROWS, 0), PromptSampler(ROWS, 1)
        seen = {0, *warm.next(4), *warm.next(4), *order.next(4)}
        victim = next(row for row in order.next(4) if row not in seen)
        picture = picture_of(data, victim)
        content = picture.read_bytes()
        picture.write_bytes(content[:50])
        broken = DatasetConfig(path=str(data))
        with pytest.raises(MediaError, match=picture.name):
            train(config(dataset=broken, checkpoint=self.SELDOM), tmp_path / "run")
        assert numbers(tmp_path / "run") == [WARMUP + 1]
        picture.write_bytes(content)
        assert train(config(dataset=broken, checkpoint=self.AUTO), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_a_failing_reward_saves_and_keeps_the_row(self, config, env, tmp_path):
        """The evaluation of step 2 fails: the step itself was made."""

        def fail(number):
            if number == 16 + 2 * 16 + 1:
                raise EngineError("the judge is away")

        env(Coin(fail))
        with pytest.raises(EngineError, match="the judge is away"):
            train(config(checkpoint=self.SELDOM), tmp_path / "run")
        assert numbers(tmp_path / "run") == [WARMUP + 2]
        assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]

    def test_when_saving_fails_too_the_first_error_is_the_one_to_see(self, config, env, tmp_path, monkeypatch, capsys):
        fail_at(monkeypatch, "train_step", 2, TrainingDiverged("loss nan"))
        monkeypatch.setattr(TorchTrainer, "save", lambda *_, **__: (_ for _ in ()).throw(CheckpointError("no room")))
        with pytest.raises(TrainingDiverged, match="loss nan"):
            train(config(checkpoint=self.SELDOM, logger=LoggerConfig(tensorboard=False)), tmp_path / "run")
        assert "the last steps could not be saved: no room" in capsys.readouterr().out
        assert numbers(tmp_path / "run") == []


def picture_of(data, row):
    prompt = load_prompts(data / "train.jsonl")[row]
    return next(Path(prompt.root, part.path) for m in prompt.messages for part in m.parts if isinstance(part, ImagePart))


def without_targets(data):
    found = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    for row in found:
        row.pop("target")
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))


OMNI, QWEN = ModelConfig(tiny=tiny()), ModelConfig(family="qwen_vl", tiny=tiny())
PICTURE, VIDEO = {"type": "image", "image": "a.png"}, {"type": "video", "video": "a.mp4"}
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


class TestBeforeTheFolder:
    """What is wrong before the first step leaves nothing behind."""

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"model": ModelConfig(path="/nowhere")}, ModelError, r"model\.path: '/nowhere' is not a directory"),
            ({"model": ModelConfig(tiny=tiny("*x"))}, ModelError, r"model\.tiny\.pattern: '\*x'"),
            ({"model": ModelConfig(tiny=tiny(), freeze=["vison"])}, ModelError, "no parameter starts with 'vison'"),
            ({"backend": BackendConfig(name="sglang")}, ConfigError, "'sglang' is not an engine of this version"),
            ({"trainer": TrainerConfig(name="megatron")}, ConfigError, "'megatron' is not a trainer of this version"),
            (
                {"backend": BackendConfig(max_model_len=10)},
                ValueError,
                "exceed the context of 10; raise `backend.max_mo",
            ),
            ({"algo": AlgoConfig(prompts_per_step=10_000)}, DataError, r"algo\.prompts_per_step=10000, but the dataset has"),
            (
                {"dataset": DatasetConfig(path="/nowhere")},
                DataError,
                "no such file or folder; make a dataset with `omnirl data make",
            ),
        ],
    )
    def test_configuration(self, config, tmp_path, change, error, message):
        with pytest.raises(error, match=message):
            train(config(**change), tmp_path / "run")
        assert not list(tmp_path.iterdir())

    def test_processes_do_not_see_a_dict(self, config, tmp_path):
        cfg = config()
        cfg.cluster.launcher, cfg.media.store = "process", "memory"
        with pytest.raises(ConfigError, match=r"cannot see media\.store=memory; set media\.store=shared_memory or carried"):
            train(cfg, tmp_path / "run")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("damage", "error", "message"),
        [
            (lambda d: (d / "eval.jsonl").write_text(""), DataError, r"eval\.jsonl"),
            (lambda d: (d / "train.jsonl").unlink(), DataError, r"train\.jsonl"),
            (lambda d: picture_of(d, 0).unlink(), MediaError, r"\.png"),
            (lambda d: picture_of(d, 0).write_bytes(b""), MediaError, r"\.png"),
            (without_targets, DataError, r"has no `target`; the supervised warm-up"),
        ],
    )
    def test_data(self, config, session_cache, tmp_path, damage, error, message):
        data = shutil.copytree(ensure_dataset(config().dataset, session_cache), tmp_path / "data")
        damage(data)
        with pytest.raises(error, match=message) as caught:
            train(config(dataset=DatasetConfig(path=str(data))), tmp_path / "run")
        assert caught.value.exit_code == 2
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("file", ["train.jsonl", "eval.jsonl"])
    @pytest.mark.parametrize(
        ("model", "content", "fields", "error", "message"),
        [
            (
                QWEN,
                [VIDEO],
                {},
                MediaError,
                r"a\.mp4 \(prompt 'last'\): .*\(model.family=qwen_vl\) takes no clips; .*`model\.path`",
            ),
            (QWEN, "<video>x", {"videos": ["a.mp4"]}, MediaError, r"a\.mp4 \(prompt 'last'\): .* takes no clips"),
            (OMNI, [VIDEO | {"min_frames": 500}], {}, MediaError, r"min_frames=500 \(row\) is more than max_frames=9 \(media"),
            (OMNI, [PICTURE] * 9, {}, MediaError, "prompt 'last': 9 pictures and clips, the limit is 8"),
            (OMNI, "x", {"template_kwargs": {"mood": "sad"}}, DataError, "prompt 'last': asks for the template variable mood"),
            (OMNI, [SOUND], {}, DataError, r"\(id 'last'\): `messages\[0\].content\[0\]` is of type 'input_audio'"),
            (QWEN, [SOUND], {}, DataError, r"\(id 'last'\): `messages\[0\].content\[0\]` is of type 'input_audio'"),
        ],
    )
    def test_every_row(self, config, session_cache, tmp_path, monkeypatch, file, model, content, fields, error, message):
        """The last one too, long before its turn; no worker is started."""
        for group in ("engine_group", "trainer_group"):
            monkeypatch.setattr(train_module, group, None)
        data = shutil.copytree(ensure_dataset(config().dataset, session_cache), tmp_path / "data")
        bad = {"id": "last", "answer": "3", "target": "3", "messages": [{"role": "user", "content": content}], **fields}
        with (data / file).open("a") as lines:
            lines.write(json.dumps(bad) + "\n")
        cfg = config(model=model, dataset=DatasetConfig(path=str(data)))
        if model is OMNI:
            cfg.media.video_max_frames = 9
        with pytest.raises(error, match=rf"{file}.*{message}") as caught:
            train(cfg, tmp_path / "run")
        assert caught.value.exit_code == 2
        assert not (tmp_path / "run").exists()

    def test_a_folder_that_cannot_be_written(self, config, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"hydra\.run\.dir=.* cannot be written"):
            train(config(), tmp_path / "file" / "run")


class TestGoal:
    """Checkpoints by metric, and ends before the last step."""

    def test_the_best_and_the_newest_are_kept(self, config, env, tmp_path, capsys):
        saves = CheckpointConfig(every=1, keep=1, keep_best=1, metric="rollout/length_max", higher_is_better=False)
        assert train(config(checkpoint=saves), tmp_path / "run") == 0
        lengths = [row["rollout/length_max"] for row in rows(tmp_path / "run" / "metrics.jsonl")[1:]]
        best = max(n for n, length in enumerate(lengths, start=WARMUP + 1) if length == min(lengths))
        assert numbers(tmp_path / "run") == sorted({best, WARMUP + STEPS})
        assert CheckpointStore(tmp_path / "run" / "checkpoints").at(best).metrics["rollout/length_max"] == min(lengths)

    def test_a_goal_ends_the_run_and_stays_reached(self, config, env, tmp_path):
        """The first evaluation during the run is after step 2 of 3."""
        goal = {"metric": "eval/length_mean", "stop_at": 0.0}
        assert train(config(checkpoint=CheckpointConfig(**goal)), tmp_path / "run") == 0
        assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
        assert (tmp_path / "run" / "export").is_dir()
        assert train(config(checkpoint=CheckpointConfig(resume="auto", **goal)), tmp_path / "run") == 0
        assert numbers(tmp_path / "run")[-1] == WARMUP + 2
        assert train(config(checkpoint=CheckpointConfig(resume="auto")), tmp_path / "run") == 0
        assert numbers(tmp_path / "run")[-1] == WARMUP + STEPS

    def test_a_metric_that_the_run_does_not_measure(self, config, env, tmp_path):
        with pytest.raises(ConfigError, match=r"there is no metric 'eval/acuracy'\. Did you mean 'eval/accuracy'\?"):
            train(config(checkpoint=CheckpointConfig(metric="eval/acuracy", stop_at=1)), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with pytest.raises(ConfigError, match=r"eval/pass_k is not measured by this run; .* give: eval/accuracy, eval/acc"):
            train(config(checkpoint=CheckpointConfig(metric="eval/pass_k", stop_at=1)), tmp_path / "run")

    @pytest.mark.parametrize(("calls", "saved"), [(0, 0), (2, 2), (3, WARMUP + 1)])
    def test_time_is_up(self, whole, config, env, tmp_path, monkeypatch, capsys, calls, saved):
        """In the warm-up and after it: the run saves and leaves with 0, and can go on."""
        answers = iter([False] * calls + [True] * 9)
        with monkeypatch.context() as patch:
            patch.setattr(TimeBudget, "spent", lambda self: next(answers))
            timed = config(checkpoint=CheckpointConfig(every=0, save_by="00:01:00:00"))
            assert train(timed, tmp_path / "run", Console(width=300)) == 0
        assert numbers(tmp_path / "run") == [saved]
        assert not (tmp_path / "run" / "export").exists()
        assert train(config(checkpoint=CheckpointConfig(every=0, resume="auto")), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)

    def test_without_its_optimizer_a_checkpoint_is_smaller_and_loads(self, whole, config, env, tmp_path):
        slim = CheckpointConfig(every=1, keep=9, save_optimizer=False)
        assert train(config(checkpoint=slim), tmp_path / "run") == 0
        assert_same_run(tmp_path / "run", whole)
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_000005")
        assert not list((tmp_path / "run").rglob("optimizer.pt"))
        assert train(config(checkpoint=CheckpointConfig(resume="auto")), tmp_path / "run") == 0
        assert numbers(tmp_path / "run")[-1] == 5


def test_several_answers_to_a_prompt(config, env, tmp_path):
    evals = EvalConfig(every=0, start=False, samples=4, final_samples=8, temperature=1.0, completions_per_prompt=3)
    assert train(config(eval=evals), tmp_path / "run") == 0
    found = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in found] == [STEPS]
    assert found[0]["eval/accuracy"] < found[0]["eval/pass_k"] <= 1
    assert found[0]["eval/samples"] == 8


def test_a_batch_without_variance_is_counted_and_changes_nothing(config, tmp_path):
    """The untrained model's answers are all wrong."""
    cfg = config(trainer=TrainerConfig(max_steps=2))
    assert train(cfg, tmp_path / "run") == 0
    for row in rows(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert row["rollout/kept_groups"] == row["train/num_optimizer_steps"] == row["train/policy_version"] == 0
        assert row["rollout/zero_variance_share"] == 1.0
        assert "train/loss" not in row
    built, exported = (load_file(folder / "model.safetensors") for folder in (ensure_model(cfg), tmp_path / "run" / "export"))
    assert all(np.array_equal(built[name], exported[name]) for name in built)


def test_several_optimizer_steps_of_a_batch(config, env, tmp_path):
    algo = AlgoConfig(group_size=4, prompts_per_step=4, train_batch_size=4)
    assert train(config(algo=algo, trainer=TrainerConfig(max_steps=2, lr=1e-3)), tmp_path / "run") == 0
    found = rows(tmp_path / "run" / "metrics.jsonl")[1:]
    assert sum(row["train/num_optimizer_steps"] for row in found) == found[-1]["train/policy_version"] > 2
    assert any(row["train/probs_ratio_max"] > 1 for row in found), "later updates of a step are off policy"


class TestDynamicSampling:
    """A group of four coins is all heads or all tails once in eight."""

    ALGO = AlgoConfig(group_size=2, prompts_per_step=4, dynamic_sampling=DynamicSamplingConfig(enabled=True, max_batches=5))

    def make(self, config, **groups):
        return config(algo=self.ALGO, trainer=TrainerConfig(max_steps=4, lr=1e-3), **groups)

    def test_every_step_trains_on_all_its_groups_and_resumes(self, config, env, tmp_path):
        assert train(self.make(config), tmp_path / "whole") == 0
        found = rows(tmp_path / "whole" / "metrics.jsonl")[1:]
        assert [row["rollout/kept_groups"] for row in found] == [4] * 4
        assert [row["train/num_samples"] for row in found] == [8] * 4
        assert any(row["rollout/generation_batches"] > 1 for row in found)
        assert any(row["rollout/surplus_groups"] for row in found[:2])
        assert all(row["rollout/num_groups"] == 4 * row["rollout/generation_batches"] for row in found)
        folder = shutil.copytree(tmp_path / "whole", tmp_path / "run")
        for later in (3, 4):
            shutil.rmtree(folder / "checkpoints" / f"step_{later:06d}")
        shutil.rmtree(folder / "export")
        resume = CheckpointConfig(every=1, keep=100, resume=str(folder))
        assert train(self.make(config, checkpoint=resume), tmp_path / "unused") == 0
        assert_same_run(folder, tmp_path / "whole")

    def test_it_ends_with_counts_and_remedy(self, config, tmp_path):
        """The untrained model's answers are all wrong; the dataset has six batches of four rows."""
        with pytest.raises(NothingToLearn, match=r"found 0 of 4 .* 20 groups of 5 generation batches.*Every reward is 0"):
            train(self.make(config), tmp_path / "run")
        self.ALGO.dynamic_sampling.max_batches = 9
        with pytest.raises(NothingToLearn, match="24 groups of 6 generation batches, after which every row of the dataset"):
            train(self.make(config), tmp_path / "other")


def test_sequences_that_disagree_are_left_out_and_told(config, env, tmp_path, capsys):
    """The bound of 1 is below any rounding difference."""
    algo = AlgoConfig(group_size=4, prompts_per_step=4, mismatch=MismatchConfig(max_sequence_error=1.0))
    settings = {"trainer": TrainerConfig(max_steps=1, lr=1e-3), "logger": LoggerConfig(tensorboard=False)}
    assert train(config(algo=algo, **settings), tmp_path / "run") == 0
    row = rows(tmp_path / "run" / "metrics.jsonl")[1]
    assert row["train/masked_sequences"] + row["train/num_samples"] == 4 * row["rollout/kept_groups"]
    assert row["train/masked_share"] > 0.1
    assert "sequences were masked: trainer and engine disagree" in " ".join(capsys.readouterr().out.split())


def test_a_run_without_anything_to_learn_is_told(config, tmp_path, capsys):
    cfg = config(trainer=TrainerConfig(max_steps=2), logger=LoggerConfig(tensorboard=False))
    cfg.algo.equal_rewards_patience = 2
    assert train(cfg, tmp_path / "run") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2 steps in a row had nothing to learn from" in told
    assert "none of the 2 steps had anything to learn from" in told


@pytest.mark.engines
@pytest.mark.parametrize("method", options("algo"))
def test_every_method_trains(config, env, tmp_path, method):
    small = ["algo.group_size=4", "algo.prompts_per_step=4", "algo.overlong_filter=false"]  # three tokens cut off all
    algo = compose_config("tiny_omni_count", [f"algo={method}", *small]).algo
    assert train(config(algo=algo, trainer=TrainerConfig(max_steps=2, lr=1e-3)), tmp_path / "run") == 0
    for row in rows(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert np.isfinite(row["train/loss"])
        assert row["train/grad_norm"] > 0
        assert {name for name in row if describe(name) is None} <= {"step"}


def test_an_evaluation_has_as_much_time_as_the_steps_that_it_is_worth(config, env, tmp_path, monkeypatch):
    given, generate = [], RolloutRunner.generate

    def record(self, prompts, group_size, *, deadline, **rest):
        given.append((len(prompts) * group_size, deadline.seconds))
        return generate(self, prompts, group_size, deadline=deadline, **rest)

    monkeypatch.setattr(RolloutRunner, "generate", record)
    algo = AlgoConfig(group_size=2, prompts_per_step=2)
    assert train(config(algo=algo, trainer=TrainerConfig(max_steps=1)), tmp_path / "run") == 0
    assert given == [(8, 1200.0), (4, 600.0), (8, 1200.0)]


def test_controller_imports_no_torch():
    code = "import sys, omnirl.runtime.train; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.engines
def test_a_scheduler_ends_and_continues_a_run(tmp_path):
    """The command line, stopped from outside while it trains, and started again as it was."""
    small = ["trainer.warmup.max_steps=0", "dataset.synthetic.num_train=64", "dataset.synthetic.num_eval=8"]
    small += ["algo.prompts_per_step=4", "eval.final_samples=8", "eval.every=0", "checkpoint.every=0"]
    place = [f"hydra.run.dir={tmp_path / 'run'}", f"cache_dir={tmp_path / 'cache'}", "checkpoint.resume=auto"]
    command = [sys.executable, "-m", "omnirl", "train", "recipe=tiny_omni_count", *small, *place]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen([*command, "trainer.max_steps=5000"], stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 200
            while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
    (saved,) = numbers(tmp_path / "run")
    subprocess.run([*command, f"trainer.max_steps={saved + 1}"], check=True, timeout=200)
    assert [row["step"] for row in rows(metrics)] == list(range(saved + 2))
