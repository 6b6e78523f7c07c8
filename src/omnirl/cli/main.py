"""The `omnirl` command: one small file a command beside this one, registered here in one line each.

Nothing heavy is imported at the top: `omnirl --help` must be quick. An `OmnirlError` that a command raises becomes one
message on stderr and the error's exit code, here and nowhere else.
"""

import os
import signal
import sys

import typer

from omnirl.cli import recipes
from omnirl.cli.data import data_app
from omnirl.cli.doctor import doctor
from omnirl.cli.export import export
from omnirl.cli.generate import generate
from omnirl.cli.overrides import PASS_THROUGH
from omnirl.cli.parity import parity
from omnirl.cli.report import report
from omnirl.cli.smoke import smoke
from omnirl.cli.train import train
from omnirl.errors import OmnirlError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement-learning post-training of vision-language models.",
)
app.command(context_settings=PASS_THROUGH)(train)
app.command(context_settings=PASS_THROUGH)(generate)
app.command(context_settings=PASS_THROUGH)(parity)
app.command(context_settings=PASS_THROUGH)(smoke)
app.command()(export)
app.command()(report)
app.command()(doctor)
app.add_typer(data_app, name="data")
app.add_typer(recipes.app, name="recipes")


def main() -> None:
    """Run the command line and leave with its exit code: 0 done, 1 failed, 2 wrong usage, 3 a gate was not met."""
    # OpenMP's threads spin while they wait; with other work on the machine that made a step ten times slower
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that partial files are removed
    try:
        app(prog_name="omnirl")
    except OmnirlError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    finally:
        signal.signal(signal.SIGTERM, before)
