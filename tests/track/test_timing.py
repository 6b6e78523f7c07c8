import pytest

from omnirl.track import Timers


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def spend(clock, timers, name, seconds):
    with timers(name):
        clock.now += seconds


def test_sections_and_model_share(clock):
    timers = Timers(model=("generate", "train"), clock=clock)
    spend(clock, timers, "generate", 3)
    spend(clock, timers, "reward", 1)
    spend(clock, timers, "train", 4)
    spend(clock, timers, "generate", 1)
    clock.now += 1
    assert timers.collect() == {
        "timing/generate_s": 4,
        "timing/reward_s": 1,
        "timing/train_s": 4,
        "timing/step_s": 10,
        "perf/model_share": 0.8,
    }


def test_collect_starts_a_new_step(clock):
    timers = Timers(clock=clock)
    spend(clock, timers, "train", 3)
    timers.collect()
    spend(clock, timers, "eval", 2)
    assert timers.collect() == {"timing/eval_s": 2, "timing/step_s": 2, "perf/model_share": 0}


def test_restart_forgets(clock):
    timers = Timers(clock=clock)
    spend(clock, timers, "train", 3)
    timers.restart()
    clock.now += 1
    assert timers.collect() == {"timing/step_s": 1, "perf/model_share": 0}


def test_nested_model_sections_count_once(clock):
    timers = Timers(model=("train", "logprobs"), clock=clock)
    with timers("train"):
        clock.now += 1
        spend(clock, timers, "logprobs", 2)
    metrics = timers.collect()
    assert (metrics["timing/train_s"], metrics["timing/logprobs_s"], metrics["perf/model_share"]) == (3, 2, 1)


def test_a_section_that_raises_is_timed(clock):
    timers = Timers(clock=clock)

    def fail():
        clock.now += 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), timers("train"):
        fail()
    assert timers.collect()["timing/train_s"] == 2


def test_an_instant_step_has_share_zero(clock):
    assert Timers(clock=clock).collect() == {"timing/step_s": 0, "perf/model_share": 0}
