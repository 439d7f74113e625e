"""Inputs that nobody has to store: numbers that follow from a name, here and in tests/draws.c alike.

Element i of the draws of a name is a hash of (name, i), uniform in [-1, 1) in steps of 2^-23: exact in float32.
"""
import numpy as np


def _hashes(name, count):
    key = 0x811C9DC5  # FNV-1a
    for byte in name.encode():
        key = (key ^ byte) * 0x01000193 & 0xFFFFFFFF
    h = (np.arange(count, dtype=np.uint64) * 2654435761 + key) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):  # MurmurHash3's last mixing
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    return h ^ h >> 16


def units(name, count):
    """Float64 in [-1, 1)."""
    return (_hashes(name, count) >> 8).astype(np.float64) / 8388608.0 - 1


def octets(name, count):
    """uint8, all values equally likely."""
    return (_hashes(name, count) >> 24).astype(np.uint8)


def draw(name, shape, scale=1.0, shift=0.0):
    """Float32 of a shape: shift + scale * units. scale is a power of two wherever shift is not 0."""
    count = int(np.prod(shape, dtype=np.int64))
    return (shift + scale * units(name, count)).astype(np.float32).reshape(shape)


def pixels(name, height, width, kind="noise"):
    """uint8 R G B (height, width, 3). noise: independent bytes. shades: slow waves and a little noise, as of a
    photograph. blocks: flat squares with sharp edges."""
    noise = octets(name, height * width * 3).astype(np.int64).reshape(height, width, 3)
    if kind == "noise":
        return noise.astype(np.uint8)
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    if kind == "blocks":  # whole numbers only, so that C says the same
        return ((x // 9 * 67 + y // 7 * 151 + (x // 9) * (y // 7) * 29 + c * 83) % 256).astype(np.uint8)
    wave = abs((x * (3 + c) + y * (2 + 2 * c)) % 200 - 100) + abs((x * 2 + y * (5 - c)) % 240 - 120)
    return (wave + noise // 16).astype(np.uint8)


def state_of(model, name):
    """Values for every entry of a module's state dict: convolutions uniform in +-1/sqrt(fan in), normalisations that
    are not the identity, running statistics that are not the initial ones. With shifts about 1 the activations are less
bent than about 0, and a deep model magnifies rounding ten times less: float32 differs from float64 by 3e-5 in
PyTorch's own gradients of yolo11n, by 3e-4 about 0."""
    out = {}
    for key, tensor in model.state_dict().items():
        shape, label = tuple(tensor.shape), f"{name}/{key}"
        if key.endswith("num_batches_tracked"):
            continue
        if len(shape) == 4:
            out[key] = draw(label, shape, 1 / np.sqrt(shape[1] * shape[2] * shape[3]))
        elif key.endswith(("bn.weight", "bn.bias")):
            out[key] = draw(label, shape, 0.25, 1.0)
        elif key.endswith("running_var"):
            out[key] = draw(label, shape, 0.5, 1.0)
        else:
            out[key] = draw(label, shape, 0.25)
    return out
