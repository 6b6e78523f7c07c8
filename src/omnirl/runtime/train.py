"""From a configuration to a running controller: dataset, model, workers, sinks; everything is closed again at the end.

Example:
    exit_code = train(cfg, Path("runs/tiny_omni_count/20260101-120000"))
"""

from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from omnirl.config.schema import Config
from omnirl.data import ensure_dataset, load_prompts
from omnirl.envs import make_env
from omnirl.errors import CheckpointError
from omnirl.media import make_store
from omnirl.rollout import RolloutRunner
from omnirl.sync import WeightTransfer
from omnirl.track import FanOut, JsonlTracker, Progress
from omnirl.types import Tracker

from .checkpoints import CheckpointStore
from .controller import Controller, Parts
from .models import ensure_model
from .run_folder import RunFolder
from .session import engine_group, make_encoder, model_spec, trainer_group


def train(cfg: Config, run_dir: Path, console: Console | None = None) -> int:
    """Train, or continue the run that `checkpoint.resume` names. `console`: where progress is shown (default: stdout). Returns
    the process's exit code."""
    run_dir, resume = _resolve_resume(cfg, run_dir)
    console = console or Console()
    dataset = ensure_dataset(cfg.dataset, Path(cfg.cache_dir).expanduser())
    train_rows = load_prompts(dataset / cfg.dataset.train)
    eval_rows = load_prompts(dataset / cfg.dataset.eval)
    checkpoint_dir = ensure_model(cfg)
    spec = model_spec(cfg, checkpoint_dir)
    env = make_env(cfg.env)
    store = CheckpointStore(run_dir / "checkpoints", cfg.checkpoint.keep)
    checkpoint = store.latest() if resume else None
    if resume and checkpoint is None:
        raise CheckpointError(f"{run_dir}: there is no checkpoint to resume from (checkpoint.resume).")
    run = RunFolder.create(run_dir, cfg, resume=resume)
    with ExitStack() as stack:
        media = make_store(cfg.media.store)
        stack.callback(media.close)
        encoder = make_encoder(cfg, spec, media)
        console.print(f"run folder {run.path}", soft_wrap=True, highlight=False)
        trainers = stack.enter_context(trainer_group(cfg, checkpoint_dir, media))
        engines = stack.enter_context(engine_group(cfg, checkpoint_dir, media))
        progress = Progress(console) if cfg.logger.progress else Progress(Console(quiet=True))
        stack.callback(progress.close)
        metrics = _sinks(cfg, run, progress, resume)
        stack.callback(metrics.close)
        warmup_metrics = JsonlTracker(run.path / "warmup.jsonl", resume_step=_WARMUP_ALL if resume else None)
        stack.callback(warmup_metrics.close)
        runner = RolloutRunner(engines, encoder, env, spec, cfg.rollout, cfg.seed)
        parts = Parts(
            trainers=trainers,
            engines=engines,
            sync=WeightTransfer(trainers, engines),
            runner=runner,
            encoder=encoder,
            train=train_rows,
            eval=eval_rows,
            metrics=metrics,
            warmup_metrics=warmup_metrics,
            progress=progress,
        )
        controller = Controller(cfg, parts, run)
        if checkpoint is not None:
            controller.restore(checkpoint)
        return controller.run()


_WARMUP_ALL = 1 << 60


def _resolve_resume(cfg: Config, run_dir: Path) -> tuple[Path, bool]:
    """The folder to run in, and whether it is continued."""
    if cfg.checkpoint.resume is None:
        return run_dir, False
    if cfg.checkpoint.resume == "auto":
        return run_dir, bool(CheckpointStore(run_dir / "checkpoints").steps())
    return Path(cfg.checkpoint.resume), True


def _sinks(cfg: Config, run: RunFolder, progress: Progress, resume: bool) -> FanOut:
    step = _last_step(run) if resume else None
    sinks: dict[str, Tracker] = {"jsonl": JsonlTracker(run.metrics, resume_step=step)}
    if cfg.logger.tensorboard:
        from omnirl.track.tensorboard import TensorBoardTracker

        sinks["tensorboard"] = TensorBoardTracker(run.tensorboard, resume_step=step)
    sinks["progress"] = progress
    return FanOut(sinks)


def _last_step(run: RunFolder) -> int:
    from .checkpoints import read_state

    latest = CheckpointStore(run.checkpoints).latest()
    assert latest is not None
    return int(read_state(latest.folder)["step"])
