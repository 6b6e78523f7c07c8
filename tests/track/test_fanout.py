import logging

import pytest

from omnirl.track import FanOut


class Memory:
    """Keeps rows; raises `error` for steps in `broken`, and at close when asked."""

    def __init__(self, broken=(), error: BaseException | None = None, broken_close=False):
        self.rows, self.closed = [], 0
        self._broken, self._error, self._broken_close = broken, error or OSError("disk full"), broken_close

    def log(self, metrics, step):
        if step in self._broken:
            raise self._error
        self.rows.append((step, dict(metrics)))

    def close(self):
        self.closed += 1
        if self._broken_close:
            raise self._error


def test_every_sink_gets_every_row():
    sinks = {"a": Memory(), "b": Memory()}
    tracker = FanOut(sinks)
    tracker.log({"train/loss": 1.0}, 1)
    tracker.close()
    tracker.close()
    assert [s.rows for s in sinks.values()] == [[(1, {"train/loss": 1.0})]] * 2
    assert [s.closed for s in sinks.values()] == [1, 1]
    assert tracker.failures == {}


@pytest.mark.parametrize("error", [OSError("disk full"), KeyError("tag"), RuntimeError("vendor")])
def test_a_failing_sink_is_reported_once_and_counted(caplog, error):
    good, bad = Memory(), Memory(broken=(2, 3), error=error)
    tracker = FanOut({"bad": bad, "good": good})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3, 4):
            tracker.log({"train/loss": 1.0}, step)
    assert [step for step, _ in good.rows] == [1, 2, 3, 4]
    assert [step for step, _ in bad.rows] == [1, 4]
    assert tracker.failures == {"bad": 2}
    assert [row.get("perf/tracker_failures") for _, row in good.rows] == [None, None, 1.0, 2.0]
    assert [r.getMessage() for r in caplog.records] == [
        f"tracker bad failed ({type(error).__name__}: {error}); its rows are lost while this lasts"
    ]
    tracker.close()
    assert caplog.records[-1].getMessage() == "tracker bad lost 2 rows"


def test_a_sink_that_fails_to_close_does_not_keep_the_others_open(caplog):
    last = Memory()
    FanOut({"bad": Memory(broken_close=True), "last": last}).close()
    assert last.closed == 1
    assert "tracker bad failed" in caplog.text


def test_an_interrupt_passes():
    tracker = FanOut({"a": Memory(broken=(1,), error=KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        tracker.log({}, 1)
