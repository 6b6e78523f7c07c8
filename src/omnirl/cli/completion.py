"""Shell completion of overrides; bash splits a word at `=`, other shells do not."""

import os


def complete(incomplete: str) -> list[tuple[str, str]]:
    """(candidate, help) pairs for the word at the cursor."""
    from omnirl.config.complete import candidates, values

    words = os.environ.get("COMP_WORDS", "").split("\n")
    cursor = int(os.environ.get("COMP_CWORD") or 0)
    if words[cursor - 1 : cursor] == ["="] and cursor > 1:  # KEY = VAL|
        return values(words[cursor - 2], incomplete)
    if words[cursor : cursor + 1] == ["="]:  # KEY =|
        return values(words[cursor - 1], "")
    return candidates(incomplete)
