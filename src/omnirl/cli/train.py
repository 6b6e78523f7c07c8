"""`omnirl train recipe=NAME`."""

from omnirl.cli.overrides import DryRun, Overrides, run_task


def train(overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Train a model with GRPO."""
    run_task("omnirl.runtime.train:train", overrides, "train", dry_run)
