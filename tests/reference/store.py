"""Where golden files go, and whether one that lies there is what would be written now."""
import pathlib

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import draws

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


class Store:
    """Writes to a folder, or with check compares with what lies there. `failures` counts files that differ."""

    def __init__(self, folder=GOLDEN, check=False):
        self.folder, self.check, self.failures, self.bytes = pathlib.Path(folder), check, 0, 0

    def save(self, name, arrays):
        arrays = {k: np.ascontiguousarray(v.detach().cpu().numpy() if torch.is_tensor(v) else v)
                  for k, v in arrays.items()}
        path = self.folder / f"{name}.safetensors"
        if self.check:
            said = compare(path, arrays)
            self.failures += said.startswith("DIFFERS")
            print(f"  {name}: {said}")
        else:
            save_file(arrays, path)
            path.chmod(0o644)
            self.bytes += path.stat().st_size
            print(f"  {name}: {path.stat().st_size} bytes, {len(arrays)} tensors")


def allowed(dtype):
    """Of a tensor's largest element: another machine sums in another order. Whole numbers are the same everywhere,
    pixels may be one off (OpenCV has code of its own for each instruction set)."""
    return {"float32": 2e-6, "float64": 1e-9}.get(str(dtype), 0)


def compare(path, arrays):
    if not path.exists():
        return "DIFFERS: there is no such file"
    old = load_file(path)
    if sorted(old) != sorted(arrays):
        return f"DIFFERS: other tensors: {sorted(set(old) ^ set(arrays))[:4]}"
    equal, worst, where = True, 0.0, ""
    for key, new in arrays.items():
        was = old[key]
        if was.shape != new.shape or was.dtype != new.dtype:
            return f"DIFFERS: {key} is {was.dtype}{was.shape}, not {new.dtype}{new.shape}"
        if was.tobytes() == new.tobytes():
            continue
        equal = False
        apart = np.abs(was.astype(np.float64) - new.astype(np.float64)).max()
        if new.dtype == np.uint8:
            if apart > 1:
                return f"DIFFERS: {key} by {apart:.0f}"
            continue
        share = apart / max(np.abs(new.astype(np.float64)).max(), 1e-30)
        if not share <= allowed(new.dtype):
            return f"DIFFERS: {key} by {share:.1e} of its largest element"
        if share > worst:
            worst, where = share, key
    return "the same bytes" if equal else f"the same within {worst:.1e} of the largest element ({where})"


PATTERNS, ELEMENTS = 8, 24


_patterns = []


def pattern(k, count):
    """The first `count` draws of "pattern.K", kept because there are many tensors."""
    if not _patterns or len(_patterns[0]) < count:
        _patterns[:] = [draws.units(f"pattern.{i}", 2 * count) for i in range(PATTERNS)]
    return _patterns[k][:count]


def summary(a):
    """Of a tensor too large to keep: norm, largest magnitude, products with fixed patterns, some elements."""
    a = a.astype(np.float64).ravel()
    return np.concatenate([[np.sqrt((a * a).sum()), np.abs(a).max()],
                           [(pattern(k, a.size) * a).sum() for k in range(PATTERNS)],
                           [a[k * a.size // ELEMENTS] for k in range(ELEMENTS)]]).astype(np.float32)


def put_gradients(out, named, most):
    """Gradients (name, tensor), together: what is zero by construction is so to float64's rounding, which another
    machine does otherwise; it becomes zero."""
    named = [(name, value.detach().cpu().numpy()) for name, value in named]
    least = 1e-12 * max((np.abs(value).max() for _, value in named), default=0)
    for name, value in named:
        put(out, name, np.where(np.abs(value) < least, 0, value), most(value))


def put(out, name, value, most):
    """A tensor whole, or from `most` elements on its summary under summary.NAME (tests/golden.c reads both)."""
    value = value.detach().cpu().numpy() if torch.is_tensor(value) else value
    if value.size <= most:
        out[name] = value.astype(np.float32)
    else:
        out["summary." + name] = summary(value)
