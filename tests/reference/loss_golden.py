"""Writes tests/golden/loss_*.safetensors: inputs and what loss.py and PyTorch make of them.

Inputs are drawn in float32 on the CPU from fixed seeds, everything is computed in float64 on the default device. A
case whose assignment hangs on a near tie (float32 rounding could decide otherwise) is drawn again.
"""
import numpy as np
import torch

import loss as ref
import store


def levels(flat, height, width):
    """(n, A, c) -> three (n, h, w, c)."""
    out, at = [], 0
    for s in ref.STRIDES:
        h, w = height // s, width // s
        out.append(flat[:, at:at + h * w].reshape(len(flat), h, w, -1).contiguous())
        at += h * w
    return out


def near_heads(gen, gts, height, width, nc):
    """Head outputs as of a half-trained network: near its boxes an anchor points at one of them, with noise."""
    points, strides = ref.anchors_of(height, width)
    n, a = len(gts), len(points)
    bins = torch.randn(n, a, 4, ref.BINS, generator=gen) * 0.7
    logits = torch.randn(n, a, nc, generator=gen) * 1.5 - 2.5
    for i, rows in enumerate(gts):
        for k in range(a):
            p = points[k] * strides[k]
            close = [g for g in rows if (p > g[1:3] - 8).all() and (p < g[3:5] + 8).all()]
            if not close:
                continue
            g = close[int(torch.randint(len(close), (), generator=gen))]
            sides = torch.cat([p - g[1:3], g[3:5] - p]) / strides[k]
            sides = (sides + torch.randn(4, generator=gen) * 0.3).clamp(0, 15)
            steps = torch.arange(ref.BINS)
            bins[i, k] += 6 * torch.exp(-(steps - sides[:, None]).pow(2))
            logits[i, k, int(g[0])] += 2
    return levels(bins.flatten(2), height, width), levels(logits, height, width)


def random_boxes(gen, count, height, width, nc, smallest=3.0):
    rows = []
    for _ in range(count):
        size = smallest + torch.rand(2, generator=gen) * torch.tensor([width * 0.7, height * 0.7])
        corner = torch.rand(2, generator=gen) * (torch.tensor([width, height]) - size).clamp(min=1)
        hi = torch.minimum(corner + size, torch.tensor([float(width), float(height)]))
        rows.append(torch.cat([torch.randint(nc, (1,), generator=gen).float(), corner, hi]))
    return torch.stack(rows) if rows else torch.zeros(0, 5)


def safe(box, cls, gts, height, width):
    """True if no choice of the assigner is near a tie, and none hangs on a zero metric."""
    points, strides = ref.anchors_of(height, width)
    scores = ref.flatten(cls).sigmoid()
    boxes = ref.decode(ref.flatten(box), points) * strides[:, None]
    for i, rows in enumerate(gts):
        if len(rows) == 0:
            continue
        args = (scores[i], boxes[i], points * strides[:, None], rows)
        if ref.near_ties(*args) < 1e-3:
            return False
        if not torch.equal(ref.assign(*args)[1], ref.assign(*args, keep_zero=False)[1]):
            return False
    return True


def there(tensors):
    """In double precision on the device that computes."""
    return [t.double().to(torch.get_default_device()) for t in tensors]


def padded(gts):
    """Rows of all images, with one row of padding at least, and how many are real."""
    gt = np.zeros((len(gts), max(len(g) for g in gts) + 1, 5), np.float32)
    for i, rows in enumerate(gts):
        gt[i, :len(rows)] = rows
    return {"gt": gt, "gt_count": np.array([len(g) for g in gts], np.int32)}


def computed(box, cls, gts):
    """Loss and gradients. An anchor that was taken with metric 0 has no part in the loss, and which of those are taken
    is a tie: it has no owner here."""
    box64, cls64 = there(box), there(cls)
    for t in box64 + cls64:
        t.requires_grad_()
    l_box, l_cls, l_dfl, s, owner, weight = ref.detect_loss(box64, cls64, there(gts))
    ((l_box + l_cls + l_dfl) * len(gts)).backward()
    items = [float(torch.as_tensor(v).detach()) for v in (l_box, l_cls, l_dfl, s)]
    out = padded(gts) | {"items": np.array(items, np.float32),
                         "owner": owner.where(weight > 0, torch.full_like(owner, -1)).int(),
                         "weight": weight.float()}
    for l in range(3):
        grad = [torch.zeros_like(t) if t.grad is None else t.grad for t in (box64[l], cls64[l])]
        out |= {f"box{l}": box[l], f"cls{l}": cls[l], f"dbox{l}": grad[0].float(), f"dcls{l}": grad[1].float()}
    return out


def loss_case(to, name, seed, make_boxes, height, width, nc):
    with torch.device("cpu"):
        for attempt in range(1000):
            gen = torch.Generator().manual_seed(seed * 1000 + attempt)
            gts = make_boxes(gen)
            box, cls = near_heads(gen, gts, height, width, nc)
            if safe(box, cls, gts, height, width):
                break
        else:
            raise SystemExit(f"{name}: every draw is near a tie")
    to.save(f"loss_{name}", computed(box, cls, gts))


def ties(to):
    """Every anchor predicts the same around itself, and two equal boxes of one class lie in the middle: the anchors
    around the centre are equal by fours and eights, so the border of the top ten lies between equals, and both boxes
    want the same anchors with equal overlaps. Which of the equals is taken is nobody's to say; the loss, the number
    of anchors and their weights are the same either way."""
    side = 64
    bins = torch.full((4, ref.BINS), -30.0, device="cpu")
    bins[:, 1] = bins[:, 2] = 3.0  # expectation 1.5
    count = sum((side // s) ** 2 for s in ref.STRIDES)
    box = levels(bins.flatten().repeat(1, count, 1), side, side)
    cls = levels(torch.tensor([-1.0, -2.0], device="cpu").repeat(1, count, 1), side, side)
    gts = [torch.tensor([[1, 16, 16, 48, 48], [1, 16, 16, 48, 48]], dtype=torch.float32, device="cpu")]
    out = computed(box, cls, gts)
    chosen = out["owner"] >= 0  # of equal anchors with a metric
    weights = out.pop("weight")[chosen].sort().values
    out = {k: v for k, v in out.items() if k[:4] not in ("owne", "dbox", "dcls")}
    to.save("loss_ties", out | {"weights": weights})


def crafted(gen):
    """Boxes under 8 px, boxes that want the same anchors, more boxes than top-k on one spot, the border."""
    jitter = lambda: torch.rand((), generator=gen).item() * 0.9 + 0.05
    tiny = [(0, 20.3, 11.1, 24.0, 17.2), (1, 41.7, 30.2, 60.1, 35.9), (2, 8.4, 40.3, 13.3, 61.0)]
    pair = [(0, 10, 10, 40, 42), (0, 13, 8, 43, 40), (1, 12, 14, 38, 44)]
    crowd = [(i % 3, 14 + i * 1.3, 16 + (i * 7 % 5), 40 + i * 0.7, 44 + (i * 3 % 4)) for i in range(13)]
    border = [(1, 0, 0, 30, 26), (2, 33.2, 0, 64, 64), (0, 0, 40.4, 64, 64)]
    move = lambda rows: [(r[0], r[1] + jitter(), r[2] + jitter(), r[3] + jitter(), r[4] + jitter())
                         for r in rows]
    return [torch.tensor(t, dtype=torch.float32) for t in (move(tiny), move(pair), move(crowd), border)]


def ciou_cases(to):
    gen = torch.Generator().manual_seed(11)
    a = random_boxes(gen, 80, 60, 60, 1)[:, 1:]
    b = a + torch.randn(80, 4, generator=gen) * 4
    b[40:] = random_boxes(gen, 40, 60, 60, 1)[:, 1:]
    b[:, 2:] = torch.maximum(b[:, 2:], b[:, :2] + 0.5)
    b[70:] += 100  # far apart
    a64, b64 = there([a, b])
    a64.requires_grad_()
    value = ref.ciou(a64, b64)
    value.sum().backward()
    to.save("loss_ciou", {"a": a, "b": b, "ciou": value.float(), "grad": a64.grad.float()})


def optimiser_cases(to):
    """20 updates of three groups with a warm-up's rates, momenta and decay; every third gradient is clipped."""
    gen = torch.Generator().manual_seed(12)
    sizes, steps = (70, 33, 21), 20
    total = sum(sizes)
    start = torch.randn(total, generator=gen)
    grads = torch.randn(steps, total, generator=gen) * (1 + 3 * (torch.arange(steps) % 3))[:, None]
    x = torch.arange(steps) / steps
    lr = torch.stack([0.01 * x, 0.01 * x, 0.1 + (0.01 - 0.1) * x], 1)
    momentum = 0.8 + (0.937 - 0.8) * x
    decay = [5e-4, 0.0, 0.0]
    out = {"start": start, "grads": grads, "lr": lr.float(), "momentum": momentum.float(),
           "decay": torch.tensor(decay), "sizes": np.array(sizes, np.int32)}
    for kind in ("sgd", "adamw"):
        params = [torch.nn.Parameter(p.double()) for p in start.split(sizes)]
        groups = [{"params": [p], "weight_decay": d} for p, d in zip(params, decay)]
        optim = (torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True) if kind == "sgd" else
                 torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999)))
        ema, trail, emas, norms = start.double(), [], [], []
        for t in range(steps):
            for g, p, part in zip(range(3), params, grads[t].split(sizes)):
                p.grad = part.double()
                optim.param_groups[g]["lr"] = float(lr[t, g])
                if kind == "sgd":
                    optim.param_groups[g]["momentum"] = float(momentum[t])
            norms.append(torch.nn.utils.clip_grad_norm_(params, 10.0))
            optim.step()
            now = torch.cat([p.detach() for p in params])
            d = 0.9999 * (1 - np.exp(-(t + 1) / 2000))
            ema = ema * d + (1 - d) * now
            trail.append(now)
            emas.append(ema)
        out |= {f"{kind}_w": torch.stack(trail).float(), f"{kind}_ema": torch.stack(emas).float(),
                f"{kind}_norm": torch.stack(norms).float()}
    to.save("loss_optim", out)


def nms_cases(to):
    gen = torch.Generator().manual_seed(13)
    height = width = 64
    nc = 3
    gts = [random_boxes(gen, 5, height, width, nc), random_boxes(gen, 2, height, width, nc)]
    box, cls = near_heads(gen, gts, height, width, nc)
    out = {f"{k}{l}": t for k, ts in (("box", box), ("cls", cls)) for l, t in enumerate(ts)}
    runs = [("plain", dict(conf=0.001, max_nms=30000, max_det=300, agnostic=False)),
            ("short", dict(conf=0.05, max_nms=50, max_det=12, agnostic=False)),
            ("agnostic", dict(conf=0.01, max_nms=30000, max_det=300, agnostic=True))]
    for name, args in runs:
        dets = ref.nms(box, cls, iou=0.7, **args)
        rows = torch.zeros(len(dets), args["max_det"], 6)
        for i, d in enumerate(dets):
            rows[i, :len(d)] = d
        used = max(len(d) for d in dets)
        out |= {f"{name}_dets": rows[:, :used], f"{name}_count": np.array([len(d) for d in dets], np.int32),
                f"{name}_args": np.array([args["conf"], 0.7, args["max_nms"], args["max_det"],
                                          args["agnostic"]], np.float32)}
    to.save("loss_nms", out)


def ap_cases(to):
    """Images with boxes of 4 of 5 classes; detections are shifted boxes, wrong classes and noise."""
    rng = np.random.default_rng(14)
    nc, images = 5, 60
    dets, det_count, gts, gt_count, correct = [], [], [], [], []
    for _ in range(images):
        g = rng.integers(0, 7)
        corner, size = rng.uniform(0, 200, (g, 2)), rng.uniform(15, 90, (g, 2))
        label = rng.integers(0, 4, g)
        gt = np.concatenate([label[:, None], corner, corner + size], 1).astype(np.float32)
        rows = []
        for k in range(g):
            for _ in range(rng.integers(0, 4)):
                moved = gt[k, 1:] + rng.normal(0, 0.06, 4) * np.tile(size[k], 2)
                cls = label[k] if rng.random() < 0.85 else rng.integers(0, nc)
                rows.append([*moved, rng.beta(3, 2), cls])
        for _ in range(rng.integers(0, 4)):
            c, s = rng.uniform(0, 200, 2), rng.uniform(15, 90, 2)
            rows.append([*c, *(c + s), rng.beta(1, 4), rng.integers(0, nc)])
        det = np.array(rows, np.float32).reshape(-1, 6)
        det = det[np.argsort(-det[:, 4], kind="stable")]
        dets.append(det)
        gts.append(gt)
        det_count.append(len(det))
        gt_count.append(len(gt))
        correct.append(ref.match(det, gt))
    det, gt, hit = np.concatenate(dets), np.concatenate(gts), np.concatenate(correct)
    assert len(np.unique(det[:, 4])) == len(det), "scores must differ"
    p, r, m50, m, area = ref.evaluate(hit, det[:, 4], det[:, 5], gt[:, 0], nc)
    bits = (hit * (1 << np.arange(10))).sum(1)
    to.save("loss_ap", {"dets": det, "det_count": np.array(det_count, np.int32), "gts": gt,
                "gt_count": np.array(gt_count, np.int32), "correct": bits.astype(np.int32),
                "result": np.array([p, r, m50, m], np.float64), "area": area})


def golden_numbers():
    """The numbers of facts/yolo.md 9, so that this statement is itself held to them."""
    box = lambda *v: torch.tensor(v, dtype=torch.float32)
    assert abs(ref.ciou(box(10, 10, 50, 60), box(12, 15, 55, 58)) - 0.7344009) < 1e-6
    assert abs(ref.ciou(box(0, 0, 10, 10), box(20, 20, 30, 40)) + 0.4116895) < 1e-6
    ramp = torch.arange(16) / 10
    assert abs(ref.dfl(torch.zeros(16), torch.tensor(3.3)) - 2.7725887) < 1e-6
    assert abs(ref.dfl(ramp, torch.tensor(3.3)) - 3.2966514) < 1e-6
    assert abs(ref.dfl(ramp, torch.tensor(20.0)) - 2.1276515) < 1e-6
    curve = lambda tp, n: ref.curve_area(np.cumsum(tp) / n, np.cumsum(tp) / np.arange(1, len(tp) + 1))
    assert abs(curve([1], 1) - 0.995) < 1e-9
    assert abs(curve([1, 0, 1, 1, 0], 4) - 0.62) < 1e-9


def main(to):
    golden_numbers()
    case = lambda *args: loss_case(to, *args)
    case("random", 1, lambda g: [random_boxes(g, 4, 64, 64, 3), random_boxes(g, 2, 64, 64, 3)], 64, 64, 3)
    case("wide", 5, lambda g: [random_boxes(g, 7, 64, 128, 5), random_boxes(g, 1, 64, 128, 5)], 64, 128, 5)
    case("crafted", 2, crafted, 64, 64, 3)
    case("empty", 3, lambda g: [torch.zeros(0, 5)], 64, 64, 3)
    case("single", 4, lambda g: [random_boxes(g, 3, 64, 96, 1), torch.zeros(0, 5)], 64, 96, 1)
    ties(to)
    with torch.device("cpu"):
        ciou_cases(to)
        optimiser_cases(to)
        nms_cases(to)
    ap_cases(to)


if __name__ == "__main__":
    main(store.Store())
