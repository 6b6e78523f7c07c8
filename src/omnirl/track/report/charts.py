"""Which metrics are drawn together, with which limits. A metric that no chart names gets one of its own at the end.

Example:
    layout(["rollout/reward_mean", "train/loss"], [], run.number) → [Section("Learning", (Chart("Reward", …), …))]
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["line", "stack"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line. `level`: good (a target), warn, bad, or plain (a setting). `key`: the configuration key it is."""

    label: str
    level: Literal["good", "warn", "bad", "plain"]
    value: float | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """`series`: metric names or patterns, drawn in this order. `band`: series → the metric that is its half-width.
    `exclude`: patterns that do not belong here. `log`: whether the vertical axis begins logarithmic."""

    title: str
    series: tuple[str, ...]
    kind: Kind = "line"
    limits: tuple[Limit, ...] = ()
    band: dict[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    log: bool = False

    def metrics(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are drawn here."""
        found = [name for pattern in self.series for name in sorted(names) if fnmatchcase(name, pattern)]
        return [name for name in dict.fromkeys(found) if not any(fnmatchcase(name, pattern) for pattern in self.exclude)]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading. `note`: how to read them. `phase`: which metrics file they show."""

    title: str
    charts: tuple[Chart, ...]
    note: str = ""
    phase: Literal["policy", "warmup"] = "policy"


_TMPE = (Limit("fine below", "good", 1.02), Limit("look above", "bad", 1.05))
_KL = (Limit("acceptable below", "warn", 1e-3),)
_MISMATCH_NOTE = (
    "Engine and trainer score the same tokens under the same weights: 1 and no divergence is perfect. "
    "token_mult_prob_error: below 1.02 is fine, 1.02–1.05 usual in bfloat16, above 1.05 needs a look. Divergences below 1e-3 "
    "are acceptable. A mean hides outliers, so read the worst token beside it: one token at −5 in the engine and −15 in the "
    "trainer has a gen_kl_error of 9 and a policy_kl_error of 22,000. sampling_importance_ratio is a bias: 1 is none."
)
_RATIO_NOTE = (
    "The ratio compares the policy with itself at the start of the step; with one optimizer step a step it is exactly 1. Where "
    "clip_share stays above 0.3, or the largest ratio leaves the clip range by far, the step is too long: lower trainer.lr, or "
    "make fewer optimizer steps of a step."
)
_GROUP_NOTE = (
    "A group whose rewards are all equal has nothing to learn from. Some are healthy (easy and impossible prompts); when "
    "nearly all are, learning stops."
)

SECTIONS: tuple[Section, ...] = (
    Section(
        "Learning",
        (
            Chart("Reward", ("rollout/reward_mean",)),
            Chart("Held-out accuracy", ("eval/accuracy",), band={"eval/accuracy": "eval/accuracy_ci95"}),
            Chart("Reward parts", ("rollout/reward_*",), exclude=("rollout/reward_mean", "rollout/reward_std")),
            Chart("Held-out accuracy by kind", ("eval/accuracy_*", "eval/pass_*"), exclude=("eval/accuracy_ci95",)),
            Chart("Loss", ("train/loss", "train/policy_loss")),
            Chart("Entropy", ("train/approx_entropy",)),
            Chart("Gradient norm", ("train/grad_norm",), limits=(Limit("clipped above", "plain", key="trainer.grad_clip"),)),
            Chart("Learning rate", ("train/lr",)),
        ),
    ),
    Section(
        "Rollouts",
        (
            Chart(
                "Length of completions",
                ("rollout/length_mean", "rollout/length_max", "eval/length_mean"),
                limits=(Limit("budget", "plain", key="rollout.max_new_tokens"),),
            ),
            Chart(
                "How completions end",
                ("rollout/stop_share", "rollout/truncated_share", "rollout/aborted_share"),
                kind="stack",
            ),
            Chart("Groups without variance", ("rollout/zero_variance_share",), limits=(Limit("look above", "warn", 0.9),)),
            Chart("Groups", ("rollout/kept_groups", "rollout/num_groups")),
            Chart("Advantages", ("train/advantage_mean", "train/advantage_min", "train/advantage_max", "train/advantage_std")),
        ),
        note=_GROUP_NOTE,
    ),
    Section(
        "Policy ratio and reference",
        (
            Chart(
                "Probability ratio",
                ("train/probs_ratio", "train/probs_ratio_clamped", "train/probs_ratio_min", "train/probs_ratio_max"),
            ),
            Chart("Share of clipped tokens", ("train/clip_share",), limits=(Limit("look above", "warn", 0.3),)),
            Chart("Divergence from the reference", ("train/kl_penalty",), log=True),
        ),
        note=_RATIO_NOTE,
    ),
    Section(
        "Engine against trainer",
        (
            Chart("token_mult_prob_error", ("train/token_mult_prob_error",), limits=_TMPE),
            Chart("Worst token", ("train/token_mult_prob_error_max", "train/token_mult_prob_error_p99")),
            Chart(
                "Divergence", ("train/gen_kl_error", "train/policy_kl_error", "train/js_divergence_error"), limits=_KL, log=True
            ),
            Chart("sampling_importance_ratio", ("train/sampling_importance_ratio",), limits=(Limit("no bias", "good", 1.0),)),
            Chart("By class of token", ("train/token_mult_prob_error_*",), exclude=("*_max", "*_p99", "*_share*")),
            Chart("Sequences masked for their error", ("train/masked_share", "train/masked_correct_share")),
            Chart("Log-probs that are not finite", ("rollout/nonfinite_logprobs",)),
        ),
        note=_MISMATCH_NOTE,
    ),
    Section(
        "Time",
        (
            Chart("Seconds of a step", ("timing/*_s",), kind="stack", exclude=("timing/step_s",)),
            Chart("Whole step", ("timing/step_s",)),
            Chart("Tokens a second", ("perf/tokens_per_s",)),
            Chart("Share of model compute", ("perf/model_share",)),
        ),
    ),
    Section(
        "Supervised warm-up",
        (
            Chart("Cross-entropy", ("warmup/loss",)),
            Chart(
                "Held-out accuracy",
                ("eval/accuracy",),
                band={"eval/accuracy": "eval/accuracy_ci95"},
                limits=(Limit("ends at", "good", key="trainer.warmup.stop_accuracy"),),
            ),
            Chart("Gradient norm", ("warmup/grad_norm",), limits=(Limit("clipped above", "plain", key="trainer.grad_clip"),)),
            Chart("Learning rate", ("warmup/lr",)),
        ),
        phase="warmup",
    ),
)


def layout(policy: Iterable[str], warmup: Iterable[str], config: Callable[[str], float | None]) -> list[Section]:
    """The sections that have something to show; limits that a configuration key gives are filled in, or dropped."""
    names = {"policy": set(policy), "warmup": set(warmup)}
    sections, drawn = [], set()
    for section in SECTIONS:
        charts = tuple(_fill(chart, config) for chart in section.charts if chart.metrics(names[section.phase]))
        if charts:
            sections.append(Section(section.title, charts, section.note, section.phase))
        if section.phase == "policy":
            drawn |= {name for chart in charts for name in (*chart.metrics(names["policy"]), *chart.band.values())}
    if rest := sorted(names["policy"] - drawn):
        sections.append(Section("More metrics", tuple(Chart(name, (name,)) for name in rest)))
    return sections


def _fill(chart: Chart, config: Callable[[str], float | None]) -> Chart:
    limits = tuple(Limit(limit.label, limit.level, config(limit.key) if limit.key else limit.value) for limit in chart.limits)
    limits = tuple(limit for limit in limits if limit.value is not None)
    return Chart(chart.title, chart.series, chart.kind, limits, chart.band, chart.exclude, chart.log)
