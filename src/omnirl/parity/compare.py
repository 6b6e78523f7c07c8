"""Two backends' answers to the same prompts → how far apart they are.

Log-probs are compared token by token as long as the tokens agree; the first difference of an answer ends its comparison
and must be a proven tie: the judge (the trainer's forward) gives both tokens the same probability to within `TIE`.

Example:
    report = compare("hf", "vllm", names, answers_hf, answers_vllm, judge)
    report.problems(GATES["float32"])   # [] when every gate is met
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: largest difference of two tokens' log-probs under the judge that makes the choice between them a tie
TIE = 1e-5
#: |Δ log-prob| that counts for `share_over`
NOTICEABLE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One completion: `ids` int32 `[n]`, `logprobs` float32 `[n]` as the backend reported them."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first differing token of one answer. `gap`: |difference of the two tokens' log-probs| under the judge."""

    sample: str
    position: int
    token_a: int
    token_b: int
    gap: float

    @property
    def tie(self) -> bool:
        return self.gap < TIE


@dataclass(frozen=True, slots=True)
class Gate:
    """Largest |Δ log-prob| (`max_abs`), mean exp of it (`tmpe`), and share of answers that end in a tie (`ties`)."""

    max_abs: float
    tmpe: float
    ties: float


GATES = {"float32": Gate(1e-5, 1.00001, 0.01), "bfloat16": Gate(float("inf"), 1.02, 1.0)}


@dataclass(frozen=True, slots=True)
class PairReport:
    """Statistics of backends `a` and `b`; `tokens` were compared. `tmpe_…`: `token_mult_prob_error`, exp|Δ log-prob|;
    `gen_kl_error`: mean k3 with `a` as generator."""

    a: str
    b: str
    samples: int
    tokens: int
    equal: int
    differences: tuple[Difference, ...]
    tmpe_mean: float
    tmpe_median: float
    mean_abs: float
    median_abs: float
    p99_abs: float
    max_abs: float
    gen_kl_error: float
    share_over: float
    worst: tuple[str, int]

    @property
    def ties(self) -> int:
        return sum(d.tie for d in self.differences)

    def problems(self, gate: Gate, *, exact_tokens: bool = True) -> list[str]:
        """What misses `gate`, in words. `exact_tokens`: a difference that is not a tie counts."""
        found = []
        real = [d for d in self.differences if not d.tie]
        if exact_tokens and real:
            first = real[0]
            found.append(
                f"{len(real)} of {self.samples} greedy answers differ; first {first.sample} at token {first.position}: "
                f"{first.token_a} against {first.token_b}, log-probs {first.gap:.1e} apart"
            )
        if exact_tokens and self.ties > gate.ties * self.samples:
            found.append(f"{self.ties} of {self.samples} answers end in a tie, at most {gate.ties:.0%} may")
        if not self.max_abs <= gate.max_abs:
            sample, position = self.worst
            found.append(f"|Δ log-prob| {self.max_abs:.1e} > {gate.max_abs:.0e} at {sample}, token {position}")
        if not self.tmpe_mean <= gate.tmpe:
            found.append(f"token_mult_prob_error {self.tmpe_mean:.6f} > {gate.tmpe:g}")
        return found


def compare(
    a: str,
    b: str,
    names: Sequence[str],
    answers_a: Sequence[Answer],
    answers_b: Sequence[Answer],
    judge: Callable[[int, NDArray[np.int32], int, int], float],
) -> PairReport:
    """`judge(sample index, common prefix, token a, token b)` → |difference of log-probs|. Needs at least one common token."""
    differences, deltas, where = [], [], []
    for index, (left, right) in enumerate(zip(answers_a, answers_b, strict=True)):
        shared = common_prefix(left.ids, right.ids)
        deltas.append(left.logprobs[:shared].astype(np.float64) - right.logprobs[:shared])
        where += [(names[index], position) for position in range(shared)]
        if shared < min(len(left.ids), len(right.ids)):
            tokens = int(left.ids[shared]), int(right.ids[shared])
            gap = judge(index, left.ids[:shared], *tokens)
            differences.append(Difference(names[index], shared, *tokens, gap))
        elif len(left.ids) != len(right.ids):  # one went on where the other stopped: never a tie
            longer = left.ids if len(left.ids) > shared else right.ids
            differences.append(Difference(names[index], shared, int(longer[shared]), -1, float("inf")))
    delta = np.concatenate(deltas)
    error = np.abs(delta)
    with np.errstate(over="ignore", invalid="ignore"):  # a log-prob that is not finite misses the gates
        tmpe, k3, p99 = np.exp(error), np.expm1(-delta) + delta, np.quantile(error, 0.99)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    return PairReport(
        a=a,
        b=b,
        samples=len(names),
        tokens=len(delta),
        equal=len(names) - len(differences),
        differences=tuple(differences),
        tmpe_mean=float(tmpe.mean()),
        tmpe_median=float(np.median(tmpe)),
        mean_abs=float(error.mean()),
        median_abs=float(np.median(error)),
        p99_abs=float(p99),
        max_abs=float(error.max()),
        gen_kl_error=float(k3.mean()),
        share_over=float((error > NOTICEABLE).mean()),
        worst=where[worst],
    )


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Number of leading ids that are equal."""
    n = min(len(a), len(b))
    unequal = np.flatnonzero(a[:n] != b[:n])
    return int(unequal[0]) if len(unequal) else n
