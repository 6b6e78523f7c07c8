"""From a configuration to a running controller: dataset, model, workers, sinks; everything is closed again at the end.

Example:
    exit_code = train(cfg, Path("runs/tiny_omni_count/20260101-120000"))
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from omnirl.config.duration import seconds
from omnirl.config.schema import Config
from omnirl.data import Dataset
from omnirl.envs import make_env
from omnirl.errors import CheckpointMismatch, DataError, MediaError
from omnirl.prompt import PromptEncoder, admit
from omnirl.rollout import RolloutRunner
from omnirl.sync import WeightTransfer
from omnirl.track import FanOut, JsonlTracker, Progress
from omnirl.types import Deadline, Prompt, Tracker

from .budget import TimeBudget
from .checkpoints import Checkpoint, CheckpointStore, read_state
from .controller import Controller
from .ending import with_ending
from .goal import Goal
from .identity import Identity, check_identity, contents
from .models import ensure_model
from .parts import Parts, RunState
from .pixels import check_pixels, pixel_record
from .run_folder import RunFolder
from .session import engine_group, make_encoder, media_store, model_spec, trainer_group
from .trackers import check_trackers, make_trackers

_TRIED = 8


def train(cfg: Config, run_dir: Path, console: Console | None = None) -> int:
    """Train, or continue the run that `checkpoint.resume` names. `console`: where progress is shown (default: stdout). Returns
    the process's exit code.

    The run's folder is written once everything is loaded and the first rows are encoded: what is wrong before leaves nothing.
    """
    check_trackers(cfg.logger)
    budget = TimeBudget(None if cfg.checkpoint.save_by is None else seconds(cfg.checkpoint.save_by))
    goal = Goal.of(cfg.checkpoint)
    run, continued, checkpoint = _find_run(cfg, run_dir)
    console = console or Console()
    dataset = Dataset(cfg.dataset, Path(cfg.cache_dir).expanduser())
    train_rows, eval_rows = dataset.prompts("train"), dataset.prompts("eval")
    _check_rows(cfg, len(train_rows))
    model = ensure_model(cfg)
    spec = model_spec(cfg, model)
    with ExitStack() as stack:
        env = make_env(cfg.env)
        stack.callback(env.close)
        _check_each(env.check, dataset.source("train"), train_rows)
        _check_each(env.check, dataset.source("eval"), eval_rows)
        media = media_store(cfg)
        stack.callback(media.close)
        encoder = make_encoder(cfg, spec, media)
        hashes = contents(model, encoder.template.source, train_rows, eval_rows)
        identity = Identity.of(cfg, hashes)
        if checkpoint is not None:
            check_identity(read_state(checkpoint.folder).get("identity"), identity, checkpoint.folder)
        _check_each(encoder.check, dataset.source("train"), train_rows)
        _check_each(encoder.check, dataset.source("eval"), eval_rows)
        _try_rows(cfg, encoder, train_rows, eval_rows)
        trainers = stack.enter_context(trainer_group(cfg, model, media))
        engines = stack.enter_context(engine_group(cfg, model, media))
        check_pixels(spec, {"trainer": trainers, "engine": engines}, Deadline.after(cfg.rollout.timeout_s))
        progress = Progress(console) if cfg.logger.progress else Progress(Console(quiet=True))
        stack.callback(progress.close)
        parts = Parts(
            cfg=cfg,
            trainers=trainers,
            engines=engines,
            sync=WeightTransfer(trainers, engines),
            runner=RolloutRunner(engines, encoder, env, spec, cfg.rollout, cfg.seed),
            encoder=encoder,
            train=train_rows,
            eval=eval_rows,
            progress=progress,
        )
        controller = Controller(parts, run, identity, goal, budget)
        if checkpoint is not None:
            controller.restore(checkpoint)
        facts = {
            "model": str(model.resolve()),
            "dataset": str(dataset.folder.resolve()),
            "hashes": dict(identity.contents),
            "pixels": pixel_record(spec, encoder),
            "from_checkpoint": None if checkpoint is None else checkpoint.folder.name,
        }
        RunFolder.create(run.path, cfg, resume=continued, restart=checkpoint is None, facts=facts)
        console.print(f"run folder {run.path}", soft_wrap=True, highlight=False)
        metrics, warmup_metrics = _sinks(cfg, run, progress, controller.state if continued else None)
        stack.callback(metrics.close)
        stack.callback(warmup_metrics.close)
        return with_ending(
            run,
            lambda: controller.run(metrics, warmup_metrics),
            complete=lambda: controller.complete,
            report=cfg.logger.report,
            note=progress.note,
        )


def _check_rows(cfg: Config, rows: int) -> None:
    """A batch holds no row twice, so the dataset must have a batch's rows. Raises `DataError` naming the key."""
    batches = {"algo.prompts_per_step": cfg.algo.prompts_per_step}
    if cfg.trainer.warmup.max_steps:
        batches["trainer.warmup.batch_size"] = cfg.trainer.warmup.batch_size
    for key, size in batches.items():
        if size > rows:
            raise DataError(f"{key}={size}, but the dataset has {rows} training rows; lower it or use more rows")


def _check_each(check: Callable[[Prompt], None], file: Path, rows: Sequence[Prompt]) -> None:
    """`check` names the row that cannot be used; the file comes before it. Raises `DataError`, `MediaError`."""
    for prompt in rows:
        try:
            check(prompt)
        except (DataError, MediaError) as error:
            raise type(error)(f"{file}: {error}") from error


def _find_run(cfg: Config, run_dir: Path) -> tuple[RunFolder, bool, Checkpoint | None]:
    """The run's folder, whether a run there is continued, and from which checkpoint (None: from the start).

    `auto` starts over where a run ended before its first checkpoint, so that a preempted job may be started again as it is.
    """
    resume = cfg.checkpoint.resume
    if resume is None:
        run = RunFolder(run_dir)
        run.check_new()
        return run, False, None
    run = RunFolder(run_dir if resume == "auto" else Path(resume).expanduser())
    if run.path.parent.name == run.checkpoints.name and not run.holds_run:
        raise CheckpointMismatch(
            f"checkpoint.resume={resume} is one checkpoint; give the run's folder, which goes on from its newest: "
            f"checkpoint.resume={run.path.parent.parent}"
        )
    checkpoint = CheckpointStore(run.checkpoints, cfg.checkpoint.keep).latest()
    if checkpoint is None and resume != "auto":
        why = "no such folder" if not run.path.exists() else "it holds no run" if not run.holds_run else "it ended too early"
        raise CheckpointMismatch(
            f"checkpoint.resume={resume}: there is no checkpoint to resume from ({why}); give a run's folder, or "
            "checkpoint.resume=auto to start where there is none"
        )
    return run, run.holds_run or checkpoint is not None, checkpoint


def _try_rows(cfg: Config, encoder: PromptEncoder, train_rows: Sequence[Prompt], eval_rows: Sequence[Prompt]) -> None:
    """Encode a few rows of each file, so that a wrong path or template shows at once. Raises the encoder's errors."""
    for rows in (train_rows[:_TRIED], eval_rows[:_TRIED]):
        admit(encoder, rows)
    if cfg.trainer.warmup.max_steps:
        for prompt in train_rows[:_TRIED]:
            encoder.encode_target(prompt)


def _sinks(cfg: Config, run: RunFolder, progress: Progress, state: RunState | None) -> tuple[FanOut, FanOut]:
    """Trackers of GRPO and of the warm-up. With `state`, rows after it are dropped; it will log row 0 again when it stands
    before step 1."""
    step = None if state is None else state.step or -1
    sinks: dict[str, Tracker] = {"jsonl": JsonlTracker(run.metrics, resume_step=step)}
    if cfg.logger.tensorboard:
        from omnirl.track.tensorboard import TensorBoardTracker

        sinks["tensorboard"] = TensorBoardTracker(run.tensorboard, resume_step=step)
    sinks |= make_trackers(cfg, run)
    warmup_step = None if state is None else state.warmup_step or -1
    warmup = JsonlTracker(run.path / "warmup.jsonl", resume_step=warmup_step)
    return FanOut({**sinks, "progress": progress}), FanOut({"jsonl": warmup, "progress": progress})
