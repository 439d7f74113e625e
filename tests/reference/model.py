"""The detectors yolo11 and yolov8 and their blocks, stated once in PyTorch.

Written from facts/yolo.md 1.1 to 1.3. Names of modules are those of the state dict (facts/yolo.md 8.3).
"""
import math

import torch
from torch import nn

SCALES = {
    "yolo11": {"n": (0.50, 0.25, 1024), "s": (0.50, 0.50, 1024), "m": (0.50, 1.00, 512), "l": (1.00, 1.00, 512),
               "x": (1.00, 1.50, 512)},
    "yolov8": {"n": (0.33, 0.25, 1024), "s": (0.33, 0.50, 1024), "m": (0.67, 0.75, 768), "l": (1.00, 1.00, 512),
               "x": (1.00, 1.25, 512)},
}
UP, JOIN = "up", "join"
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


class DFL(nn.Module):
    """Expectation of a distribution over 0..15, by side: (n, 64, a) -> (n, 4, a). Its weight is never trained."""

    def __init__(self, bins=16):
        super().__init__()
        self.conv = nn.Conv2d(bins, 1, 1, bias=False).requires_grad_(False)
        self.conv.weight.data[:] = torch.arange(bins).view(1, bins, 1, 1)

    def forward(self, x):
        n, _, a = x.shape
        return self.conv(x.view(n, 4, -1, a).transpose(1, 2).softmax(1)).view(n, 4, a)


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
        self.dfl = DFL()

    def forward(self, maps):
        return [b(x) for b, x in zip(self.cv2, maps)], [b(x) for b, x in zip(self.cv3, maps)]


class Detector(nn.Module):
    """Images (n, 3, h, w) -> raw box and class logits of the three levels, as two lists."""

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
