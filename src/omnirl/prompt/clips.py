"""A clip in the text of a prompt: one placeholder a tubelet, each after the times of its frames.

The words are those of Nemotron Omni's processor and of vLLM, with real presentation times: both take `index × int(1000 / fps)`
milliseconds, which is exact for a clip of 1000 fps whose indices are milliseconds.

Example:
    clip_text((0, 500, 1000), tubelet=2, placeholder="<image>")
      → "Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.50 seconds: <image>"
        "\\nFrame 3 sampled at 1.00 seconds: <image>"
"""

from collections.abc import Sequence


def clip_text(timestamps_ms: Sequence[int], tubelet: int, placeholder: str) -> str:
    """`timestamps_ms`: of all frames. A frame that only fills up the last tubelet is not named."""
    lines = []
    for start in range(0, len(timestamps_ms), tubelet):
        names = [
            f"frame {start + i + 1} sampled at {ms / 1000.0:.2f} seconds"
            for i, ms in enumerate(timestamps_ms[start : start + tubelet])
        ]
        lines.append(f"F{' and '.join(names)[1:]}: {placeholder}")
    return "\n".join(lines)
