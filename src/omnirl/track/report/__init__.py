"""A run folder → one self-contained HTML page: curves, findings in words, samples with their pictures; or two runs compared.

`load_run` reads what the run left, `findings` judges it, `render` writes the page. Pictures are read through a function that
the caller gives, since the one decoder lives elsewhere.

Example:
    run = load_run(Path("runs/count"))
    html = render([run], thumbnail, filmstrip)
"""

from .findings import Finding, Level, findings
from .page import render
from .run import RunData, RunStatus, Series, is_run, load_run
from .samples import FRAMES, Thumbnail, evenly

__all__ = [
    "FRAMES",
    "Finding",
    "Level",
    "RunData",
    "RunStatus",
    "Series",
    "Thumbnail",
    "evenly",
    "findings",
    "is_run",
    "load_run",
    "render",
]
