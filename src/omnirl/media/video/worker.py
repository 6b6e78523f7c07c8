"""The process behind `DecodePool`: reads jobs from a socket, answers with frames or a typed error, ends with its parent.

Example:
    python -m omnirl.media.video.worker 7      # 7: the inherited socket
"""

import signal
import sys
from multiprocessing.connection import Connection

from omnirl.errors import OmnirlError

from .decode import load_video
from .timeline import damaged


def main(descriptor: int) -> None:
    """Serve until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    connection = Connection(descriptor)
    while True:
        try:
            source, job, name = connection.recv()
        except EOFError:
            return
        try:
            video = load_video(source, job, name=name)
        except OmnirlError as error:
            connection.send(type(error)(str(error)))  # without its cause, which may not pickle
        except Exception as error:  # the seam: whatever a decoder raises is about this clip
            connection.send(damaged(name, error))
        else:
            connection.send((video.pixels.shape, video.source, video.digest, video.num_tokens, video.sampling))
            connection.send_bytes(memoryview(video.pixels).cast("B"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
