"""Prompts → completions of one checkpoint, without a trainer. Every prompt is encoded before a model is loaded, so wrong
input fails in a second and leaves nothing.

Example:
    request = GenerateRequest(images=(Path("photo.png"),), prompt="How many circles are there?")
    exit_code = generate(cfg, request)
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import batched
from pathlib import Path

from omnirl.config.schema import Config
from omnirl.data import load_prompts
from omnirl.envs import make_env
from omnirl.errors import ConfigError, DataError, MediaError
from omnirl.prompt import PromptEncoder
from omnirl.rollout import RolloutRunner
from omnirl.types import Deadline, Environment, ImagePart, Message, Prompt, TextPart, Turn

from .completions import completion_row, json_line, new_file, readable_completion, readable_prompt
from .models import ensure_model
from .pixels import check_pixels
from .session import engine_group, make_encoder, media_store, model_spec

#: requests that are handed to the engine at once; each such part has `rollout.timeout_s`
PART = 256

Group = tuple[Prompt, list[Turn]]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the command's own flags say: one prompt (`images`, `prompt`, `system`) or the first `limit` rows of `rows`;
    `samples` completions of each; where they go. Without `out`, stdout: readable on a terminal, JSON lines elsewhere or
    (in addition) with `as_json`."""

    images: tuple[Path, ...] = ()
    prompt: str | None = None
    system: str | None = None
    rows: Path | None = None
    limit: int | None = None
    samples: int = 1
    greedy: bool = False
    out: Path | None = None
    force: bool = False
    as_json: bool = False


def generate(cfg: Config, request: GenerateRequest) -> int:
    """Generate, write, return the exit code. Raises `ConfigError`, `DataError`, `MediaError`, `PromptTooLong`,
    `PlaceholderMismatch` (wrong input, before anything is generated), `EngineError`."""
    greedy = request.greedy or cfg.rollout.temperature == 0
    if greedy and request.samples > 1:
        raise ConfigError(f"--samples {request.samples}: greedy completions of a prompt are all equal; ask for one")
    prompts = read_prompts(request)
    with ExitStack() as stack:
        env = make_env(cfg.env)
        stack.callback(env.close)
        store = media_store(cfg)
        stack.callback(store.close)
        spec = model_spec(cfg, ensure_model(cfg))
        encoder = make_encoder(cfg, spec, store)
        for image in request.images:  # under the flag's own name; the encoder finds them in the store
            encoder.loader.load(str(image), name=f"--image {image}")
        for prompt in prompts:
            encoder.encode(prompt)
        write = _sink(request, encoder, env, stack)
        engines = stack.enter_context(engine_group(cfg, spec.path, store))
        check_pixels(spec, {"engine": engines}, Deadline.after(cfg.rollout.timeout_s))
        runner = RolloutRunner(engines, encoder, env, spec, cfg.rollout, cfg.seed)

        def run(part: Sequence[Prompt]) -> list[list[Turn]]:
            deadline = Deadline.after(cfg.rollout.timeout_s)
            return runner.generate(part, request.samples, step=0, deadline=deadline, greedy=greedy)

        for group in _in_parts(prompts, max(1, PART // request.samples), run):
            write(group)
    if request.out is not None:
        print(f"{len(prompts) * request.samples} completions of {len(prompts)} prompts in {request.out}")
    return 0


def read_prompts(request: GenerateRequest) -> list[Prompt]:
    """The prompts that the flags name. Raises `ConfigError` for flags that do not go together, `DataError`, `MediaError`."""
    one = request.prompt is not None or request.system is not None or bool(request.images)
    if one == (request.rows is not None):
        both = "not both" if one else "one of them is needed"
        raise ConfigError(f"Give --prompt TEXT (with --image FILE, --system TEXT) or --input ROWS.jsonl: {both}.")
    if request.rows is not None:
        if not request.rows.is_file():
            what = "is a folder" if request.rows.is_dir() else "no such file"
            raise DataError(f"--input {request.rows}: {what}; give a JSONL file with rows of messages")
        return load_prompts(request.rows, request.limit, answers=False)
    if request.limit is not None:
        raise ConfigError("--limit counts the rows of --input, which is not given.")
    if request.prompt is None or not request.prompt.strip():
        raise ConfigError("--prompt is missing or empty: say what to ask")
    if missing := next((image for image in request.images if not image.is_file()), None):
        what = "is a directory; give a picture file" if missing.is_dir() else "no such file"
        raise MediaError(f"--image {missing}: {what}")
    return [_one_prompt(request.images, request.prompt, request.system)]


def _one_prompt(images: Sequence[Path], text: str, system: str | None) -> Prompt:
    user = Message("user", (*(ImagePart(str(image)) for image in images), TextPart(text)))
    messages = (user,) if system is None else (Message("system", (TextPart(system),)), user)
    return Prompt("prompt", messages, answer="")


def _in_parts(prompts: Sequence[Prompt], size: int, run: Callable[[Sequence[Prompt]], list[list[Turn]]]) -> Iterator[Group]:
    """Prompts with their turns, generated `size` prompts at a time; says on stderr how far a longer job is."""
    done = 0
    for part in batched(prompts, size):
        yield from zip(part, run(part), strict=True)
        done += len(part)
        if len(prompts) > size:
            print(f"{done} of {len(prompts)} prompts", file=sys.stderr, flush=True)


def _sink(request: GenerateRequest, encoder: PromptEncoder, env: Environment, stack: ExitStack) -> Callable[[Group], None]:
    """Where groups go. A file is opened (and refused) here, before a model is loaded."""
    file = stack.enter_context(new_file(request.out, force=request.force)) if request.out else sys.stdout
    readable = request.out is None and file.isatty()
    as_json = request.as_json or not readable

    def write(group: Group) -> None:
        prompt, turns = group
        for sample, turn in enumerate(turns):
            reward = env.respond(prompt, (turn,)).reward if prompt.answer else None
            row = completion_row(prompt, sample, turn, encoder.decode_plain(turn.completion.ids), reward)
            if readable and sample == 0:
                print(readable_prompt(prompt, row), file=file)
            if readable:
                print(readable_completion(row), file=file)
            if as_json:
                file.write(json_line(row))

    return write
