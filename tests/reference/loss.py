"""The detector's loss, suppression and average precision, stated once in PyTorch and NumPy.

Written from facts/yolo.md 3 and 6 to be read, not to be fast: one image and one box at a time wherever that is
clearer. New tensors lie on torch's default device. The C operations of kernels/cpu (detect_loss, nms) and
trainer/ap.c are compared with what it computes.
"""
import math

import numpy as np
import torch

BINS = 16          # reg_max
TOPK, ALPHA, BETA = 10, 0.5, 6.0
GAINS = (7.5, 0.5, 1.5)  # box, cls, dfl
STRIDES = (8, 16, 32)


# ---- anchors and boxes (facts 1.3) -------------------------------------------------------------------------

def anchors_of(height, width):
    """Anchor centres in grid units (A, 2) and the stride of each (A,), level by level, row by row."""
    points, strides = [], []
    for s in STRIDES:
        for y in range(height // s):
            for x in range(width // s):
                points.append((x + 0.5, y + 0.5))
                strides.append(float(s))
    return torch.tensor(points), torch.tensor(strides)


def flatten(levels):
    """Head outputs [(n, h, w, c)] of the three levels -> (n, A, c)."""
    return torch.cat([t.flatten(1, 2) for t in levels], 1)


def decode(bins, points):
    """Box logits (n, A, 64) -> boxes x1 y1 x2 y2 in grid units (n, A, 4)."""
    n, a, _ = bins.shape
    chance = bins.view(n, a, 4, BINS).softmax(-1)
    left, top, right, bottom = (chance @ torch.arange(BINS, dtype=bins.dtype)).unbind(-1)
    ax, ay = points.unbind(-1)
    return torch.stack([ax - left, ay - top, ax + right, ay + bottom], -1)


def ciou(a, b, eps=1e-7):
    """Complete IoU of boxes (..., 4) (facts 3.4). The weight of the shape term is a constant."""
    aw, ah = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1] + eps
    bw, bh = b[..., 2] - b[..., 0], b[..., 3] - b[..., 1] + eps
    high, low = torch.minimum(a[..., 2:], b[..., 2:]), torch.maximum(a[..., :2], b[..., :2])
    inter = (high - low).clamp(min=0).prod(-1)
    iou = inter / (aw * ah + bw * bh - inter + eps)
    outer = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    diagonal = outer.pow(2).sum(-1) + eps
    apart = (b[..., :2] + b[..., 2:] - a[..., :2] - a[..., 2:]).pow(2).sum(-1) / 4
    shape = 4 / math.pi**2 * (torch.atan(bw / bh) - torch.atan(aw / ah)).pow(2)
    with torch.no_grad():
        weight = shape / (shape - iou + (1 + eps))
    return iou - (apart / diagonal + shape * weight)


# ---- assigner (facts 3.3) ----------------------------------------------------------------------------------

def enlarge(box):
    """A side under the smallest stride counts as long as the second stride, for the candidate test."""
    box = box.clone()
    for lo, hi in ((0, 2), (1, 3)):
        if box[hi] - box[lo] < STRIDES[0]:
            centre = (box[lo] + box[hi]) / 2
            box[lo], box[hi] = centre - STRIDES[1] / 2, centre + STRIDES[1] / 2
    return box


@torch.no_grad()
def assign(scores, boxes, points, gt, keep_zero=True):
    """One image. scores (A, nc) in [0, 1], boxes (A, 4) and points (A, 2) in pixels, gt rows (class, x1..y2).
    Returns owner (A,) (-1: background) and weight (A,), the target score of the owner's class.
    keep_zero=False leaves anchors with metric 0 out of the top-k: it must not change the weights."""
    count, total = len(points), len(gt)
    owner, weight = torch.full((count,), -1), torch.zeros(count, dtype=boxes.dtype)
    overlap, align = (torch.zeros(total, count, dtype=boxes.dtype) for _ in range(2))
    inside = torch.zeros(total, count, dtype=torch.bool)
    chosen = torch.zeros(total, count, dtype=torch.bool)
    for g, row in enumerate(gt):
        if row[1:].sum() <= 0:
            continue
        reach = enlarge(row[1:])
        margin = torch.cat([points - reach[:2], reach[2:] - points], 1).amin(1)
        inside[g] = margin > 1e-9
        overlap[g] = torch.where(inside[g], ciou(row[1:].expand(count, 4), boxes).clamp(min=0), 0)
        align[g] = torch.where(inside[g], scores[:, int(row[0])].pow(ALPHA) * overlap[g].pow(BETA), 0)
        best = align[g].topk(min(TOPK, count)).indices
        chosen[g, best] = True
        chosen[g] &= inside[g]
        if not keep_zero:
            chosen[g] &= align[g] > 0
    for a in range(count):
        wanted = chosen[:, a].nonzero().flatten().tolist()
        if len(wanted) == 1:
            owner[a] = wanted[0]
        elif len(wanted) > 1:  # among all boxes, not only those that want it
            owner[a] = int(overlap[:, a].argmax())
    for g in range(total):
        mine = owner == g
        if mine.any():
            weight[mine] = align[g, mine] * overlap[g, mine].max() / (align[g, mine].max() + 1e-9)
    return owner, weight


def near_ties(scores, boxes, points, gt):
    """The smallest relative gap at which a choice of assign was made: top-k borders and overlaps of
    contested anchors. A case with a tiny gap cannot be compared with another implementation."""
    gap = 1.0
    owner, _ = assign(scores, boxes, points, gt)
    values, overlaps = [], []
    for row in gt:
        reach = enlarge(row[1:])
        margin = torch.cat([points - reach[:2], reach[2:] - points], 1).amin(1)
        gap = min(gap, float(margin.abs().min()))
        o = torch.where(margin > 1e-9, ciou(row[1:].expand(len(points), 4), boxes).clamp(min=0), 0)
        values.append(scores[:, int(row[0])].pow(ALPHA) * o.pow(BETA))
        overlaps.append(o)
    for v in values:
        top = v.sort(descending=True).values
        if len(top) > TOPK and top[TOPK - 1] > 0:
            gap = min(gap, float((top[TOPK - 1] - top[TOPK]) / top[TOPK - 1]))
    if len(overlaps) > 1:
        o = torch.stack(overlaps)
        two = o.topk(2, 0).values[:, owner >= 0]
        close = two[0] > 0
        if close.any():
            gap = min(gap, float(((two[0] - two[1]) / two[0])[close].min()))
    return gap


# ---- loss (facts 3.2, 3.5) ---------------------------------------------------------------------------------

def dfl(bins, target):
    """Distribution focal loss (..., 16), (...) -> (...)."""
    target = target.clamp(0, BINS - 1 - 0.01)
    left = target.long()
    near = (left + 1) - target
    log_chance = bins.log_softmax(-1)
    pick = lambda k: log_chance.gather(-1, k.unsqueeze(-1)).squeeze(-1)
    return -(near * pick(left) + (1 - near) * pick(left + 1))


def detect_loss(box, cls, gts, gains=GAINS):
    """box, cls: the three levels' raw outputs (n, h, w, 64) and (n, h, w, nc); gts: per image (count, 5), pixels.
    Returns the three weighted items, S, owner (n, A), weight (n, A)."""
    height, width = box[0].shape[1] * STRIDES[0], box[0].shape[2] * STRIDES[0]
    points, strides = anchors_of(height, width)
    bins, logits = flatten(box), flatten(cls)
    boxes = decode(bins, points)
    n, count, nc = logits.shape
    found = [assign(logits[i].detach().sigmoid(), boxes[i].detach() * strides[:, None],
                    points * strides[:, None], gts[i]) for i in range(n)]
    owner, weight = (torch.stack(t) for t in zip(*found))
    target = torch.zeros_like(logits)
    for i in range(n):
        for a in (owner[i] >= 0).nonzero().flatten().tolist():
            target[i, a, int(gts[i][owner[i, a], 0])] = weight[i, a]
    s = max(float(target.sum()), 1.0)
    l_cls = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum") / s
    l_box, l_dfl = torch.zeros(()), torch.zeros(())
    for i in range(n):
        fg = owner[i] >= 0
        if not fg.any():
            continue
        goal = gts[i][owner[i, fg], 1:] / strides[fg, None]
        w = weight[i, fg]
        l_box = l_box + ((1 - ciou(boxes[i, fg], goal)) * w).sum() / s
        sides = torch.cat([points[fg] - goal[:, :2], goal[:, 2:] - points[fg]], 1)
        l_dfl = l_dfl + (dfl(bins[i, fg].view(-1, 4, BINS), sides).mean(-1) * w).sum() / s
    return gains[0] * l_box, gains[1] * l_cls, gains[2] * l_dfl, s, owner, weight


# ---- suppression (facts 6.3) -------------------------------------------------------------------------------

def plain_iou(a, b):
    """(n, 4), (m, 4) -> (n, m); nothing added to the union."""
    size = (torch.minimum(a[:, None, 2:], b[None, :, 2:]) -
            torch.maximum(a[:, None, :2], b[None, :, :2])).clamp(min=0)
    inter = size.prod(-1)
    area = lambda t: (t[:, 2:] - t[:, :2]).prod(-1)
    return inter / (area(a)[:, None] + area(b)[None] - inter)


def nms(box, cls, conf=0.001, iou=0.7, max_nms=30000, max_det=300, agnostic=False):
    """Per image detections (count, 6): x1 y1 x2 y2 score class, best first."""
    height, width = box[0].shape[1] * STRIDES[0], box[0].shape[2] * STRIDES[0]
    points, strides = anchors_of(height, width)
    boxes, scores = decode(flatten(box), points) * strides[:, None], flatten(cls).sigmoid()
    out = []
    for b, s in zip(boxes, scores):
        anchor, label = (s > conf).nonzero().unbind(1)
        value = s[anchor, label]
        order = value.argsort(descending=True, stable=True)[:max_nms]
        rows = torch.cat([b[anchor[order]], value[order, None], label[order, None].float()], 1)
        same = torch.ones(len(rows), len(rows)) if agnostic else (rows[:, None, 5] == rows[None, :, 5])
        hit = (plain_iou(rows[:, :4], rows[:, :4]) > iou) & same.bool()
        kept = []
        for i in range(len(rows)):
            if not any(hit[k, i] for k in kept):
                kept.append(i)
        out.append(rows[kept[:max_det]])
    return out


# ---- average precision (facts 6.4, 6.5) --------------------------------------------------------------------

def match(dets, gts):
    """True positives (count, 10) of one image's detections (best first) at IoU 0.5, 0.55, .. 0.95."""
    correct = np.zeros((len(dets), 10), dtype=bool)
    if len(dets) == 0 or len(gts) == 0:
        return correct
    d, g = torch.from_numpy(dets), torch.from_numpy(gts)
    size = (torch.minimum(d[:, None, 2:4], g[None, :, 3:5]) -
            torch.maximum(d[:, None, :2], g[None, :, 1:3])).clamp(min=0)
    inter = size.prod(-1)
    areas = (d[:, 2:4] - d[:, :2]).prod(-1)[:, None] + (g[:, 3:5] - g[:, 1:3]).prod(-1)[None]
    iou = (inter / (areas - inter + 1e-7) * (d[:, None, 5] == g[None, :, 0])).numpy()
    best = iou.argmax(1)
    for t in range(10):
        gone = set()
        for i in range(len(dets)):
            if iou[i, best[i]] >= np.float32(0.5 + 0.05 * t) and best[i] not in gone:
                gone.add(best[i])
                correct[i, t] = True
    return correct


def curve_area(recall, precision):
    """Area under one class's curve, at 101 recalls, by trapezoids."""
    r = np.concatenate([[0.0], recall, [recall[-1] if len(recall) else 1.0], [1.0]])
    p = np.concatenate([[1.0], precision, [0.0], [0.0]])
    p = np.maximum.accumulate(p[::-1])[::-1]
    x = np.linspace(0, 1, 101)
    return np.trapezoid(np.interp(x, r, p), x)


def box_filter(y, fraction=0.1):
    width = round(len(y) * fraction * 2) // 2 + 1
    ends = np.ones(width // 2)
    return np.convolve(np.concatenate([ends * y[0], y, ends * y[-1]]), np.ones(width) / width, "valid")


def evaluate(correct, score, label, gt_label, nc):
    """precision, recall, mAP50, mAP50-95 over the classes with labels, and the classes' ten areas (nc, 10)."""
    order = np.argsort(-score, kind="stable")
    correct, score, label = correct[order], score[order], label[order]
    x = np.linspace(0, 1, 1000)
    area, present = np.zeros((nc, 10)), []
    p_curve, r_curve = np.zeros((nc, 1000)), np.zeros((nc, 1000))
    for c in range(nc):
        total = int((gt_label == c).sum())
        if total == 0:
            continue
        present.append(c)
        mine = label == c
        if not mine.any():
            continue
        hits = correct[mine].cumsum(0)
        recall = hits / (total + 1e-16)
        precision = hits / np.arange(1, mine.sum() + 1)[:, None]
        conf = score[mine].astype(np.float64)
        r_curve[c] = np.interp(-x, -conf, recall[:, 0], left=0)
        p_curve[c] = np.interp(-x, -conf, precision[:, 0], left=1)
        area[c] = [curve_area(recall[:, t], precision[:, t]) for t in range(10)]
    p, r, a = p_curve[present], r_curve[present], area[present]
    f1 = 2 * p * r / (p + r + 1e-16)
    at = box_filter(f1.mean(0)).argmax()
    return p[:, at].mean(), r[:, at].mean(), a[:, 0].mean(), a.mean(), area
