import io

import pytest
from rich.console import Console

from omnirl.track import Check, CheckTable, Verdict


@pytest.mark.parametrize("terminal", [False, True])
def test_each_check_is_one_line(terminal):
    console = Console(file=io.StringIO(), width=20, force_terminal=terminal, force_interactive=terminal, color_system=None)
    with CheckTable(console) as table:
        table.begin("recipe", "refit")
        table.end(Check("recipe", "refit", Verdict.OK, "1.3 → 1.0 [bold]", 0.82))
        table.end(Check("recipe", "export", Verdict.SKIPPED, "", 0.0))
    text = console.file.getvalue()
    assert "ok       recipe            refit         0.8 s  1.3 → 1.0 [bold]\n" in text
    assert "skipped  recipe            export        0.0 s  \n" in text
    assert (text.count("\n") == 2) != terminal
