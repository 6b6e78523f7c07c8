import io
import time

import pytest
from rich.console import Console

from omnirl.track import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def plain(clock):
    out = io.StringIO()
    return Progress(Console(file=out, width=200), clock), out


def live(clock):
    out = io.StringIO()
    return Progress(Console(file=out, width=120, force_terminal=True, force_interactive=True), clock), out


def row(reward=0.5, **more):
    return {
        "rollout/reward_mean": reward,
        "rollout/kept_groups": 21,
        "rollout/num_groups": 32,
        "train/loss": -0.0031,
        "perf/tokens_per_s": 1834.2,
    } | more


def test_a_plain_line_has_every_figure():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("grpo", total=120)
    clock.now = 2.0
    progress.log(row(**{"eval/accuracy": 0.58}), 1)
    assert out.getvalue() == (
        "grpo 1/120  reward 0.500  accuracy 0.580  loss -0.0031  kept 21/32  tokens/s 1,834  left 0:03:58\n"
    )


def test_reward_is_the_mean_of_the_last_twenty_steps():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("grpo", total=100)
    for step in range(1, 31):
        progress.log(row(0.0 if step <= 10 else 1.0 if step <= 20 else 0.5), step)
    progress.close()
    assert "grpo 30/100  reward 0.750" in out.getvalue().splitlines()[-1]


def test_lines_are_rare_but_first_last_and_accuracy_show():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("grpo", total=40)
    for step in range(1, 41):
        clock.now += 1.0
        progress.log(row(**({"eval/accuracy": 0.5} if step == 15 else {})), step)
    progress.close()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/40", "11/40", "15/40", "25/40", "35/40", "40/40"]


def test_accuracy_stays_until_the_next_one():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("grpo", total=3)
    progress.log(row(**{"eval/accuracy": 0.25}), 1)
    clock.now = 60
    progress.log(row(), 2)
    assert "accuracy 0.250" in out.getvalue().splitlines()[-1]


def test_phases_count_their_own_steps_and_resume_in_the_middle():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("warmup", total=10)
    progress.log({"warmup/loss": 2.5}, 1)
    progress.phase("grpo", total=100, first=10, done=40)
    clock.now = 3.0
    progress.log(row(), 51)
    progress.close()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("warmup 1/10  reward -  accuracy -  loss 2.5000  kept -  tokens/s -  left 0:00:00")
    assert lines[1].startswith("grpo 41/100  reward 0.500")
    assert lines[1].endswith("left 0:02:57")


def test_time_left_follows_recent_steps():
    clock = Clock()
    progress, out = plain(clock)
    progress.phase("grpo", total=130)
    for step in range(1, 31):
        clock.now += 100.0 if step <= 10 else 36.0
        progress.log(row(), step)
    assert out.getvalue().splitlines()[-1].endswith("left 1:00:00")


def test_the_live_table_shows_all_phases():
    clock = Clock()
    progress, out = live(clock)
    progress.phase("warmup", total=10)
    progress.log({"warmup/loss": 2.5}, 10)
    progress.phase("grpo", total=120)
    progress.log(row(), 1)
    progress.note("saved step 1")
    progress.close()
    text = out.getvalue()
    for word in ("phase", "accuracy", "warmup", "10/10", "2.5000", "grpo", "ended", "1/120", "21/32", "1,834", "saved step 1"):
        assert word in text


def test_notes_are_not_markup():
    progress, out = plain(Clock())
    progress.note("wrote [bold]/x[/bold]")
    assert out.getvalue() == "wrote [bold]/x[/bold]\n"


@pytest.mark.parametrize("make", [plain, live])
def test_a_step_costs_less_than_a_millisecond(make):
    clock = Clock()
    progress, _ = make(clock)
    progress.phase("grpo", total=1000)
    start = time.process_time()
    for step in range(1, 501):
        clock.now += 0.3
        progress.log(row(), step)
    assert (time.process_time() - start) / 500 < 1e-3
    progress.close()
