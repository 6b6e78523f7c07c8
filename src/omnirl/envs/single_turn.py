"""One completion, one reward: the environment of question answering.

Example:
    SingleTurnEnv(EnvConfig()).respond(prompt, (turn,))
      → EnvReply(reward=Reward(total=1.0, parts={"exact": 1.0, "format": 1.0}))
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from typing import Any

import numpy as np

from omnirl.config.schema import EnvConfig
from omnirl.errors import ConfigError, DataError, RewardError
from omnirl.types import EnvReply, Prompt, Reward, Turn

from .rewards import FORMAT, RULES, extract, gold_problem, well_formed
from .rewards.pool import VerifierPool

CUSTOM = "custom"
#: Row field that replaces `env.rewards` for its row: a part's name, or names with weights.
ROW_FIELD = "reward"
#: An answer longer than this is wrong without asking a verifier.
_LONGEST_ANSWER = 4096


class SingleTurnEnv:
    """Scores the last completion by the parts that `env.rewards` (or the row's `reward`) weighs, normalised to a sum of one."""

    def __init__(self, cfg: EnvConfig) -> None:
        self.weights = normalized(asdict(cfg.rewards), "env.rewards")
        self._settings = cfg
        self._custom = _import(cfg.rewards_from) if cfg.rewards_from else None
        self._verifiers = VerifierPool(cfg.reward_workers, cfg.reward_timeout_s, ["math_verify"])
        self._own = VerifierPool(cfg.reward_workers, cfg.reward_timeout_s, [self._custom.__module__] if self._custom else ())
        if CUSTOM in self.weights and self._custom is None:
            raise ConfigError(
                "env.rewards.custom has a weight, but env.rewards_from names no function: package.module:function"
            )
        self.concurrency = cfg.reward_workers if self.weights.keys() & {"maths", CUSTOM} else 1

    def check(self, prompt: Prompt) -> None:
        """Raises `DataError` when the prompt's gold answer is empty, or of no use for the parts that are asked of it."""
        weights = self._weights(prompt)
        if problem := gold_problem(prompt.answer, weights, self._settings):
            raise DataError(f"prompt {prompt.id!r}: the gold answer {prompt.answer!r:.80} cannot be scored: {problem}")

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> EnvReply:
        """The end, with the reward of the last turn.

        A verifier that fails, or takes too long, gives a reward whose `error` says why. With `env.on_reward_error=fail`, and
        without a turn to score, raises `RewardError`. Raises `DataError` as `check` does.
        """
        if not turns:
            raise RewardError(f"prompt {prompt.id!r}: no turn to score")
        self.check(prompt)
        weights, completion = self._weights(prompt), turns[-1].text
        try:
            parts = {name: self._part(name, prompt, completion) for name in weights}
        except RewardError as error:
            message = f"prompt {prompt.id!r}: {error}"
            if self._settings.on_reward_error == "fail":
                raise RewardError(message) from error
            return EnvReply(reward=Reward(math.nan, {}, error=message))
        total = math.fsum(weights[name] * value for name, value in parts.items())
        parts.setdefault(FORMAT, float(well_formed(completion, self._settings.answer)))
        return EnvReply(reward=Reward(total, parts))

    def close(self) -> None:
        """End the verifiers' processes."""
        self._verifiers.close()
        self._own.close()

    def _weights(self, prompt: Prompt) -> Mapping[str, float]:
        own = prompt.meta.get(ROW_FIELD)
        if own is None:
            return self.weights
        weights = normalized({own: 1.0} if isinstance(own, str) else own, f"prompt {prompt.id!r}: `{ROW_FIELD}`", DataError)
        if CUSTOM in weights and self._custom is None:
            raise DataError(f"prompt {prompt.id!r}: `{ROW_FIELD}` asks for custom, but env.rewards_from names no function")
        return weights

    def _part(self, name: str, prompt: Prompt, completion: str) -> float:
        settings = self._settings
        if name == FORMAT:
            return float(well_formed(completion, settings.answer))
        if name == CUSTOM and self._custom is not None:
            row = {"id": prompt.id, "answer": prompt.answer, **prompt.meta}
            return _share(self._own.run(self._custom, completion, row), settings.rewards_from)
        answer, rule = extract(completion, settings.answer), RULES[name]
        if not answer or len(answer) > _LONGEST_ANSWER:
            return 0.0
        if rule.isolated is not None:
            return _share(self._verifiers.run(rule.isolated, answer, prompt.answer), name)
        assert rule.compare is not None
        return rule.compare(answer, prompt.answer, settings)


def normalized(weights: Any, where: str, error: type[ConfigError] | type[DataError] = ConfigError) -> dict[str, float]:
    """Positive weights, to a sum of one. Raises `error`, which begins with `where`, for anything else."""
    known = (*RULES, FORMAT, CUSTOM)
    if not isinstance(weights, Mapping):
        raise error(f"{where} must be a part's name or names with weights, got {weights!r:.80}")
    if unknown := sorted(str(name) for name in weights if name not in known):
        raise error(f"{where}: unknown part {unknown[0]!r}; choose from {', '.join(known)}")
    bad = [w for w in weights.values() if isinstance(w, bool) or not isinstance(w, int | float)]
    if bad or not all(math.isfinite(w) and w >= 0 for w in weights.values()) or sum(weights.values()) <= 0:
        raise error(f"{where}: weights must be non-negative with a positive sum, got {dict(weights)}")
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight > 0}


def _share(value: Any, name: str | None) -> float:
    if isinstance(value, Real | np.bool_) and 0.0 <= (share := float(value)) <= 1.0:
        return share
    raise RewardError(f"{name} gave {value!r:.80}; a reward part is a number from 0 to 1")


def _import(spelling: str) -> Callable[..., Any]:
    """`package.module:function`. Raises `ConfigError`."""
    module, _, name = spelling.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the seam: the user's module may raise anything
        raise ConfigError(
            f"env.rewards_from={spelling!r} cannot be imported ({type(error).__name__}: {error}); spell it "
            "package.module:function, with the package installed or on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ConfigError(f"env.rewards_from={spelling!r} is no function")
    return found
