import pytest

from omnirl.config.duration import seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("00:03:45:00", 13_500),
        ("01:00:00:00", 86_400),
        ("0:0:0:1", 1),
        ("00:00:00:00", 0),
        ("00:24:00:00", None),
        ("00:00:60:00", None),
        ("03:45:00", None),
        ("", None),
        ("-1:00:00:00", None),
        ("1:00:00:00 ", None),
        ("١:00:00:00", None),
    ],
)
def test_seconds(text, found):
    assert seconds(text) == found
