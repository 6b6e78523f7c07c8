"""The names under which trackers elsewhere know a run, kept in its folder so that a resumed run continues them.

Example:
    ids = TrackerIds(run / "trackers.json")
    ids.get("wandb") → "3f9c2a71", or None before `ids.put("wandb", "3f9c2a71")`
"""

import json
from pathlib import Path

from omnirl.errors import ConfigError


class TrackerIds:
    """Raises `ConfigError` when the file is damaged or cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, tracker: str) -> str | None:
        value = self._read().get(tracker)
        return value if isinstance(value, str) else None

    def put(self, tracker: str, value: str) -> None:
        draft = self._path.with_name(f".{self._path.name}.unfinished")
        try:
            draft.write_text(json.dumps(self._read() | {tracker: value}) + "\n")
            draft.replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be written ({error.strerror}); make room there") from error

    def _read(self) -> dict[str, object]:
        if not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}); delete it, and the trackers begin a new run each") from error
        return found if isinstance(found, dict) else {}


def reason(error: Exception) -> str:
    """Kind and first line of an error of another library, whose messages may have many lines."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
