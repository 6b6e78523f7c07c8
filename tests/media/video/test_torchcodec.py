"""torchcodec loads FFmpeg from the system. Where there is none, PyAV's own libraries stand in."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
from pathlib import Path
from omnirl.errors import HardwareError, MediaError
from omnirl.media.video import load_video
from tests.media.corpus_video import CLIPS
from tests.media.video.test_decode import FILES, job

root = Path(sys.argv[1])
for name in FILES:
    ours = load_video(root / name / CLIPS[name].file, job(num_frames=5), name=name)
    try:
        theirs = load_video(root / name / CLIPS[name].file, job(num_frames=5, backend="torchcodec"), name=name)
    except HardwareError as error:
        sys.exit(f"SKIP {error}")
    except MediaError as error:
        print("cannot", name)
        continue
    assert np.array_equal(ours.pixels, theirs.pixels), name
    assert ours.sampling == theirs.sampling, name
"""


def libraries(folder):
    """A folder with PyAV's FFmpeg under the names that torchcodec looks for, and the folders of what they need."""
    site = Path(find_spec("av").origin).parents[1]
    for library in (site / "av.libs").glob("lib*.so*"):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)
        (folder / re.sub(r"(\.so\.\d+).*", r"\1", name)).symlink_to(library)
    more = {str(file.parent) for file in (site / "nvidia").rglob("libnvrtc.so.*")}
    return os.pathsep.join([str(folder), str(site / "av.libs"), *sorted(more), os.environ.get("LD_LIBRARY_PATH", "")])


@pytest.mark.engines
def test_torchcodec_gives_the_same_bytes(clips, tmp_path):
    pytest.importorskip("torch")
    if find_spec("torchcodec") is None:
        pytest.skip("torchcodec is not installed")
    root = clips["h264"].parents[1]
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    env = os.environ | {"LD_LIBRARY_PATH": libraries(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(root)], env=env, capture_output=True, text=True, check=False)
    if "SKIP" in done.stderr:
        pytest.skip(done.stderr.strip()[-200:])
    assert done.returncode == 0, done.stderr
    lacking = set(done.stdout.replace("cannot", "").split())
    assert lacking <= {"h264_ts", "h264_raw", "mpeg4_avi", "mpeg2", "mjpeg", "gif"}
