"""A run's checkpoint → a Hugging Face directory that transformers, `omnirl generate` and other engines load.

Example:
    export(Path("runs/count"), Path("model"))            # the newest checkpoint
    export(Path("runs/count"), Path("model"), step=400)
"""

from pathlib import Path

from omnirl.errors import CheckpointMismatch, ConfigError

from .checkpoints import Checkpoint, CheckpointStore
from .models import ensure_model
from .run_folder import RunFolder


def export(run: Path, out: Path, *, step: int | None = None, force: bool = False) -> Checkpoint:
    """Write `out`, whole or not at all, and return the checkpoint that it came from.

    `step`: number of the checkpoint, None for the newest. `force` replaces a model that is in `out`. Raises `ConfigError` for
    a `run` that is no run folder and for an `out` in use, `CheckpointError` for a checkpoint that is absent or damaged,
    `ModelError` when the model that the run started from is gone.
    """
    folder = RunFolder(run)
    if not folder.holds_run:
        raise ConfigError(
            f"{run} is not a run folder of omnirl (it has no {folder.record.name}); give a folder of `omnirl train`"
        )
    if not force and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise ConfigError(f"--out {out} exists and is not empty; choose another folder, or replace a model with --force")
    cfg = folder.load_config()
    store = CheckpointStore(folder.checkpoints)
    checkpoint = store.latest() if step is None else store.at(step)
    if checkpoint is None:
        raise CheckpointMismatch(f"{run} has no checkpoint yet: the run did not reach one (checkpoint.every)")
    base = ensure_model(cfg) if cfg.model.path is None else Path(folder.last_start().get("model", cfg.model.path))
    if not base.is_dir():
        raise ConfigError(f"{folder.record}: the run started from the model {base}, which is not there; put it back to export")
    from omnirl.trainers.state import export_checkpoint  # torch

    export_checkpoint(base, cfg.model, checkpoint.folder / "trainer", out)
    return checkpoint
