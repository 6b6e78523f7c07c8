"""Seconds and bytes of one training batch with its pixels to another process: a plain pickle, in which arrays are copied,
against the wire form, in which they are not. The best of several alternating runs, until the arrays are there and an answer
is back.

Example:
    python benchmarks/wire.py        # a line a form, and plain ÷ wire
"""

import os
import pickle
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from omnirl.media import DictStore
from omnirl.media.packed import PackedMedia
from omnirl.runtime.launchers.wire import Call, pack, receive, send, unpack
from omnirl.types import EncodedPrompt, ExpandedIds, MediaRef, TrainingBatch, TrainingSample

RUNS = 9
PROMPTS, GROUP, SIDE, RESPONSE = 8, 8, 1024, 512


def batch(store: DictStore) -> TrainingBatch:
    """A group a prompt, each with a picture of `SIDE` pixels."""
    samples = []
    for seed in range(PROMPTS):
        pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        tokens = (SIDE // 32) ** 2
        ref = MediaRef(store.put(pixels), SIDE, SIDE, tokens)
        prompt = EncodedPrompt(str(seed), ExpandedIds([18] * tokens), (ref,), np.array([[0, tokens]], np.int32))
        ids, floats = np.arange(RESPONSE, dtype=np.int32), np.zeros(RESPONSE, np.float32)
        samples += [TrainingSample(prompt, ids.copy(), floats.copy(), 0.5, floats + 1) for _ in range(GROUP)]
    return TrainingBatch.of(samples)


def plain(connection: socket.socket, message: Any) -> int:
    data = pickle.dumps(message, protocol=5)
    connection.sendall(len(data).to_bytes(8, "big") + data)
    return 8 + len(data)


def plain_back(connection: socket.socket) -> Any:
    def read(count: int) -> bytearray:
        data = bytearray(count)
        view, filled = memoryview(data), 0
        while filled < count:
            filled += connection.recv_into(view[filled:])
        return data

    return pickle.loads(read(int.from_bytes(read(8), "big")))


def wire(connection: socket.socket, message: Any) -> int:
    packed = pack(message)
    send(connection, packed)
    return packed.nbytes


def wire_back(connection: socket.socket) -> Any:
    return unpack(receive(connection))


FORMS: dict[str, tuple[Callable[..., int], Callable[..., Any]]] = {"plain": (plain, plain_back), "wire": (wire, wire_back)}


def serve(connection: socket.socket) -> None:
    """Receive by turns, answer with a byte once the pixels are arrays."""
    for _ in range(RUNS):
        for _, back in FORMS.values():
            found = back(connection)
            connection.sendall(bytes([len(found.media.pixels)]))


def main() -> None:
    store = DictStore()
    rows = batch(store)
    message = Call("train_step", (rows, 1e-4), {}, PackedMedia.of([s.prompt.media for s in rows.samples], store))
    ours, theirs = socket.socketpair()
    if not (child := os.fork()):
        serve(theirs)
        os._exit(0)
    best, size = dict.fromkeys(FORMS, float("inf")), dict.fromkeys(FORMS, 0)
    for _ in range(RUNS):
        for name, (there, _) in FORMS.items():
            start = time.perf_counter()
            size[name] = there(ours, message)
            ours.recv(1)
            best[name] = min(best[name], time.perf_counter() - start)
    os.waitpid(child, 0)
    pixels = sum(p.nbytes for p in message.media.pixels or ()) if message.media else 0
    print(f"{len(rows.samples)} samples, {PROMPTS} pictures, {pixels / 1e6:.1f} MB of pixels")
    for name in FORMS:
        print(f"{name}: {size[name] / 1e6:.3f} MB, {best[name] * 1e3:.1f} ms")
    print(f"plain / wire: {size['plain'] / size['wire']:.4f} in bytes, {best['plain'] / best['wire']:.2f} in time")


if __name__ == "__main__":
    main()
