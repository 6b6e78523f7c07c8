import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.algo.agreement import mismatch_metrics
from omnirl.algo.kl import kl_penalty
from omnirl.algo.loss import LossInputs, policy_loss, supervised_loss
from omnirl.algo.metrics import combine
from omnirl.config.schema import AlgoConfig, CorrectionConfig, KlConfig, LossConfig, MismatchConfig
from omnirl.errors import ConfigError

PER_TOKEN = (
    "logprobs",
    "old_logprobs",
    "generation_logprobs",
    "reference_logprobs",
    "advantages",
    "positive",
    "classes",
    "mask",
)


def inputs_of(logprobs, **tensors) -> LossInputs:
    """Float64-free inputs from nested lists; what is not given equals the log-probs, with advantage and mask 1."""
    logprobs = torch.as_tensor(logprobs, dtype=torch.float32)
    given_ = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in tensors.items()}
    base = dict.fromkeys(("old_logprobs", "generation_logprobs", "reference_logprobs"), logprobs)
    base |= {name: torch.ones_like(logprobs) for name in ("advantages", "mask", "positive")}
    base |= given_
    mask = base["mask"]
    return LossInputs(
        logprobs,
        **base,
        num_tokens=float(mask.sum()),
        num_sequences=float((mask.sum(1) > 0).sum()),
        num_positive=float((mask * base["positive"]).sum()),
    )


def random_inputs(seed: int, rows: int = 5, width: int = 6) -> LossInputs:
    """Rows of different length with the mask at the left, one of them empty."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(rows, width, generator=generator)

    def near(scale):
        return logprobs + scale * torch.randn(rows, width, generator=generator)

    lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths).float()
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, width)
    return inputs_of(
        logprobs,
        old_logprobs=near(0.3),
        generation_logprobs=near(0.1),
        reference_logprobs=near(0.5),
        advantages=advantages,
        mask=mask,
        positive=(advantages > 0).float(),
        classes=(torch.arange(width) == 0).float().expand(rows, width),
    )


def with_rows(inputs: LossInputs, index) -> LossInputs:
    return replace(inputs, **{name: getattr(inputs, name)[index] for name in PER_TOKEN})


def loss_and_gradient(inputs: LossInputs, config: AlgoConfig):
    logprobs = inputs.logprobs.detach().clone().requires_grad_()
    output = policy_loss(replace(inputs, logprobs=logprobs), config)
    output.loss.backward()
    return output, logprobs.grad


corrections = st.sampled_from(
    [
        CorrectionConfig(),
        CorrectionConfig("token"),
        CorrectionConfig("sequence"),
        CorrectionConfig("token", "tis", max=1.05),
        CorrectionConfig("sequence", "icepop", min=0.8, max=1.2),
        CorrectionConfig("token", "seq_mask_tis", min=0.95, max=1.05),
    ]
)
losses = st.builds(
    LossConfig,
    kind=st.sampled_from(["ppo", "gspo", "cispo", "reinforce"]),
    reduction=st.sampled_from(["token", "sequence"]),
    dual_clip=st.sampled_from([None, 1.5]),
    on_policy_ratio=st.booleans(),
    nll_coef=st.sampled_from([0.0, 0.2]),
)
penalties = st.builds(
    KlConfig, coef=st.sampled_from([0.0, 0.1]), estimator=st.sampled_from(["k1", "k2", "k3"]), on_policy=st.booleans()
)
configs = st.builds(AlgoConfig, kl=penalties, loss=losses, correction=corrections)
few = settings(max_examples=25, deadline=None)


# --- oracles -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient_flows"),
    [
        (1.0, 0.5, -0.5, True),  # below the range, to be raised: free
        (1.0, 1.5, -1.2, False),  # above the range, to be raised further: stopped
        (-1.0, 0.5, 0.8, False),  # below the range, to be lowered further: stopped
        (-1.0, 1.5, 1.5, True),  # above the range, to be lowered: free
        (-4.0, 10.0, 40.0, True),
        (2.0, 1.1, -2.2, True),
    ],
)
def test_clipping(advantage, ratio, loss, gradient_flows):
    output, gradient = loss_and_gradient(
        inputs_of([[math.log(ratio)]], old_logprobs=[[0.0]], advantages=[[advantage]]), AlgoConfig()
    )
    assert output.loss.item() == pytest.approx(loss, rel=1e-5)
    assert gradient.item() == pytest.approx(-advantage * ratio if gradient_flows else 0.0, rel=1e-5)
    assert output.floats()["train/clip_share"] == (0.0 if gradient_flows else 1.0)


def test_asymmetric_clip_range():
    config = AlgoConfig(loss=LossConfig(clip_min=0.1, clip_max=0.28))
    inputs = inputs_of([[math.log(2.0), math.log(0.5)]], old_logprobs=[[0.0, 0.0]], advantages=[[1.0, -1.0]])
    metrics = policy_loss(inputs, config).floats()
    assert metrics["train/loss"] == pytest.approx((-1.28 + 0.9) / 2)
    assert metrics["train/probs_ratio"] == pytest.approx(1.25)
    assert metrics["train/probs_ratio_clamped"] == pytest.approx((1.28 + 0.9) / 2)
    assert metrics["train/probs_ratio_min"] == pytest.approx(0.5)
    assert metrics["train/probs_ratio_max"] == pytest.approx(2.0)


def test_on_policy_gradient_is_reinforce():
    inputs = random_inputs(3)
    inputs = replace(inputs, old_logprobs=inputs.logprobs)
    _, gradient = loss_and_gradient(inputs, AlgoConfig())
    torch.testing.assert_close(gradient, -inputs.advantages * inputs.mask / inputs.num_tokens)


def test_kl_penalty_values_and_limits():
    reference = torch.tensor([0.0, -15.0, -30.0])
    logprobs = torch.full((3,), -1.0, requires_grad=True)
    penalty = kl_penalty(logprobs, reference, logprobs, KlConfig())
    torch.testing.assert_close(penalty.detach(), torch.tensor([math.e - 2, 10.0, 10.0]))
    penalty.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 0.0, 0.0])  # score function + path = logprobs − reference


def test_kl_penalty_gradient_is_exactly_zero_where_the_input_is_limited():
    logprobs = torch.tensor([-30.0, 0.0], requires_grad=True)
    kl_penalty(logprobs, torch.tensor([0.0, -30.0]), logprobs, KlConfig()).sum().backward()
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_kl_is_added_with_its_weight():
    inputs = inputs_of([[-1.0]], reference_logprobs=[[0.0]], advantages=[[0.0]])
    metrics = policy_loss(inputs, AlgoConfig(kl=KlConfig(coef=0.5))).floats()
    assert metrics["train/kl_penalty"] == pytest.approx(math.e - 2)
    assert metrics["train/loss"] == pytest.approx(0.5 * (math.e - 2))
    assert metrics["train/policy_loss"] == 0.0
    assert "train/kl_penalty" not in policy_loss(inputs, AlgoConfig()).metrics


def test_loss_of_one_token_of_the_warm_up():
    assert supervised_loss(torch.tensor([[-3.0]]), torch.ones(1, 1), 1.0).loss.item() == 3
    assert supervised_loss(torch.tensor([[-3.0]]), torch.zeros(1, 1), 0.0).loss.item() == 0


def test_tokens_and_sequences_are_counted():
    metrics = policy_loss(inputs_of(torch.zeros(3, 3), mask=[[1, 1, 1], [1, 0, 0], [0, 0, 0]]), AlgoConfig()).floats()
    assert (metrics["train/num_tokens"], metrics["train/num_sequences"]) == (4, 2)


def test_reductions():
    inputs = inputs_of(torch.zeros(3, 3), advantages=[[1.0] * 3, [4.0] * 3, [9.0] * 3], mask=[[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert policy_loss(inputs, AlgoConfig(loss=LossConfig(reduction="token"))).loss.item() == pytest.approx(-(3 + 4) / 4)
    assert policy_loss(inputs, AlgoConfig(loss=LossConfig(reduction="sequence"))).loss.item() == pytest.approx(-(1 + 4) / 2)


def mismatch(trainer, engine):
    ones = torch.ones_like(trainer)
    metrics = mismatch_metrics(trainer, engine, ones, num_tokens=float(ones.sum()), num_sequences=1.0, threshold=2.0)
    return {name: value for name, value in metrics.items() if not name.startswith("raw/")}


def test_weights_multiply_the_objective_and_not_the_penalty():
    """exp(old − gen) is 2 and 0.5; the objective is −1 for both, the penalty k1 of −1."""
    inputs = inputs_of(
        [[0.0, 0.0]],
        generation_logprobs=[[-math.log(2), math.log(2)]],
        reference_logprobs=[[-1.0, -1.0]],
        advantages=[[1.0, 1.0]],
    )
    config = AlgoConfig(correction=CorrectionConfig("token"), kl=KlConfig(coef=0.1, estimator="k1"))
    metrics = policy_loss(inputs, config).floats()
    assert metrics["train/policy_loss"] == pytest.approx(-(2 + 0.5) / 2)
    assert metrics["train/kl_penalty"] == pytest.approx(1)
    assert metrics["train/loss"] == pytest.approx(-1.25 + 0.1)
    assert metrics["train/sampling_importance_ratio"] == pytest.approx(1.25)
    assert "train/is_oob_ratio" not in metrics


def test_gspo_with_sequence_weights():
    """Two rows; the weight of a sequence multiplies its mean."""
    inputs = inputs_of(
        [[0.0, 0.0], [0.0, 0.0]],
        generation_logprobs=[[-math.log(2), -math.log(2)], [0.0, 0.0]],
        advantages=[[1.0, 1.0], [-2.0, -2.0]],
        mask=[[1, 1], [1, 0]],
    )
    config = AlgoConfig(loss=LossConfig(kind="gspo", reduction="sequence"), correction=CorrectionConfig("sequence"))
    metrics = policy_loss(inputs, config).floats()
    assert metrics["train/loss"] == pytest.approx((-4 + 2) / 2)
    assert metrics["train/sampling_importance_ratio"] == pytest.approx((4 + 1) / 2)


@pytest.mark.parametrize(
    ("correction", "share"),
    [
        (CorrectionConfig("token", "tis", max=1.5), 1 / 3),
        (CorrectionConfig("token", "icepop", min=0.9, max=1.5), 2 / 3),
        (CorrectionConfig("sequence", "tis", max=1.5), 0.5),
        (CorrectionConfig("token", "seq_mask_tis", min=0.9, max=1.5), 0.5),
    ],
)
def test_share_out_of_bounds(correction, share):
    """Row 0 has weights 2 and 0.5, row 1 has 1... for sequences: row 0 has product 1, row 1 has 2."""
    weights = [[2.0, 0.5], [1.0, 1.0]] if share != 0.5 else [[2.0, 0.5], [2.0, 1.0]]
    engine = -torch.tensor(weights).log()
    inputs = inputs_of(torch.zeros(2, 2), generation_logprobs=engine, mask=[[1, 1], [1, 0]])
    assert policy_loss(inputs, AlgoConfig(correction=correction)).floats()["train/is_oob_ratio"] == pytest.approx(share)


def test_forced_on_policy_ratio_ignores_the_old_logprobs():
    inputs = inputs_of([[-1.0, -2.0]], old_logprobs=[[-9.0, 3.0]], generation_logprobs=[[-1.0, -2.0]], advantages=[[2.0, -1.0]])
    output, gradient = loss_and_gradient(inputs, AlgoConfig(loss=LossConfig(on_policy_ratio=True)))
    assert output.loss.item() == pytest.approx(-0.5)
    assert gradient[0].tolist() == pytest.approx([-1, 0.5])
    metrics = output.floats()
    assert (metrics["train/probs_ratio"], metrics["train/token_mult_prob_error"]) == (1, 1)


def test_positive_samples_are_imitated():
    inputs = inputs_of(
        [[-1.0, -2.0], [-3.0, -4.0]], advantages=torch.zeros(2, 2), positive=[[1, 1], [0, 0]], mask=[[1, 0], [1, 1]]
    )
    output, gradient = loss_and_gradient(inputs, AlgoConfig(loss=LossConfig(nll_coef=0.5)))
    assert output.floats()["train/positive_nll_loss"] == 1
    assert output.loss.item() == pytest.approx(0.5)
    assert gradient.tolist() == [[-0.5, 0], [0, 0]]
    assert "train/positive_nll_loss" not in policy_loss(inputs, AlgoConfig()).metrics


def test_without_positive_samples_there_is_nothing_to_imitate():
    inputs = inputs_of([[-1.0]], advantages=[[0.0]], positive=[[0.0]])
    assert policy_loss(inputs, AlgoConfig(loss=LossConfig(nll_coef=0.5))).loss.item() == 0


def test_kl_in_the_reward_is_not_in_the_loss():
    inputs = inputs_of([[-1.0]], reference_logprobs=[[0.0]], advantages=[[0.0]])
    output = policy_loss(inputs, AlgoConfig(kl=KlConfig(coef=0.5, in_reward=True)))
    assert output.loss.item() == 0
    assert "train/kl_penalty" not in output.metrics


def test_the_on_policy_penalty_sees_the_engine():
    inputs = inputs_of([[-1.0]], reference_logprobs=[[-2.0]], generation_logprobs=[[-1.0 - math.log(3)]], advantages=[[0.0]])
    config = AlgoConfig(kl=KlConfig(coef=1.0, estimator="k1", on_policy=True))
    assert policy_loss(inputs, config).loss.item() == pytest.approx(3)


def test_the_penalty_follows_the_reduction():
    inputs = inputs_of(torch.zeros(2, 3), reference_logprobs=[[-1.0] * 3, [-4.0] * 3], mask=[[1, 1, 1], [1, 0, 0]])
    for reduction, expected in (("token", 7 / 4), ("sequence", 5 / 2)):
        config = AlgoConfig(kl=KlConfig(coef=1.0, estimator="k1"), loss=LossConfig(reduction=reduction))
        assert policy_loss(inputs, config).floats()["train/kl_penalty"] == pytest.approx(expected)


def test_the_threshold_of_token_errors_is_the_configured_one():
    inputs = inputs_of([[0.0, 0.0]], generation_logprobs=[[math.log(3), 0.0]])
    for threshold, share in ((2.0, 0.5), (4.0, 0.0)):
        metrics = policy_loss(inputs, AlgoConfig(mismatch=MismatchConfig(token_threshold=threshold))).floats()
        assert metrics["train/token_error_over_threshold"] == share


def test_mismatch_of_equal_logprobs_is_none():
    logprobs = torch.tensor([[-0.5, -2.0]])
    metrics = mismatch(logprobs, logprobs)
    for name, value in metrics.items():
        assert value.item() == pytest.approx(1.0 if "mult_prob_error" in name else 0.0, abs=1e-6)


def test_mismatch_of_one_unlikely_token():
    """Engine −5, trainer −15: k3(−10) = 9.00005 and k3(10) = 22015.5."""
    metrics = mismatch(torch.tensor([[-15.0]]), torch.tensor([[-5.0]]))
    assert metrics["train/gen_kl_error"].item() == pytest.approx(9.0000454)
    assert metrics["train/policy_kl_error"].item() == pytest.approx(math.exp(10) - 11)
    assert metrics["train/token_mult_prob_error"].item() == pytest.approx(math.exp(10))


def test_js_divergence_and_the_worst_token():
    trainer, engine = torch.tensor([[math.log(0.5), 0.0]]), torch.tensor([[math.log(0.25), 0.0]])
    metrics = mismatch(trainer, engine)
    mixture = 0.375
    k3 = [p / mixture - 1 - math.log(p / mixture) for p in (0.5, 0.25)]
    assert metrics["train/js_divergence_error"].item() == pytest.approx(0.5 * sum(k3) / 2, rel=1e-4)
    assert metrics["train/token_mult_prob_error"].item() == pytest.approx(1.5)
    assert metrics["train/token_mult_prob_error_max"].item() == pytest.approx(2.0)


def test_approx_entropy():
    inputs = inputs_of([[-1.0, -2.0]], generation_logprobs=[[-1.0, -2.0 - math.log(2)]])
    assert policy_loss(inputs, AlgoConfig()).floats()["train/approx_entropy"] == pytest.approx((1 + 4) / 2)


def test_supervised_loss_is_cross_entropy():
    logprobs = torch.tensor([[-1.0, -3.0, float("nan")]], requires_grad=True)
    output = supervised_loss(logprobs, torch.tensor([[1.0, 1.0, 0.0]]), 2.0)
    assert output.floats() == {"warmup/loss": 2.0, "warmup/num_tokens": 2.0}
    output.loss.backward()
    assert logprobs.grad.tolist() == [[-0.5, -0.5, 0.0]]


# --- properties --------------------------------------------------------------------------------------------------------------


@few
@given(st.integers(0, 999), configs, st.integers(1, 4))
def test_microbatches_add_up(seed, config, cut):
    inputs = random_inputs(seed)
    whole, gradient = loss_and_gradient(inputs, config)
    parts = [loss_and_gradient(with_rows(inputs, rows), config) for rows in (slice(0, cut), slice(cut, None))]
    assert sum(p.loss.item() for p, _ in parts) == pytest.approx(whole.loss.item(), abs=1e-5)
    torch.testing.assert_close(torch.cat([g for _, g in parts]), gradient, rtol=1e-5, atol=1e-6)
    assert combine([p.floats() for p, _ in parts], "microbatches") == pytest.approx(whole.floats(), abs=1e-5)


@few
@given(st.integers(0, 999), configs)
def test_order_of_rows_does_not_matter(seed, config):
    inputs = random_inputs(seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    straight, gradient = loss_and_gradient(inputs, config)
    shuffled, shuffled_gradient = loss_and_gradient(with_rows(inputs, order), config)
    assert shuffled.floats() == pytest.approx(straight.floats(), abs=1e-5)
    torch.testing.assert_close(shuffled_gradient, gradient[order])


@few
@given(st.integers(0, 999), configs, st.integers(1, 4), st.sampled_from([0.0, 7.0, float("nan"), float("inf"), float("-inf")]))
def test_padding_does_not_matter_whatever_it_holds(seed, config, extra, filler):
    inputs = random_inputs(seed)
    padded = {name: torch.nn.functional.pad(getattr(inputs, name), (extra, extra), value=filler) for name in PER_TOKEN[:-1]}
    padded["mask"] = torch.nn.functional.pad(inputs.mask, (extra, extra))
    plain, gradient = loss_and_gradient(inputs, config)
    wide, wide_gradient = loss_and_gradient(replace(inputs, **padded), config)
    assert wide.floats() == pytest.approx(plain.floats(), abs=1e-5)
    torch.testing.assert_close(wide_gradient, torch.nn.functional.pad(gradient, (extra, extra)))


@few
@given(st.integers(0, 999), configs)
def test_nan_at_masked_positions_never_leaks(seed, config):
    inputs = random_inputs(seed)
    dirty = {name: torch.where(inputs.mask > 0, getattr(inputs, name), float("nan")) for name in PER_TOKEN[:-1]}
    output, gradient = loss_and_gradient(replace(inputs, **dirty), config)
    clean, _ = loss_and_gradient(inputs, config)
    assert output.floats() == pytest.approx(clean.floats())
    assert (gradient[inputs.mask == 0] == 0).all()
    assert gradient.isfinite().all()


def test_gradient_matches_finite_differences():
    base = random_inputs(11)
    double = replace(base, **{f.name: getattr(base, f.name).double() for f in fields(base) if f.name in PER_TOKEN})
    config = AlgoConfig(loss=LossConfig(clip_min=10.0, clip_max=10.0))  # smooth everywhere
    _, gradient = loss_and_gradient(double, config)
    step = 1e-2
    for row, column in [(0, 0), (1, 0), (2, 1), (4, 5)]:
        losses = []
        for sign in (1, -1):
            moved = double.logprobs.clone()
            moved[row, column] += sign * step
            losses.append(policy_loss(replace(double, logprobs=moved), config).loss.item())
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient[row, column].item(), abs=1e-4)


# --- edges -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_an_empty_mask_is_a_zero_with_zero_gradient(reduction):
    inputs = inputs_of([[-1.0, -2.0]], mask=[[0.0, 0.0]])
    output, gradient = loss_and_gradient(inputs, AlgoConfig(loss=LossConfig(reduction=reduction), kl=KlConfig(coef=0.1)))
    assert output.loss.item() == 0.0
    assert not gradient.any()
    assert output.floats()["train/probs_ratio_min"] == math.inf
    assert output.floats()["train/probs_ratio_max"] == -math.inf


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [500.0, -500.0])
def test_an_extreme_ratio_has_a_finite_gradient(advantage, gap):
    output, gradient = loss_and_gradient(inputs_of([[gap]], old_logprobs=[[0.0]], advantages=[[advantage]]), AlgoConfig())
    assert output.loss.isfinite()
    assert gradient.isfinite().all()


def test_unknown_reduction_names_key_and_choices():
    with pytest.raises(ConfigError, match=r"algo\.loss\.reduction='mean'.*token, sequence"):
        policy_loss(random_inputs(0), AlgoConfig(loss=LossConfig(reduction="mean")))


def test_a_penalty_without_reference_names_the_key():
    with pytest.raises(ConfigError, match=r"algo\.kl\.coef=0\.1 needs log-probs of the reference"):
        policy_loss(replace(random_inputs(0), reference_logprobs=None), AlgoConfig(kl=KlConfig(coef=0.1)))


def test_imitation_without_knowing_what_is_positive_names_the_key():
    inputs = replace(random_inputs(0), positive=None)
    with pytest.raises(ConfigError, match=r"^algo\.loss\.nll_coef needs to know the samples with a positive reward, and the"):
        policy_loss(inputs, AlgoConfig(loss=LossConfig(nll_coef=0.1)))


@pytest.mark.parametrize("name", [name for name in PER_TOKEN if name != "logprobs"])
def test_shapes_must_agree(name):
    with pytest.raises(ValueError, match=r"loss inputs differ in shape: log-probs \(2, 3\), the others .*\(2, 1\)"):
        replace(inputs_of(torch.zeros(2, 3)), **{name: torch.ones(2, 1)})
