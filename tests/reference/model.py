"""The detectors yolo11 and yolov8, stated once in PyTorch, and the comparison with what the C program computes.

Written from facts/yolo.md 1.1 to 1.3. The C test writes weights, a batch and all its gradients:

    SLUICE_MODEL_DUMP=/tmp/dump build/tests/test_model_golden
    python tests/reference/model.py /tmp/dump

compares every tensor whole (in float64 here), prints the largest differences, and writes
tests/golden/model_*.safetensors: head outputs and small gradients whole, of the gradient of every convolution weight
a summary (see test_model_golden.c).
"""
import math
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import loss as loss_reference

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
SCALES = {
    "yolo11": {"n": (0.50, 0.25, 1024), "s": (0.50, 0.50, 1024), "m": (0.50, 1.00, 512), "l": (1.00, 1.00, 512),
               "x": (1.00, 1.50, 512)},
    "yolov8": {"n": (0.33, 0.25, 1024), "s": (0.33, 0.50, 1024), "m": (0.67, 0.75, 768), "l": (1.00, 1.00, 512),
               "x": (1.00, 1.25, 512)},
}
UP, JOIN = "up", "join"
FLOOR = 3e-5
# (from, repeats, kind, arguments); -1 is the row above.
ROWS = {
    "yolo11": [
        (-1, 1, "conv", (64, 3, 2)), (-1, 1, "conv", (128, 3, 2)), (-1, 2, "c3k2", (256, False, 0.25)),
        (-1, 1, "conv", (256, 3, 2)), (-1, 2, "c3k2", (512, False, 0.25)), (-1, 1, "conv", (512, 3, 2)),
        (-1, 2, "c3k2", (512, True, 0.5)), (-1, 1, "conv", (1024, 3, 2)), (-1, 2, "c3k2", (1024, True, 0.5)),
        (-1, 1, "sppf", (1024, 5)), (-1, 2, "c2psa", (1024,)),
        (-1, 1, UP, ()), ((-1, 6), 1, JOIN, ()), (-1, 2, "c3k2", (512, False, 0.5)),
        (-1, 1, UP, ()), ((-1, 4), 1, JOIN, ()), (-1, 2, "c3k2", (256, False, 0.5)),
        (-1, 1, "conv", (256, 3, 2)), ((-1, 13), 1, JOIN, ()), (-1, 2, "c3k2", (512, False, 0.5)),
        (-1, 1, "conv", (512, 3, 2)), ((-1, 10), 1, JOIN, ()), (-1, 2, "c3k2", (1024, True, 0.5)),
        ((16, 19, 22), 1, "detect", ()),
    ],
    "yolov8": [
        (-1, 1, "conv", (64, 3, 2)), (-1, 1, "conv", (128, 3, 2)), (-1, 3, "c2f", (128, True)),
        (-1, 1, "conv", (256, 3, 2)), (-1, 6, "c2f", (256, True)), (-1, 1, "conv", (512, 3, 2)),
        (-1, 6, "c2f", (512, True)), (-1, 1, "conv", (1024, 3, 2)), (-1, 3, "c2f", (1024, True)),
        (-1, 1, "sppf", (1024, 5)),
        (-1, 1, UP, ()), ((-1, 6), 1, JOIN, ()), (-1, 3, "c2f", (512, False)),
        (-1, 1, UP, ()), ((-1, 4), 1, JOIN, ()), (-1, 3, "c2f", (256, False)),
        (-1, 1, "conv", (256, 3, 2)), ((-1, 12), 1, JOIN, ()), (-1, 3, "c2f", (512, False)),
        (-1, 1, "conv", (512, 3, 2)), ((-1, 9), 1, JOIN, ()), (-1, 3, "c2f", (1024, False)),
        ((15, 18, 21), 1, "detect", ()),
    ],
}


class Conv(nn.Module):
    """Convolution, batch normalisation, SiLU if act."""

    def __init__(self, c1, c2, k=1, s=1, groups=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = act

    def forward(self, x):
        x = self.bn(self.conv(x))
        return nn.functional.silu(x) if self.act else x


class Bottleneck(nn.Module):
    def __init__(self, c, hidden, shortcut):
        super().__init__()
        self.cv1, self.cv2, self.shortcut = Conv(c, hidden, 3), Conv(hidden, c, 3), shortcut

    def forward(self, x):
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C3k(nn.Module):
    def __init__(self, c, n=2):
        super().__init__()
        h = c // 2
        self.cv1, self.cv2, self.cv3 = Conv(c, h), Conv(c, h), Conv(2 * h, c)
        self.m = nn.Sequential(*(Bottleneck(h, h, True) for _ in range(n)))

    def forward(self, x):
        return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], 1))


class SplitChain(nn.Module):
    """C2f and C3k2: every stage of the chain reaches cv2."""

    def __init__(self, c1, c2, hidden, inner):
        super().__init__()
        self.cv1, self.cv2 = Conv(c1, 2 * hidden), Conv((2 + len(inner)) * hidden, c2)
        self.m = nn.ModuleList(inner)

    def forward(self, x):
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class SPPF(nn.Module):
    def __init__(self, c1, c2, k):
        super().__init__()
        self.cv1, self.cv2, self.pool = Conv(c1, c1 // 2), Conv(c1 // 2 * 4, c2), nn.MaxPool2d(k, 1, k // 2)

    def forward(self, x):
        maps = [self.cv1(x)]
        for _ in range(3):
            maps.append(self.pool(maps[-1]))
        return self.cv2(torch.cat(maps, 1))


class Attention(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads, self.hd = heads, c // heads
        self.kd = self.hd // 2
        self.qkv = Conv(c, c + 2 * self.kd * heads, act=False)
        self.proj = Conv(c, c, act=False)
        self.pe = Conv(c, c, 3, groups=c, act=False)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).view(b, self.heads, 2 * self.kd + self.hd, h * w).split([self.kd, self.kd, self.hd], 2)
        a = (q.transpose(-2, -1) @ k * self.kd ** -0.5).softmax(-1)
        mixed = (v @ a.transpose(-2, -1)).reshape(b, c, h, w)
        return self.proj(mixed + self.pe(v.reshape(b, c, h, w)))


class PSABlock(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.attn = Attention(c, heads)
        self.ffn = nn.Sequential(Conv(c, 2 * c), Conv(2 * c, c, act=False))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ffn(x)


class C2PSA(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        h = c // 2
        self.cv1, self.cv2 = Conv(c, 2 * h), Conv(2 * h, c)
        self.m = nn.Sequential(*(PSABlock(h, max(h // 64, 1)) for _ in range(n)))

    def forward(self, x):
        a, b = self.cv1(x).chunk(2, 1)
        return self.cv2(torch.cat([a, self.m(b)], 1))


class Detect(nn.Module):
    def __init__(self, nc, ch, legacy):
        super().__init__()
        c2, c3 = max(16, ch[0] // 4, 64), max(ch[0], min(nc, 100))
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(c, c2, 3), Conv(c2, c2, 3), nn.Conv2d(c2, 64, 1)) for c in ch)
        if legacy:
            branch = lambda c: nn.Sequential(Conv(c, c3, 3), Conv(c3, c3, 3), nn.Conv2d(c3, nc, 1))
        else:
            branch = lambda c: nn.Sequential(nn.Sequential(Conv(c, c, 3, groups=c), Conv(c, c3)),
                                             nn.Sequential(Conv(c3, c3, 3, groups=c3), Conv(c3, c3)),
                                             nn.Conv2d(c3, nc, 1))
        self.cv3 = nn.ModuleList(branch(c) for c in ch)

    def forward(self, maps):
        return [b(x) for b, x in zip(self.cv2, maps)], [b(x) for b, x in zip(self.cv3, maps)]


class Detector(nn.Module):
    def __init__(self, name, nc):
        super().__init__()
        family, scale = name[:-1], name[-1]
        depth, width, most = SCALES[family][scale]
        scaled = lambda c: math.ceil(min(c, most) * width / 8) * 8
        self.rows, self.model, channels = ROWS[family], nn.ModuleList(), []
        before = lambda i, f: channels[i + f if f < 0 else f] if i else 3
        for i, (source, repeats, kind, args) in enumerate(self.rows):
            n = max(round(repeats * depth), 1) if repeats > 1 else repeats
            c1 = [before(i, f) for f in source] if isinstance(source, tuple) else before(i, source)
            c2 = scaled(args[0]) if args else c1
            if kind == "conv":
                block = Conv(c1, c2, args[1], args[2])
            elif kind == "c2f":
                block = SplitChain(c1, c2, c2 // 2, [Bottleneck(c2 // 2, c2 // 2, args[1]) for _ in range(n)])
            elif kind == "c3k2":
                h = int(c2 * args[2])
                deep = args[1] or scale in "mlx"
                block = SplitChain(c1, c2, h, [C3k(h) if deep else Bottleneck(h, h // 2, True) for _ in range(n)])
            elif kind == "sppf":
                block = SPPF(c1, c2, args[1])
            elif kind == "c2psa":
                block = C2PSA(c1, n)
            elif kind == "detect":
                block = Detect(nc, c1, family == "yolov8")
            else:
                block, c2 = nn.Identity(), sum(c1) if kind == JOIN else c1
            self.model.append(block)
            channels.append(c2)

    def forward(self, x):
        out = []
        for i, ((source, _, kind, _), block) in enumerate(zip(self.rows, self.model)):
            pick = lambda f: (out[i + f if f < 0 else f] if i else x)
            if kind == UP:
                out.append(nn.functional.interpolate(pick(source), scale_factor=2, mode="nearest"))
            elif kind == JOIN:
                out.append(torch.cat([pick(f) for f in source], 1))
            elif kind == "detect":
                return block([pick(f) for f in source])
            else:
                out.append(block(pick(source)))


# ---- comparison ---------------------------------------------------------------------------------------------

def pattern(k, count):
    """The fixed pattern k of test_model_golden.c."""
    h = np.arange(count, dtype=np.uint64) * 2654435761 + (k + 1) * 40503 & 0xFFFFFFFF
    h ^= h >> 15
    h = h * 2246822519 & 0xFFFFFFFF
    h ^= h >> 13
    return (h >> 8) / 8388608.0 - 1


def summary(a):
    a = a.ravel()
    return np.concatenate([[np.sqrt((a * a).sum()), np.abs(a).max()], [(pattern(k, a.size) * a).sum() for k in range(8)],
                           [a[k * a.size // 24] for k in range(24)]]).astype(np.float32)


def nhwc(t):
    return t.permute(0, 2, 3, 1)


def load(model, dump):
    own = model.state_dict()
    missing = [k for k in own if k not in dump]
    assert not missing, missing
    model.load_state_dict({k: torch.from_numpy(dump[k].astype(np.float64) if dump[k].dtype == np.float32 else dump[k])
                           for k in own})


def gradients(name, dump, with_loss):
    """Head outputs, loss items, gradients by name, running statistics after one forward."""
    model = Detector(name, dump["cls.0"].shape[3]).double().train()
    load(model, dump)
    x = torch.from_numpy(dump["input"]).double().permute(0, 3, 1, 2)
    box, cls = ([nhwc(t) for t in ts] for ts in model(x))
    items = None
    if with_loss:
        gts = [torch.from_numpy(rows[:n]).double() for rows, n in zip(dump["gt"], dump["gt_count"])]
        got = loss_reference.detect_loss(box, cls, gts)
        items = np.array([float(torch.as_tensor(v).detach()) for v in got[:4]])
        (sum(got[:3]) * len(x)).backward()
    else:
        sum((t * torch.from_numpy(dump[f"pattern.{kind}.{i}"])).sum()
            for kind, maps in (("box", box), ("cls", cls)) for i, t in enumerate(maps)).backward()
    grads = {k: p.grad.numpy() for k, p in model.named_parameters()}
    stats = {k: v.numpy() for k, v in model.named_buffers() if "running" in k}
    outputs = {f"{kind}.{i}": t.detach().numpy() for kind, maps in (("box", box), ("cls", cls))
               for i, t in enumerate(maps)}
    return outputs, items, grads, stats


def worst_of(kind, pairs, floor=1e-30):
    """pairs: name -> (ours, C's). Largest |difference| relative to the tensor's largest element, or to floor."""
    rows = sorted(((np.abs(a - b).max() / max(np.abs(a).max(), floor), k) for k, (a, b) in pairs.items()), reverse=True)
    print(f"  {kind}: {len(rows)} tensors, largest difference {rows[0][0]:.2e} ({rows[0][1]}), "
          f"median {rows[len(rows) // 2][0]:.1e}")
    return rows[0][0]


def check(name, folder):
    dump = load_file(f"{folder}/{name}.safetensors")
    print(name)
    golden, worst = {}, 0.0
    for kind in ("linear", "loss"):
        outputs, items, grads, stats = gradients(name, dump, kind == "loss")
        if kind == "linear":
            worst = max(worst, worst_of("head outputs", {k: (v, dump[k]) for k, v in outputs.items()}))
            worst = max(worst, worst_of("running statistics", {k: (v, dump["linear." + k]) for k, v in stats.items()}))
            golden |= outputs | {f"linear.{k}": v for k, v in stats.items() if ".0.bn" in k or "model.1.bn" in k}
        else:
            print(f"  loss items {items}, C {dump['items']}")
            worst = max(worst, worst_of("loss", {"items": (items, dump["items"])}))
            golden["items"] = items
        # Some gradients are zero by construction (a bias whose effect the next normalisation removes) and
        # otherwise rounding: they are measured against a small part of the model's largest gradient.
        floor = FLOOR * max(np.abs(v).max() for v in grads.values())
        golden[f"floor.{kind}"] = np.array([floor])
        worst = max(worst, worst_of(f"gradients of {kind}", {k: (v, dump[f"{kind}.{k}"]) for k, v in grads.items()},
                                    floor))
        for k, v in grads.items():
            if v.ndim == 1:
                golden[f"{kind}.{k}"] = v
            else:
                golden[f"summary.{kind}.{k}"] = summary(v)
    path = GOLDEN / f"model_{name}.safetensors"
    save_file({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in golden.items()}, path)
    path.chmod(0o644)
    print(f"  {path.stat().st_size} bytes of golden numbers")
    return worst


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if max([check(name, sys.argv[1]) for name in ("yolo11n", "yolov8n")]) > 1e-3:
        sys.exit("a difference is larger than 1e-3 of the largest element")
