"""One or two `RunData` → the page: Jinja writes what can be read without a script, and the page's script draws curves and
samples from data that are embedded as JSON.

Nothing is fetched, and what a model wrote cannot run: Jinja escapes, the scripts only ever set text, `<` is escaped in the
JSON, and the page's own policy allows scripts by their hash alone.

Example:
    html = render([run], thumbnail, filmstrip, links=[("metrics.jsonl", "metrics.jsonl")])
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from omnirl.track.names import describe

from .charts import Chart, layout
from .compare import config_rows, metric_rows
from .findings import Level, findings
from .run import RunData, Series
from .samples import Thumbnail, pack

_SCRIPTS = ("charts.js", "samples.js", "page.js")
#: points of one curve; of a longer one the extremes of equal stretches are drawn
_POINTS = 2_000
_HEADLINE = ("rollout/reward_mean", "eval/accuracy", "train/token_mult_prob_error", "timing/step_s")


def render(
    runs: Sequence[RunData],
    thumbnail: Callable[[str], Thumbnail],
    filmstrip: Callable[[str, Sequence[int]], Thumbnail],
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """`runs`: one, or two to compare. `thumbnail`: path → picture; `filmstrip`: path of a clip and numbers of frames → these
    beside each other. `links`: text and address of raw files.
    Returns the whole page; it can be encoded as UTF-8 whatever the run holds."""
    first, second = runs[0], runs[1] if len(runs) > 1 else None
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    samples = pack(runs, thumbnail, filmstrip)
    html = _template().render(
        runs=[_header(run, name) for run, name in zip(runs, "AB", strict=False)],
        levels=list(Level),
        metric_rows=metric_rows(first, second),
        config_rows=config_rows(first, second) if second else [],
        meaning={row.name: entry.meaning for row in metric_rows(first, second) if (entry := describe(row.name))},
        headline=_headline(first),
        samples=samples,
        links=links,
        style=_asset("style.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_embedded({"runs": [_curves(run) for run in runs], "sections": _sections(runs), "samples": samples}),
        made=datetime.now(UTC).isoformat(sep=" ", timespec="minutes"),
    )
    return html.encode("utf-8", "replace").decode()


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"number": number, "seconds": seconds}
    return environment.from_string(_asset("page.html"))


def _embedded(data: Any) -> str:
    """JSON that can stand inside a script element: ASCII, and no `<`."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def number(value: float | None) -> str:
    """Four significant digits; more where a value is close to 1."""
    if value is None:
        return "–"
    if value != 1 and abs(value - 1) < 1e-3:
        return f"{value:.8g}"
    return f"{value:.4g}" if abs(value) < 1e5 or abs(value) >= 1e9 else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """As a person says it: `2 h 05 min`."""
    if value is None:
        return "unknown"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _header(run: RunData, label: str) -> dict[str, Any]:
    record = run.record
    git, hardware, versions = (_mapping(record.get(key)) for key in ("git", "hardware", "versions"))
    commit = f"{str(git.get('commit'))[:12]}{' with changes' if git.get('changed') else ''}" if git.get("commit") else "unknown"
    gpus = hardware.get("gpus") or []
    machine = f"{hardware.get('cpus', '?')} CPUs, {hardware.get('memory_gib', '?')} GiB" + (
        f", {len(gpus)} × {gpus[0]}" if gpus else ""
    )
    facts = {
        "recipe": run.config.get("recipe_name", "unknown"),
        "model": run.config.get("model.path") or f"{run.config.get('model.family', 'unknown')} (miniature)",
        "engine / trainer": f"{run.config.get('backend.name', '?')} / {run.config.get('trainer.name', '?')}",
        "steps": f"{run.last_step} of {run.config.get('trainer.max_steps', '?')}",
        "duration": seconds(run.seconds),
        "started": str(record.get("started", "unknown")).replace("T", " ").replace("+00:00", " UTC"),
        "resumed": str(len(record.get("resumed") or [])) + " times",
        "seed": str(run.config.get("seed", record.get("seed", "unknown"))),
        "git commit of omnirl": commit,
        "machine": machine if hardware else "unknown",
    }
    return {
        "label": label,
        "name": run.name,
        "description": str(run.config.get("description") or ""),
        "status": str(run.status),
        "facts": facts,
        "versions": versions,
        "command": " ".join(map(str, record.get("command") or [])),
        "config": run.config,
        "findings": findings(run),
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _headline(run: RunData) -> list[dict[str, Any]]:
    """The figures that a reader looks for first: latest value and where it began."""
    found = []
    for name in _HEADLINE:
        series = run.policy.get(name)
        if series is not None and series.finite:
            entry = describe(name)
            found.append(
                {"name": name, "first": series.finite[0], "last": series.finite[-1], "about": entry.meaning if entry else ""}
            )
    return found


def _curves(run: RunData) -> dict[str, Any]:
    """`policy` and `warmup`: metric → `[steps, values]`."""
    return {"name": run.name, "policy": _points(run.policy), "warmup": _points(run.warmup)}


def _points(metrics: Mapping[str, Series]) -> dict[str, list[Any]]:
    found = {}
    for name, series in metrics.items():
        steps, values = thin(series)
        found[name] = [steps, [None if value is None else float(f"{value:.8g}") for value in values]]
    return found


def thin(series: Series, limit: int = _POINTS) -> tuple[list[int], list[float | None]]:
    """At most about `limit` points: of each of `limit / 2` equal stretches its smallest and its largest value; first, last and
    every value that is not finite stay."""
    steps, values = list(series.steps), list(series.values)
    if len(steps) <= limit:
        return steps, values
    kept = {0, len(steps) - 1, *(i for i, value in enumerate(values) if value is None)}
    stretches = limit // 2
    for i in range(stretches):
        span = range(i * len(steps) // stretches, (i + 1) * len(steps) // stretches)
        known = [(value, position) for position in span if (value := values[position]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
    order = sorted(kept)
    return [steps[i] for i in order], [values[i] for i in order]


def _sections(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    policy = {name for run in runs for name in run.policy}
    warmup = {name for run in runs for name in run.warmup}
    return [
        {
            "title": section.title,
            "note": section.note,
            "phase": section.phase,
            "charts": [_chart(chart, warmup if section.phase == "warmup" else policy) for chart in section.charts],
        }
        for section in layout(policy, warmup, runs[0].number)
    ]


def _chart(chart: Chart, names: Iterable[str]) -> dict[str, Any]:
    metrics = chart.metrics(names)
    about = {name: f"{entry.meaning}. {entry.formula}".strip() for name in metrics if (entry := describe(name))}
    return {
        "title": chart.title,
        "series": metrics,
        "kind": chart.kind,
        "band": chart.band,
        "log": chart.log,
        "limits": [{"label": limit.label, "level": limit.level, "value": limit.value} for limit in chart.limits],
        "about": about,
    }
