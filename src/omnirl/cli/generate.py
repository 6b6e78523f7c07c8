"""`omnirl generate recipe=NAME`.

Example:
    omnirl generate recipe=tiny_omni_count model.path=runs/count/export --image photo.png --prompt "How many circles are there?"
    omnirl generate recipe=tiny_omni_count --input eval.jsonl --samples 4 --out completions.jsonl
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirl.cli.overrides import Overrides

if TYPE_CHECKING:
    from omnirl.config.schema import Config


def generate(
    overrides: Overrides = None,
    image: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Picture before the prompt; repeatable.")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="What to ask.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message of --prompt.")] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--input", metavar="ROWS.jsonl", help="Rows as in a dataset; with an `answer` they get a reward."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N rows.")] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Completions of each prompt.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token; log-probs at temperature 1.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JSON lines to a new file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE of --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines also on a terminal.")] = False,
) -> None:
    """Generate completions with the engine of a recipe.

    One JSON object a completion: id, sample, text, stop_reason, policy_version, ids, logprobs, prompt_ids, media, reward.
    """
    from omnirl.config.compose import run
    from omnirl.config.overrides import parse
    from omnirl.errors import ConfigError

    if out is not None and parse(overrides or []).multirun:
        raise ConfigError("--out names one file, which the jobs of a sweep would replace one after another: leave it out.")

    def task(cfg: "Config", run_dir: Path) -> int:
        from omnirl.runtime.generate import GenerateRequest
        from omnirl.runtime.generate import generate as start

        images = tuple(file.expanduser() for file in image or ())
        source = rows.expanduser() if rows else None
        request = GenerateRequest(images, prompt, system, source, limit, samples, greedy, out, force, as_json)
        return start(cfg, request)

    valued = {"prompt": prompt, "system": system, "input": rows, "limit": limit, "samples": samples}
    flags = [f"--image={file}" for file in image or ()]
    flags += [f"--{name}={value}" for name, value in valued.items() if value is not None]
    flags += ["--greedy"] * greedy + ["--json"] * as_json
    raise typer.Exit(run(task, overrides or [], "generate", training=False, flags=flags, unread=("dataset.path",)))
