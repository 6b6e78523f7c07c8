"""The start-up contract: one message that says what is wrong and how to get it right. None of this imports Megatron-core."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from omnirl.errors import HardwareError
from omnirl.models.megatron import contract

INSTALL = r"`uv sync --extra megatron`, or choose another backend"


def test_a_missing_package(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(contract.metadata, "version", absent)
    with pytest.raises(HardwareError, match=rf"megatron-core 0\.19\.2 is not installed; .*{INSTALL}") as error:
        contract.check()
    assert error.value.exit_code == 2


def test_another_version(monkeypatch):
    monkeypatch.setattr(contract.metadata, "version", lambda _: "0.20.0")
    with pytest.raises(HardwareError, match=rf"megatron-core 0\.20\.0 is installed, but omnirl needs 0\.19\.2; .*{INSTALL}"):
        contract.check()


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"omnirl.nowhere": ("x",)}, "'omnirl.nowhere' cannot be imported"),
        ({"pathlib": ("Path.exists", "Path._gone")}, r"'pathlib' has no 'Path\._gone', which omnirl uses"),
    ],
)
def test_a_symbol_that_went_away(monkeypatch, symbols, message):
    monkeypatch.setattr(contract.metadata, "version", lambda _: contract.VERSION)
    monkeypatch.setattr(contract, "SYMBOLS", symbols)
    with pytest.raises(HardwareError, match=rf"{message}.*{INSTALL}"):
        contract.check()


def test_an_attribute_that_an_object_no_longer_has():
    contract.require(SimpleNamespace(a=SimpleNamespace(b=1)), ("a.b",))
    with pytest.raises(HardwareError, match=r"'SimpleNamespace' has no 'a\.c'"):
        contract.require(SimpleNamespace(a=SimpleNamespace(b=1)), ("a.c",))


@pytest.mark.engines
def test_the_installed_version_keeps_the_contract():
    contract.check()
