"""The glossary: every metric name, what it means and how it is computed. The documentation's metrics page is made from it.

A name is `group/name`; `{…}` in a name stands for a word that depends on the configuration.

Example:
    describe("rollout/reward_exact").meaning → "Mean of one reward part"
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """`formula` is empty where the meaning says it all."""

    name: str
    meaning: str
    formula: str = ""


#: Groups of metrics that depend on the clock; all others are the same whenever a run is repeated.
CLOCK = ("timing/", "perf/")


def without_clock[T](metrics: Mapping[str, T]) -> dict[str, T]:
    """What of a row is the same in two runs with one seed.

    Example:
        without_clock({"train/loss": 0.5, "timing/step_s": 1.2}) → {"train/loss": 0.5}
    """
    return {name: value for name, value in metrics.items() if not name.startswith(CLOCK)}


def describe(name: str) -> Metric | None:
    """The entry of `name`, if there is one; an exact name before one with a `{…}`."""
    return _EXACT.get(name) or next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(name)), None)


#: N: tokens with a mask in the optimizer step. cur, old, gen: log-probs of a sampled token by the current policy, by the
#: policy at the start of the step, and as the engine reported. k3(x) = exp(x) − 1 − x.
GLOSSARY: tuple[Metric, ...] = (
    Metric("train/loss", "Loss that is minimised", "policy_loss + kl.coef · kl_penalty + loss.nll_coef · positive_nll_loss"),
    Metric("train/policy_loss", "Policy objective of `algo.loss.kind`, times the importance weights"),
    Metric(
        "train/kl_penalty", "Divergence from the reference model, before its weight", "mean of `algo.kl.estimator` of ref − cur"
    ),
    Metric("train/positive_nll_loss", "Negative log-likelihood of samples with a positive reward", "−(1/N₊) Σ₊ cur"),
    Metric("train/grad_norm", "Norm of the gradient before clipping"),
    Metric("train/lr", "Learning rate"),
    Metric("train/policy_version", "Optimizer steps behind the weights after the step"),
    Metric("train/num_samples", "Sequences that the step trains on"),
    Metric("train/num_optimizer_steps", "Optimizer steps of the step"),
    Metric("train/num_tokens", "Response tokens that the step trains on", "Σ mask"),
    Metric("train/num_sequences", "Sequences with at least one such token"),
    Metric("train/advantage_mean", "Mean advantage of the samples trained on (each: mean of its tokens)"),
    Metric("train/advantage_std", "Standard deviation of these advantages"),
    Metric("train/advantage_min", "Smallest of these advantages"),
    Metric("train/advantage_max", "Largest of these advantages"),
    Metric(
        "train/token_mult_prob_error", "Trainer against engine; 1 is equal, above 1.05 needs a look", "(1/N) Σ exp|gen − old|"
    ),
    Metric("train/token_mult_prob_error_max", "The same for the worst token", "max exp|gen − old|"),
    Metric(
        "train/token_mult_prob_error_p99",
        "The same, which 99 % of the tokens do not exceed",
        "from shares at 35 values of |gen − old|, eight a decade from 0.001 to 17.8, linear between; at most the maximum",
    ),
    Metric("train/token_error_over_threshold", "Share of tokens", "(1/N) Σ [exp|gen − old| > algo.mismatch.token_threshold]"),
    Metric("train/token_mult_prob_error_{class}", "The same for one class of tokens", "Σ_c exp|gen − old| / N_c"),
    Metric("train/token_mult_prob_error_{class}_max", "The same for the worst token of a class"),
    Metric(
        "train/token_share_{class}",
        "Share of tokens in a class: first (of a response), media (others at most 16 positions after the prompt's last "
        "placeholder), text (the rest)",
        "N_c / N",
    ),
    Metric(
        "train/sequence_mult_prob_error",
        "Trainer against engine, mean over sequences trained on",
        "mean e, e = a sequence's mean of exp|gen − old|",
    ),
    Metric("train/sequence_mult_prob_error_min", "The same for the best sequence", "min e"),
    Metric("train/sequence_mult_prob_error_max", "The same for the worst sequence", "max e"),
    Metric("train/unmasked_sequence_error", "The same before any sequence is left out", "mean e"),
    Metric("train/unmasked_sequence_error_min", "The same for the best sequence", "min e"),
    Metric("train/unmasked_sequence_error_max", "The same for the worst sequence", "max e"),
    Metric("train/masked_sequences", "Sequences that were left out", "Σ [e > algo.mismatch.max_sequence_error]"),
    Metric("train/masked_share", "Share of sequences that were left out"),
    Metric("train/masked_correct_share", "Share of them whose reward is exactly 1; 0 when none is left out"),
    Metric("train/gen_kl_error", "Trainer against engine; below 1e-3 is good", "(1/N) Σ k3(old − gen)"),
    Metric("train/policy_kl_error", "The same, harsh on tokens that the trainer finds unlikely", "(1/N) Σ k3(gen − old)"),
    Metric(
        "train/js_divergence_error",
        "The same, symmetric",
        "(1/N) Σ ½ (k3(old − m) + k3(gen − m)), m = log(½ exp old + ½ exp gen)",
    ),
    Metric(
        "train/sampling_importance_ratio",
        "Bias of the sampling; 1 is none",
        "(1/N) Σ w, w = exp(old − gen); with algo.correction.weights=sequence the mean over sequences of exp Σ (old − gen)",
    ),
    Metric("train/is_oob_ratio", "Share of importance weights out of the bounds of `algo.correction`, of tokens or sequences"),
    Metric("train/approx_entropy", "Rough entropy of the policy, in nats a token", "−(1/N) Σ exp(cur − gen) · cur"),
    Metric("train/probs_ratio", "Mean ratio of the policy to that at the start of the step", "(1/N) Σ r"),
    Metric("train/probs_ratio_clamped", "The same after clipping", "(1/N) Σ clip(r, 1 − clip_min, 1 + clip_max)"),
    Metric("train/probs_ratio_min", "Smallest ratio"),
    Metric("train/probs_ratio_max", "Largest ratio"),
    Metric("train/clip_share", "Share of tokens whose gradient the clipping stops (cispo: whose weight it limits)"),
    Metric("warmup/loss", "Cross-entropy of the supervised warm-up, in nats a token", "−(1/N) Σ cur"),
    Metric("warmup/num_tokens", "Target tokens of the warm-up step"),
    Metric("warmup/grad_norm", "Norm of the gradient before clipping"),
    Metric("warmup/lr", "Learning rate"),
    Metric("rollout/num_groups", "Prompts of the step"),
    Metric("rollout/kept_groups", "Of which with something to learn from"),
    Metric("rollout/filtered_samples", "Cut-off completions of kept groups that are not trained on (`algo.overlong_filter`)"),
    Metric("rollout/generation_batches", "Batches that were generated; more than 1 with dynamic sampling only"),
    Metric("rollout/surplus_groups", "Groups with something to learn from that dynamic sampling did not need"),
    Metric("rollout/zero_variance_share", "Share of groups whose rewards are all equal"),
    Metric("rollout/num_samples", "Completed rollouts"),
    Metric("rollout/num_tokens", "Generated tokens"),
    Metric("rollout/reward_mean", "Mean reward of the sampled rollouts"),
    Metric("rollout/reward_errors", "Completions left out because their reward failed"),
    Metric("rollout/reward_std", "Standard deviation of the reward over all rollouts"),
    Metric("rollout/length_mean", "Mean number of generated tokens of a rollout"),
    Metric("rollout/length_max", "Largest number of generated tokens of a rollout"),
    Metric("rollout/turns_mean", "Mean number of turns of a rollout"),
    Metric("rollout/prompt_length_mean", "Mean length of the first prompt, in tokens after expansion"),
    Metric("rollout/stop_share", "Share of rollouts that ended with a stop token"),
    Metric("rollout/truncated_share", "Share of rollouts that used up their token budget"),
    Metric("rollout/aborted_share", "Share of rollouts that were aborted; they are not trained on"),
    Metric("rollout/nonfinite_logprobs", "Tokens whose log-prob the engine did not give as a finite number; they are masked"),
    Metric("rollout/reward_{part}", "Mean of one reward part", "unweighted, in [0, 1]"),
    Metric("rollout/overlong_dropped", "Prompts that were too long and left out", "`prompt.over_length=drop`"),
    Metric("rollout/overlong_masked", "Prompts that were too long and teach nothing", "`prompt.over_length=mask`"),
    Metric("media/logical_bytes", "Pixels of the samples trained on, if each had its own copy"),
    Metric("media/physical_bytes", "Pixels of the distinct pictures among them, as the store holds them"),
    Metric(
        "media/serialised_bytes",
        "The same samples as trainer processes are sent them: ids, log-probs, references",
        "`media.store=carried`: also pixels; in one process: the size that such messages would have",
    ),
    Metric("media/visual_tokens", "Embeddings of pictures in these samples"),
    Metric("media/frames_sampled", "Frames that were taken from the distinct clips among them"),
    Metric("media/frames_clamped", "Frames that were asked for and that these clips do not have"),
    Metric("media/frames_limited", "Frames that were cut by a maximum (`media.video_max_frames`, a row's `max_frames`)"),
    Metric("eval/overlong_dropped", "Held-out prompts that were too long and left out"),
    Metric("eval/accuracy", "Mean reward of the answers to held-out prompts, greedy by default (`eval.temperature`)"),
    Metric("eval/accuracy_ci95", "Half-width of its 95 % interval", "1.96 · deviation of the prompts' means / √samples"),
    Metric(
        "eval/pass_k",
        "Mean over prompts of the best of `eval.completions_per_prompt` rewards: with rewards of 0 and 1, the share solved at "
        "least once",
    ),
    Metric("eval/accuracy_{kind}", "The same for the rows of one `kind`"),
    Metric("eval/reward_errors", "Held-out prompts left out because their reward failed"),
    Metric("eval/samples", "Held-out prompts that were answered"),
    Metric("eval/length_mean", "Mean number of generated tokens of an answer"),
    Metric("sync/bytes", "Bytes of weights sent to the engines"),
    Metric("sync/tensors", "Tensors sent to the engines"),
    Metric("perf/padding_share", "Positions of the trainer's forward passes that hold no token", "1 − tokens / positions"),
    Metric("perf/tokens_per_s", "Generated tokens per second of the whole step"),
    Metric("perf/model_share", "Share of the step that is model compute", "(generate + logprobs + train) / step"),
    Metric("perf/tracker_failures", "Rows that a failing metric sink has lost so far"),
    Metric("timing/step_s", "Seconds of the whole step"),
    Metric("timing/{section}_s", "Seconds of one section of the step"),
)

_EXACT = {metric.name: metric for metric in GLOSSARY}
_PATTERNS = [
    (re.compile(re.sub(r"\\\{\w+\\\}", r"[a-z0-9_]+", re.escape(metric.name))), metric)
    for metric in GLOSSARY
    if "{" in metric.name
]
