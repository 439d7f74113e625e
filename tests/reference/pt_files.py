"""Writes tests/golden/pt: files of torch.save in every form that a user's weights come in, and some that
want to run code; and seeds for the fuzz target of the same reader. Kept small: a few tensors of a few
elements each.

    python tests/reference/pt_files.py [FOLDER]

Element i (row-major) of the k-th tensor of a file is k + i / 8, which float16 and bfloat16 hold exactly,
so that tests/test_torchfile.c works the expected values out for itself; counters are 70 + k.
"""

import builtins
import collections
import os
import pathlib
import sys
import types

import torch
from torch import nn

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "golden" / "pt")

SEEDS = OUT.parent.parent / "fuzz" / "seeds" / "torchfile"


def numbered(shape, k, dtype=torch.float32):
    n = 1
    for s in shape:
        n *= s
    return (torch.arange(n, dtype=torch.float32) / 8 + k).reshape(shape).to(dtype)


def state(dtype=torch.float32, prefix=""):
    """A convolution, its normalisation, and a tensor that is a transposed part of a larger storage."""
    whole = numbered((6, 4), 0, dtype)
    part = whole[1:4, 1:3].t()  # shape 2x3, strides 1, 4, offset 5
    part.copy_(numbered((2, 3), 2, dtype))
    return collections.OrderedDict(
        (prefix + name, value)
        for name, value in (
            ("conv.weight", numbered((2, 3, 1, 1), 0, dtype)),
            ("bn.weight", numbered((4,), 1, dtype)),
            ("part", part),
            ("bn.num_batches_tracked", torch.tensor(73)),
            ("empty", torch.zeros((0, 3), dtype=dtype)),
        )
    )


def stand_in(module, name, base=nn.Module):
    """A class that pickles under another program's name, which need not be installed to read the file."""
    parts = module.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(".".join(parts[: i + 1])))
    if hasattr(sys.modules[module], name):
        return getattr(sys.modules[module], name)
    cls = type(name, (base,), {"__module__": module})
    setattr(sys.modules[module], name, cls)
    return cls


def whole(dtype=torch.float32):
    """A module of modules: parameters, buffers, a shared module, None, a buffer that is not saved."""
    top = stand_in("detector.nn.tasks", "DetectionModel")()
    inner = stand_in("detector.nn.modules", "Block")()
    inner.register_parameter("weight", nn.Parameter(numbered((2, 3, 1, 1), 0, dtype)))
    inner.register_parameter("bias", None)
    inner.register_buffer("running_mean", numbered((4,), 1, dtype))
    inner.register_buffer("anchors", numbered((5,), 9, dtype), persistent=False)
    inner.register_buffer("num_batches_tracked", torch.tensor(72))
    last = stand_in("detector.nn.modules", "Head")()
    last.register_parameter("weight", nn.Parameter(numbered((3, 2), 3, dtype)))
    top.model = nn.Sequential(inner, inner, last)
    top.names = {0: "scratch", 1: "pit", 2: "missing hole"}
    top.yaml = {"nc": 3, "yaml_file": "yolo11n.yaml", "scale": "n", "backbone": [[-1, 1, "Conv", [64, 3, 2]]]}
    top.stride = torch.tensor([8.0, 16.0, 32.0])
    top.args = types.SimpleNamespace(imgsz=320)
    return top


class Runs:
    """Pickles as a call of whatever it is given."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def save(name, value, **options):
    torch.save(value, OUT / f"{name}.pt", **options)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    save("plain", state())
    save("half", state(torch.float16))
    save("bf16", state(torch.bfloat16))
    save("double", state(torch.float64))
    save("protocol4", state(), pickle_protocol=4)
    save("protocol5", {"state_dict": state(prefix="module.")}, pickle_protocol=5)
    save("legacy", state(), _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    save("unchecked", state())
    torch.serialization.set_crc32_options(True)
    save("whole", whole())
    save("whole_half", {"epoch": -1, "model": whole(torch.float16), "ema": None, "version": "8.4.0", "date": "2026-01-02",
                        "train_args": {"imgsz": 640, "data": pathlib.PurePosixPath("a/b.yaml")}})
    other = whole()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    optimizer = {"state": {0: {"exp_avg": numbered((4,), 5), "step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.01}]}
    save("ema", {"epoch": 6, "best_fitness": 0.25, "model": other, "ema": whole(torch.float16), "updates": 11,
                 "optimizer": optimizer, "names": ["a", "b", "c"]})
    save("ema_state", {"model": state(torch.float16), "ema": {"module": state()}, "best": {1, 2}})
    tied = nn.Parameter(numbered((2, 2), 1))
    tied.note = "a tensor with an attribute"
    save("tied", {"a": tied, "b": tied, "c": tied.detach().view(4)[1:3]})
    save("nothing", {"epoch": 3, "results": [0.1, 0.2]})
    torch.jit.save(torch.jit.trace(nn.Linear(2, 1), torch.zeros(1, 2)), str(OUT / "script.pt"))

    # Without checksums, so that a fuzzer's changes reach what is behind them.
    torch.serialization.set_crc32_options(False)
    SEEDS.mkdir(parents=True, exist_ok=True)
    seeds = {"plain": state(), "nested": {"epoch": 1, "ema": {"module": state(prefix="module.")}, "names": ["a", "b"]},
             "whole": {"model": whole(torch.float16), "version": "1"}, "tied": {"a": tied, "b": tied}}
    for name, value in seeds.items():
        torch.save(value, SEEDS / f"{name}.pt", pickle_protocol=4 if name == "nested" else 2)
    torch.serialization.set_crc32_options(True)

    # What must not run. The commands are harmless, and the test looks whether they ran.
    save("hostile_system", {"model": state(), "x": Runs(os.system, "touch sluice-hostile-ran")})
    save("hostile_eval", {"model": state(), "x": Runs(builtins.eval, "open('sluice-hostile-ran', 'w')")})
    save("hostile_getattr", {"model": state(), "x": Runs(getattr, Runs(__import__, "os"), "system")})
    save("hostile_tensor", Runs(torch.load, "other.pt"))


main()
