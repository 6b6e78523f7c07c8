"""Shell completion of overrides; bash splits a word at `=`, other shells do not."""

import os


def complete(incomplete: str) -> list[tuple[str, str]]:
    """(candidate, help) pairs for the word at the cursor."""
    from omnirl.config.complete import candidates, values

    words = os.environ.get("COMP_WORDS", "").split("\n")[: int(os.environ.get("COMP_CWORD") or 0)]
    if words[-1:] == ["="] and len(words) > 1:  # KEY = VAL|
        return values(words[-2], incomplete)
    if words and incomplete == "=":  # KEY =|
        return values(words[-1], "")
    return candidates(incomplete)
