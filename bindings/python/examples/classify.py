"""Classifies handwritten digits on every device: the network of `ep demo`, through Python.

    python3 classify.py [CONFIG] [--device DEVICE] [--data FOLDER]

A trained network (64-64-32-10) classifies 540 real scanned digits. It fails when fewer than 528 are right, or a probability
differs from the stored one by 1e-5 or more. Nothing but EP is needed.
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import ep

DATA = Path(__file__).resolve().parent.parent.parent.parent / "data/digits"
DTYPES = {"F32": "f32", "U8": "u8", "I64": "i64"}


def safetensors(file):
    """The tensors of a file: {name: (dtype, shape, bytes)}."""
    content = memoryview(file.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:end]))
    header.pop("__metadata__", None)
    return {
        name: (DTYPES[row["dtype"]], row["shape"], content[end + row["data_offsets"][0]:end + row["data_offsets"][1]])
        for name, row in header.items()}


class Network:
    """The weights on a session's device."""

    def __init__(self, session, model):
        self.session = session
        self.layers = []
        while f"layer{len(self.layers)}.weight" in model:
            rows = [model[f"layer{len(self.layers)}.{part}"] for part in ("weight", "bias")]
            self.layers.append([session.tensor(content, dtype, shape) for dtype, shape, content in rows])

    def __call__(self, images):
        """Probabilities of images with pixels of 0 to 16."""
        s = self.session
        x = s.cast(images, dtype="f32") / 16
        for weight, bias in self.layers[:-1]:
            x = s.unary(x @ weight + bias, op="relu")
        weight, bias = self.layers[-1]
        return s.softmax(x @ weight + bias, dim=-1)


def classify(session, data):
    """Whether the network is right, with a line that says how."""
    network = Network(session, safetensors(data / "mlp.safetensors"))
    test = safetensors(data / "test.safetensors")
    images, labels, stored = (session.tensor(test[name][2], *test[name][:2]) for name in ("images", "labels", "probabilities"))
    network(images)
    session.sync()
    begin = time.perf_counter()
    probabilities = network(images)
    session.sync()
    seconds = time.perf_counter() - begin

    found = session.arg_reduce(probabilities, op="argmax", dim=1)
    hits = session.cast(session.binary(found, labels, op="equal"), dtype="i64")
    right = session.reduce(hits, op="sum").item()
    difference = session.reduce(session.unary(probabilities - stored, op="abs"), op="max").item()
    total = len(labels)
    print(f"{session.device}: {right} of {total} right, largest difference {difference:.1e}, {total / seconds:.0f} images/s")
    return right >= 528 and math.isfinite(difference) and difference < 1e-5


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("config", nargs="?", help="a config; without one, that of EP_CONFIG, the user or the system")
    arguments.add_argument("--device", help="only this one, such as cpu:0")
    arguments.add_argument("--data", type=Path, default=DATA, help="a folder with mlp.safetensors and test.safetensors")
    given = arguments.parse_args()
    runtime = ep.Runtime(given.config)
    devices = [given.device] if given.device else list(
        dict.fromkeys(device["id"] for provider in runtime.list() for device in provider["devices"]))
    right, wrong = 0, 0
    for device in devices:
        with runtime.session(device) as session:
            try:
                fine = classify(session, given.data)
            except ep.Error as e:
                # A device need not have all that a network takes, unless it was asked for.
                if e.code != "Unsupported" or given.device:
                    raise
                print(f"{device}: left out, as it lacks an operator: {e.message.splitlines()[0]}")
                continue
            right, wrong = right + fine, wrong + (not fine)
    sys.exit(0 if right and not wrong else 1)


if __name__ == "__main__":
    main()
