"""`RunData` → what is worth knowing about the run, in words, each with a remedy; the worst first.

Example:
    findings(run) → [Finding(Level.BAD, "Nothing to learn from", "96 % of the last 20 steps' groups …", "Warm up longer, …"), …]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import fsum
from statistics import fmean

from .run import RunData, RunStatus

_WINDOW = 20
#: fewer steps than this say nothing about a trend
_TREND = 20


class Level(IntEnum):
    """In the order of the page."""

    BAD = 0
    WARN = 1
    INFO = 2
    GOOD = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """`text`: what was seen, with figures. `remedy`: what to do, if anything. `metric`: the curve to look at."""

    level: Level
    title: str
    text: str
    remedy: str = ""
    metric: str = ""


def findings(run: RunData) -> list[Finding]:
    """All that the rules see, the worst first."""
    return sorted((finding for rule in _RULES for finding in rule(run)), key=lambda finding: finding.level)


def _ending(run: RunData) -> Iterator[Finding]:
    latest = (run.record.get("resumed") or [run.record])[-1]
    if run.status is RunStatus.FAILED:
        error = str(latest.get("error") or "no message was recorded")
        yield Finding(Level.BAD, "The run failed", error, "Mend the cause, then continue with checkpoint.resume=auto.")
    elif run.status is RunStatus.LOST:
        text = "No end was recorded, and nothing has been written for a while: it was killed, or the machine went down."
        yield Finding(Level.WARN, "The run ended without a word", text, "Continue with checkpoint.resume=auto.")
    for note in run.notes:
        yield Finding(Level.WARN, "Not everything could be read", f"{note}.", "The page shows the rest.")


def _reward(run: RunData) -> Iterator[Finding]:
    share, reward = run.policy.get("rollout/zero_variance_share"), run.policy.get("rollout/reward_mean")
    if share is None or reward is None or not share.finite or not reward.finite:
        return
    equal, mean = fmean(share.tail(_WINDOW)), fmean(reward.tail(_WINDOW))
    window = min(_WINDOW, len(share.finite))
    seen = f"{equal:.0%} of the groups of the last {window} steps have equal rewards; the mean reward is {mean:.3f}."
    if equal >= 0.9:
        if mean < 0.1:
            remedy = "All wrong: read samples for a format that the reward does not accept, warm up longer, or use easier rows."
        elif mean > 0.9:
            remedy = "All right: the task is learnt; use harder rows."
        else:
            remedy = (
                "The policy is certain, of wrong answers too: start again with a lower trainer.lr; "
                "a higher rollout.temperature or algo.group_size makes completions of one prompt differ."
            )
        level = Level.INFO if mean > 0.9 else Level.BAD
        yield Finding(level, "Nothing left to learn from", seen, remedy, "rollout/zero_variance_share")
    elif equal >= 0.7:
        remedy = "A larger algo.group_size, or rows of middle difficulty, give more groups that teach."
        yield Finding(Level.WARN, "Few groups teach", seen, remedy, "rollout/zero_variance_share")


def _accuracy(run: RunData) -> Iterator[Finding]:
    accuracy, ci = run.policy.get("eval/accuracy"), run.policy.get("eval/accuracy_ci95")
    if accuracy is None or len(accuracy.finite) < 2:
        return
    first, last, best = accuracy.finite[0], accuracy.finite[-1], max(accuracy.finite)
    widths = ci.finite if ci is not None and ci.finite else [0.0]
    margin = max(widths[0], widths[-1])
    seen = f"Held-out accuracy went from {first:.3f} ± {widths[0]:.3f} to {last:.3f} ± {widths[-1]:.3f}."
    if last - first > margin:
        yield Finding(Level.GOOD, "It learns", seen, metric="eval/accuracy")
    elif first - last > margin:
        remedy = "Lower trainer.lr, add algo.kl.coef, or keep the best checkpoint."
        yield Finding(Level.BAD, "Accuracy fell", seen, remedy, "eval/accuracy")
    elif best - last > 2 * margin and margin > 0:
        text = f"{seen} The best was {best:.3f}."
        yield Finding(
            Level.WARN, "Accuracy passed its best", text, "Export the best checkpoint; lower trainer.lr.", "eval/accuracy"
        )
    elif len(run.policy.get("train/loss", accuracy).finite) >= _TREND:
        text = f"{seen} The difference is within the interval."
        yield Finding(
            Level.INFO, "No clear change in accuracy", text, "More eval.samples narrow the interval.", "eval/accuracy"
        )


def _mismatch(run: RunData) -> Iterator[Finding]:
    for metric, limit, worst in (("train/token_mult_prob_error", 1.05, 1.2), ("train/gen_kl_error", 1e-3, 1e-2)):
        series = run.policy.get(metric)
        if series is None or not series.finite:
            continue
        recent, high = fmean(series.tail(_WINDOW)), max(series.finite)
        over = sum(value > limit for value in series.finite)
        remedy = (
            "Try model.dtype=float32 for a few steps: if it falls, it is rounding. If not, `omnirl parity` names the first "
            "difference of engine and trainer."
        )
        steps = f"{over} of {len(series.finite)} steps are over {limit:g}"
        seen = f"{metric} is {recent:.4g} over the last steps, {high:.4g} at most; {steps}."
        if recent > limit:
            yield Finding(Level.BAD if recent > worst else Level.WARN, "Engine and trainer disagree", seen, remedy, metric)
        elif over:
            yield Finding(Level.INFO, "Engine and trainer disagreed at times", seen, remedy, metric)
    largest = run.policy.get("train/token_mult_prob_error_max")
    if largest is not None and largest.finite and max(largest.finite) > 10:
        text = f"The worst token's error reached {max(largest.finite):.4g}, which a mean hides."
        remedy = "Look at the samples of that step; a correction with truncation limits what such a token weighs."
        yield Finding(Level.WARN, "A few tokens are far off", text, remedy, "train/token_mult_prob_error_max")
    count = run.policy.get("rollout/nonfinite_logprobs")
    if count is not None and (total := fsum(count.finite)):
        text = f"The engine gave {total:.0f} log-probs that are not finite; their tokens were masked."
        yield Finding(
            Level.WARN, "Log-probs without a value", text, "`omnirl parity` checks the engine.", "rollout/nonfinite_logprobs"
        )


def _lengths(run: RunData) -> Iterator[Finding]:
    cut = run.policy.get("rollout/truncated_share")
    if cut is not None and cut.finite and (share := fmean(cut.tail(_WINDOW))) > 0.2:
        budget = run.number("rollout.max_new_tokens")
        text = f"{share:.0%} of the last steps' completions used up the budget of {budget or 0:.0f} tokens."
        remedy = "Raise rollout.max_new_tokens, or reward shorter answers."
        yield Finding(
            Level.BAD if share > 0.6 else Level.WARN, "Many completions are cut off", text, remedy, "rollout/truncated_share"
        )
    aborted = run.policy.get("rollout/aborted_share")
    if aborted is not None and aborted.finite and (share := fmean(aborted.tail(_WINDOW))) > 0.05:
        text = f"{share:.0%} of the last steps' completions were aborted; they are not trained on."
        yield Finding(Level.WARN, "Many completions are aborted", text, "Raise rollout.timeout_s.", "rollout/aborted_share")


def _optimizer(run: RunData) -> Iterator[Finding]:
    entropy = run.policy.get("train/approx_entropy")
    if entropy is not None and len(entropy.finite) >= _TREND:
        first, last = fmean(entropy.finite[: _TREND // 2]), fmean(entropy.tail(_TREND // 2))
        reward = run.policy.get("rollout/reward_mean")
        if last < 0.1 * first and last < 0.05 and not (reward and reward.finite and fmean(reward.tail(_WINDOW)) > 0.9):
            text = f"Entropy fell from {first:.3f} to {last:.4f} nats a token without a high reward: answers are all the same."
            remedy = "Lower trainer.lr, raise algo.kl.coef, or sample at a higher rollout.temperature."
            yield Finding(Level.BAD, "Entropy collapsed", text, remedy, "train/approx_entropy")
    norm, clip = run.policy.get("train/grad_norm"), run.number("trainer.grad_clip")
    if norm is not None and clip and norm.finite and (mean := fmean(norm.tail(_WINDOW))) > 10 * clip:
        text = f"The gradient's norm is {mean:.3g} over the last steps; it is clipped to {clip:g} each time."
        yield Finding(Level.WARN, "The gradient is always clipped", text, "Lower trainer.lr.", "train/grad_norm")
    clipped = run.policy.get("train/clip_share")
    if clipped is not None and clipped.finite and (share := fmean(clipped.tail(_WINDOW))) > 0.3:
        text = f"The clipping stops the gradient of {share:.0%} of the tokens."
        remedy = "Lower trainer.lr, or make fewer optimizer steps of a step (algo.train_batch_size)."
        yield Finding(Level.WARN, "Steps are too long", text, remedy, "train/clip_share")


def _not_finite(run: RunData) -> Iterator[Finding]:
    holes = {name: series for phase in (run.policy, run.warmup) for name, series in phase.items() if None in series.values}
    if holes:
        name, series = next(iter(sorted(holes.items())))
        step = series.steps[series.values.index(None)]
        text = (
            f"{len(holes)} metrics have values that are not finite, first {name} at step {step}; the curves mark them with ×."
        )
        yield Finding(Level.WARN, "Values that are not finite", text, "Lower trainer.lr; read the samples of that step.", name)


def _speed(run: RunData) -> Iterator[Finding]:
    lost = run.policy.get("perf/tracker_failures")
    if lost is not None and lost.finite:
        text = f"A metric sink lost {lost.finite[-1]:.0f} rows; metrics.jsonl has them."
        yield Finding(
            Level.WARN, "A tracker failed", text, "The run's log names the sink and the reason.", "perf/tracker_failures"
        )
    share = run.policy.get("perf/model_share")
    if share is not None and len(share.finite) >= _TREND and (mean := fmean(share.tail(_WINDOW))) < 0.5:
        text = f"Only {mean:.0%} of a step is model compute."
        yield Finding(Level.INFO, "Time goes elsewhere", text, "The chart of seconds shows where.", "perf/model_share")


def _warmup(run: RunData) -> Iterator[Finding]:
    accuracy, wanted = run.warmup.get("eval/accuracy"), run.number("trainer.warmup.stop_accuracy")
    steps, limit = run.warmup.get("warmup/loss"), run.number("trainer.warmup.max_steps")
    if accuracy is None or steps is None or wanted is None or not accuracy.finite or not steps.steps:
        return
    if steps.steps[-1] == limit and accuracy.finite[-1] < wanted:
        text = f"It ended after its {limit:.0f} steps at an accuracy of {accuracy.finite[-1]:.3f}; it was to reach {wanted:g}."
        remedy = "Raise trainer.warmup.max_steps or trainer.warmup.lr."
        yield Finding(Level.INFO, "The warm-up did not reach its target", text, remedy, "warmup/loss")


_RULES: tuple[Callable[[RunData], Iterator[Finding]], ...] = (
    *(_ending, _reward, _accuracy, _mismatch, _lengths),
    *(_optimizer, _not_finite, _speed, _warmup),
)
