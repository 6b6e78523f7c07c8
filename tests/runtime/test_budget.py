from omnirl.runtime.budget import TimeBudget


def test_a_step_must_fit_that_is_as_long_as_the_longest():
    times = iter([0, 5, 15, 18, 41, 60])
    budget = TimeBudget(70, clock=lambda: next(times))
    assert [budget.spent() for _ in range(5)] == [False, False, False, False, True]  # 60 + 23 > 70


def test_starting_up_is_no_step():
    times = iter([0, 60, 61])
    budget = TimeBudget(100, clock=lambda: next(times))
    assert not budget.spent()
    assert not budget.spent()


def test_without_an_end():
    times = iter([0, 1e9, 2e9])
    budget = TimeBudget(None, clock=lambda: next(times))
    assert not budget.spent()
    assert not budget.spent()
