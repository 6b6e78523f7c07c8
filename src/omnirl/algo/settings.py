"""What the algorithm reads of the `algo` configuration: the same names and types as `config.schema.AlgoConfig`.

A protocol a section, so that this package imports no configuration and a test may hand in any object with these fields.

Example:
    policy_loss(inputs, cfg.algo)   # AlgoConfig satisfies AlgoSettings
"""

from typing import Any, Protocol


class AdvantageSettings(Protocol):
    """`algo.advantage`."""

    estimator: str
    baseline: str
    normalize: bool
    part_weights: Any
    clip_low: float | None
    clip_high: float | None


class ScalingSettings(Protocol):
    """`algo.reward_scaling`."""

    enabled: bool
    source_min: float
    source_max: float
    target_min: float
    target_max: float


class ShapingSettings(Protocol):
    """`algo.reward_shaping`."""

    overlong_buffer: int
    overlong_penalty: float
    truncated_factor: float


class SurrogateSettings(Protocol):
    """`algo.loss`."""

    kind: str
    clip_min: float
    clip_max: float
    dual_clip: float | None
    on_policy_ratio: bool
    reduction: str
    nll_coef: float


class KlSettings(Protocol):
    """`algo.kl`."""

    coef: float
    estimator: str
    input_limit: float | None
    output_limit: float | None
    on_policy: bool
    in_reward: bool


class CorrectionSettings(Protocol):
    """`algo.correction`."""

    weights: str
    truncation: str
    min: float | None
    max: float | None


class MismatchSettings(Protocol):
    """`algo.mismatch`."""

    max_sequence_error: float | None
    token_threshold: float
    alarm_share: float


class RewardSettings(Protocol):
    """Everything between the environment's reward and an advantage."""

    drop_zero_variance: bool
    overlong_filter: bool

    @property
    def advantage(self) -> AdvantageSettings: ...
    @property
    def reward_scaling(self) -> ScalingSettings: ...
    @property
    def reward_shaping(self) -> ShapingSettings: ...


class BatchSettings(RewardSettings, Protocol):
    """What batches read."""

    train_batch_size: int | None


class LossSettings(Protocol):
    """What the loss reads."""

    @property
    def loss(self) -> SurrogateSettings: ...
    @property
    def kl(self) -> KlSettings: ...
    @property
    def correction(self) -> CorrectionSettings: ...
    @property
    def mismatch(self) -> MismatchSettings: ...


class StepSettings(LossSettings, Protocol):
    """What a batch with log-probs still needs before it is trained on."""

    @property
    def advantage(self) -> AdvantageSettings: ...
