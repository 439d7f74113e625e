"""Writes tests/golden/blocks.safetensors: every block of the models on its own, forward in training and inference,
and backward. The same cases stand in tests/test_block_golden.c; inputs and weights are draws of (case, name).

In float64, from float32 inputs. A case's input is one map (n, h, w, c), cut into the block's inputs by channels.
"""
import torch
from torch import nn

import draws
import model
import store

BATCH, WHOLE = 2, 2304


class Levels(model.Detect):
    """Detect on three maps of one size, two of them enlarged, so that one map can be the input."""

    def forward(self, maps):
        grow = lambda x, times: nn.functional.interpolate(x, scale_factor=times, mode="nearest")
        box, cls = super().forward([grow(maps[0], 4), grow(maps[1], 2), maps[2]])
        return box + cls


class Enlarge(nn.Module):
    def forward(self, x):
        return nn.functional.interpolate(x, scale_factor=2, mode="nearest")


class Join(nn.Module):
    def forward(self, maps):
        return torch.cat(maps, 1)


def chain(c1, c2, hidden, n, inner):
    return model.SplitChain(c1, c2, hidden, [inner(hidden) for _ in range(n)])


# name: (block, channels of its inputs, height, width)
def cases():
    plain = lambda shortcut: lambda c: model.Bottleneck(c, c, shortcut)
    return {
        "conv_s2": (model.Conv(16, 24, 3, 2), [16], 6, 10),
        "conv_3": (model.Conv(16, 16, 3), [16], 6, 10),
        "conv_1": (model.Conv(16, 8), [16], 6, 10),
        "dwconv": (model.Conv(16, 16, 3, groups=16), [16], 6, 10),
        "bottleneck": (model.Bottleneck(16, 8, False), [16], 6, 10),
        "bottleneck_add": (model.Bottleneck(16, 8, True), [16], 6, 10),
        "c3k": (model.C3k(16, 2), [16], 6, 10),
        "c2f": (chain(16, 24, 12, 2, plain(False)), [16], 6, 10),
        "c2f_add": (chain(16, 24, 12, 2, plain(True)), [16], 6, 10),
        "c3k2": (chain(16, 24, 6, 2, lambda c: model.Bottleneck(c, c // 2, True)), [16], 6, 10),
        "c3k2_deep": (chain(16, 24, 12, 2, model.C3k), [16], 6, 10),
        "sppf": (model.SPPF(16, 24, 5), [16], 6, 10),
        "c2psa": (model.C2PSA(128, 1), [128], 6, 10),
        "c2psa_two": (model.C2PSA(256, 2), [256], 3, 5),
        "upsample": (Enlarge(), [16], 6, 10),
        "concat": (Join(), [16, 8, 12], 6, 10),
        "detect_11": (Levels(5, [16, 24, 32], False), [16, 24, 32], 2, 3),
        "detect_8": (Levels(5, [16, 24, 32], True), [16, 24, 32], 2, 3),
    }


def listed(x):
    return x if isinstance(x, list) else [x]


def run(name, block, channels, height, width, out):
    shape = (BATCH, height, width, sum(channels))
    state = {k: torch.from_numpy(v) for k, v in draws.state_of(block, name).items() if "dfl" not in k}
    block.load_state_dict(state, strict=False)
    block = block.double().to(torch.get_default_device())
    x = torch.from_numpy(draws.draw(f"{name}/x", shape, 2.0)).double().to(torch.get_default_device())
    x.requires_grad_()
    parts = [t.permute(0, 3, 1, 2) for t in x.split(channels, 3)]
    feed = parts if len(parts) > 1 else parts[0]
    with torch.no_grad():
        for i, y in enumerate(listed(block.eval()(feed))):
            store.put(out, f"{name}/eval.{i}", y.permute(0, 2, 3, 1), 1 << 20)
    total = 0
    for i, y in enumerate(listed(block.train()(feed))):
        y = y.permute(0, 2, 3, 1)
        store.put(out, f"{name}/y.{i}", y, 1 << 20)
        dy = torch.from_numpy(draws.draw(f"{name}/dy.{i}", tuple(y.shape))).double().to(y.device)
        total = total + (y * dy).sum()
    total.backward()
    store.put(out, f"{name}/dx", x.grad, 1 << 20)
    store.put_gradients(out, [(f"{name}/grad.{k}", p.grad) for k, p in block.named_parameters() if p.requires_grad],
                        lambda g: WHOLE)
    for key, b in block.named_buffers():
        if "running" in key:
            store.put(out, f"{name}/stat.{key}", b, WHOLE)


def main(to):
    out = {}
    for name, case in cases().items():
        run(name, *case, out)
    to.save("blocks", out)


if __name__ == "__main__":
    main(store.Store())
