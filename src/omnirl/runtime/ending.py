"""Runs a run, then records how it ended and writes its report. Neither may change what the end is.

Example:
    code = with_ending(run, lambda: controller.run(metrics, warmup), report=True, note=progress.note)
"""

from collections.abc import Callable
from pathlib import Path

from omnirl.errors import ConfigError, OmnirlError
from omnirl.track.report import RunStatus

from .report import write_report
from .run_folder import RunFolder


def with_ending(
    run: RunFolder,
    start: Callable[[], int],
    *,
    complete: Callable[[], bool] = lambda: True,
    report: bool,
    note: Callable[[str], None],
) -> int:
    """What `start` returns or raises. `complete`: asked after a 0, which also ends a run whose time is up. `report`: write
    `report.html`. `note`: tells a person where it is, or why it is not."""
    state, reason = RunStatus.FAILED, None
    try:
        code = start()
        state = RunStatus.FINISHED if code == 0 and complete() else RunStatus.STOPPED
    except OmnirlError as error:
        reason = str(error)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        try:
            run.end(state, reason)
        except ConfigError as error:
            note(str(error))
        if report:
            note(_page(run.path))
    return code


def _page(folder: Path) -> str:
    try:
        return f"report written to {write_report(folder)}"
    except Exception as error:  # hours of training outweigh a page about them, whatever is wrong with it
        return f"no report: {error if isinstance(error, OmnirlError) else f'{type(error).__name__}: {error}'}"
