"""A run's checkpoint → a Hugging Face directory that transformers, `omnirl generate` and other engines load.

Example:
    export(Path("runs/count"), Path("model"))            # the newest checkpoint
    export(Path("runs/count"), Path("model"), step=400)
"""

from pathlib import Path

from omnirl.errors import CheckpointError, ConfigError

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
        raise CheckpointError(f"{run} has no checkpoint yet: the run did not reach one (checkpoint.every)")
    if cfg.model.path is not None and not Path(cfg.model.path).is_dir():
        raise ConfigError(
            f"{folder.config}: the run started from model.path={cfg.model.path}, which is not there; "
            "start the export in the folder where the run was started"
        )
    from omnirl.trainers.state import export_checkpoint  # torch

    export_checkpoint(ensure_model(cfg), cfg.model, checkpoint.folder / "trainer", out)
    return checkpoint
