import os
import signal

import pytest

from omnirl.runtime.signals import GracefulStop


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_without_a_signal():
    with GracefulStop() as stop:
        assert not stop.requested
    assert stop.exit_code == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_sets_the_flag(signum, code, capfd):
    with GracefulStop() as stop:
        os.kill(os.getpid(), signum)
        assert stop.requested
    assert stop.exit_code == code
    assert f"{signum.name}: finishing this step, then saving" in capfd.readouterr().err


def test_a_second_sigterm_changes_nothing():
    with GracefulStop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.exit_code == 143


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_later_sigint_leaves_at_once(first):
    with GracefulStop() as stop:
        os.kill(os.getpid(), first)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.exit_code == 128 + first
