"""The training step of this statement in PyTorch, timed as fast as PyTorch's users have it: a line of JSON a case.

    python tests/reference/bench_step.py --model yolo11m --batch 8 --imgsz 2048 --sluice build/bin/sluice

Model from model.py, loss of loss.py in vectorised float32 (held against it first, else nothing is timed), SGD with
Nesterov momentum in three groups, clip 10, moving average of every float tensor. The batch lies on the device as bytes.
Cases, each autocast over float32 weights:

    fp16, bf16                   eager as it comes: NCHW, no autotuning; fp16 with GradScaler
    fp16-tuned, bf16-tuned       channels_last, cudnn.benchmark, fused SGD
    fp16-compile, bf16-compile   the same with the model through torch.compile
    fp16-graphs, bf16-graphs     the same with torch.compile's CUDA graphs (mode="reduce-overhead")
    fp32                         eager, TF32 off

--sluice runs `sluice bench step` on the same numbers of images, pixels, classes and boxes, and closes with the ratios.
"""
import argparse
import gc
import json
import math
import signal
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

import loss as statement
import model as models
import train

CASES = ["fp16", "fp16-tuned", "bf16", "bf16-tuned", "bf16-compile", "fp16-compile", "bf16-graphs", "fp16-graphs"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
WORST = 1e-4  # of the largest number, vectorised loss against the statement


# ---- the loss, all images and boxes at once -----------------------------------------------------------------

class Loss:
    """As loss.detect_loss. gt: (n, boxes, 5) class x1 y1 x2 y2 in pixels, rows of zeros where there are fewer."""

    def __init__(self, side, device):
        with torch.device("cpu"):
            points, strides = statement.anchors_of(side, side)
        self.points, self.strides = points.to(device), strides.to(device)[:, None]
        self.bins = torch.arange(statement.BINS, dtype=torch.float32, device=device)

    def decode(self, bins):
        n, a, _ = bins.shape
        left, top, right, bottom = (bins.view(n, a, 4, -1).softmax(-1) @ self.bins).unbind(-1)
        x, y = self.points.unbind(-1)
        return torch.stack([x - left, y - top, x + right, y + bottom], -1)

    @torch.no_grad()
    def assign(self, scores, boxes, gt):
        """scores (n, A, nc), boxes (n, A, 4) in pixels -> owner, weight (n, A) and whether an anchor has one."""
        points = self.points * self.strides
        n, most = gt.shape[:2]
        label, corners = gt[..., 0].long(), gt[..., 1:]
        low, high = corners[..., :2], corners[..., 2:]
        small, middle = high - low < statement.STRIDES[0], (low + high) / 2
        low = torch.where(small, middle - statement.STRIDES[1] / 2, low)[:, :, None]
        high = torch.where(small, middle + statement.STRIDES[1] / 2, high)[:, :, None]
        inside = ((points - low > 1e-9) & (high - points > 1e-9)).all(-1) & (corners.sum(-1) > 0)[..., None]
        overlap = statement.ciou(corners[:, :, None], boxes[:, None]).clamp(min=0) * inside
        chance = scores.transpose(1, 2).gather(1, label[..., None].expand(-1, -1, scores.shape[1]))
        align = chance.pow(statement.ALPHA) * overlap.pow(statement.BETA) * inside
        best = align.topk(min(statement.TOPK, align.shape[-1]), -1).indices
        chosen = torch.zeros_like(inside).scatter_(-1, best, True) & inside
        first = torch.zeros_like(inside).scatter_(1, overlap.argmax(1, keepdim=True), True)
        chosen = torch.where(chosen.sum(1, keepdim=True) > 1, first, chosen)
        mine = align * chosen
        factor = (overlap * chosen).amax(-1, keepdim=True) / (mine.amax(-1, keepdim=True) + 1e-9)
        return chosen.float().argmax(1), (mine * factor).sum(1), chosen.any(1)

    def __call__(self, box, cls, gt):
        bins, logits = statement.flatten(box).float(), statement.flatten(cls).float()
        boxes = self.decode(bins)
        owner, weight, found = self.assign(logits.detach().sigmoid(), boxes.detach() * self.strides, gt)
        mine = gt.gather(1, owner[..., None].expand(-1, -1, 5))
        target = torch.zeros_like(logits).scatter_(-1, mine[..., :1].long(), (weight * found)[..., None])
        s = target.sum().clamp(min=1)
        l_cls = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum") / s
        w, goal = weight[found], (mine[..., 1:] / self.strides)[found]
        points = self.points.expand(len(owner), -1, -1)[found]
        l_box = ((1 - statement.ciou(boxes[found], goal)) * w).sum() / s
        sides = torch.cat([points - goal[:, :2], goal[:, 2:] - points], 1)
        l_dfl = (statement.dfl(bins[found].view(-1, 4, statement.BINS), sides).mean(-1) * w).sum() / s
        g = statement.GAINS
        return g[0] * l_box, g[1] * l_cls, g[2] * l_dfl


def apart(a, b):
    """Largest difference over the largest number."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def draw_case(seed, side, counts, nc):
    """Head outputs and boxes whose assignment no rounding decides."""
    while True:
        torch.manual_seed(seed)
        maps = [(len(counts), side // s, side // s) for s in statement.STRIDES]
        box = [torch.randn(*m, 64, dtype=torch.float64) for m in maps]
        cls = [torch.randn(*m, nc, dtype=torch.float64) - 2 for m in maps]
        gts = []
        for count in counts:
            low, size = torch.rand(count, 2) * side * 0.7, torch.rand(count, 2) * side * 0.25 + 4
            gts.append(torch.cat([torch.randint(nc, (count, 1)), low, low + size], 1).double())
        points, strides = statement.anchors_of(side, side)
        boxes = statement.decode(statement.flatten(box), points.double()) * strides[:, None]
        scores = statement.flatten(cls).sigmoid()
        gap = min(statement.near_ties(scores[i], boxes[i], points.double() * strides[:, None], g)
                  for i, g in enumerate(gts) if len(g))
        if gap > 1e-3:
            return box, cls, gts
        seed += 1000


def check_loss(device):
    """Items and gradients against the statement in float64; the largest difference. Items are of a size, so each is
    compared with itself, and a gradient with the largest of its level."""
    worst, nc = 0.0, 5
    for seed, side, counts in ((1, 128, (3, 1)), (2, 160, (0, 5, 2)), (3, 96, (8,))):
        box, cls, gts = draw_case(seed, side, counts, nc)
        padded = torch.zeros(len(counts), max(counts), 5)
        for i, g in enumerate(gts):
            padded[i, :len(g)] = g.float()
        sides = []
        for fast in (False, True):
            b, c = ([t.clone().to(device if fast else "cpu", torch.float32 if fast else torch.float64)
                     .requires_grad_() for t in maps] for maps in (box, cls))
            items = (Loss(side, device)(b, c, padded.to(device)) if fast
                     else statement.detect_loss(b, c, gts)[:3])
            sum(items).backward()
            sides.append([*items, *(t.grad for t in b + c)])
        for slow, quick in zip(*sides):
            worst = max(worst, apart(quick, slow))
    return worst


# ---- a step --------------------------------------------------------------------------------------------------

class Average:
    """Of every floating tensor, as train.Average, in one call of each kind."""

    def __init__(self, net):
        floats = lambda: [t.detach() for t in net.state_dict().values() if t.is_floating_point()]
        self.now, self.updates = floats(), 0
        self.mean = [t.clone() for t in self.now]

    @torch.no_grad()
    def update(self):
        self.updates += 1
        d = 0.9999 * (1 - math.exp(-self.updates / 2000))
        torch._foreach_lerp_(self.mean, self.now, 1 - d)


def batch_of(args, device):
    """Bytes and boxes: sides from 16 pixels to a quarter of the image, as `sluice bench step` draws them."""
    torch.manual_seed(args.seed)
    images = torch.randint(256, (args.batch, 3, args.imgsz, args.imgsz), dtype=torch.uint8)
    most = max(args.imgsz / 4, 17)
    size = 16 * (most / 16) ** torch.rand(args.batch, args.boxes, 2)
    low = torch.rand(args.batch, args.boxes, 2) * (args.imgsz - size)
    gt = torch.cat([torch.randint(args.nc, (args.batch, args.boxes, 1)), low, low + size], -1)
    return images.to(device), gt.to(device)


class Step:
    def __init__(self, args, case, device):
        self.dtype, how = DTYPES[case.split("-")[0]], case.partition("-")[2]
        tuned, self.device = how != "", device
        torch.backends.cudnn.benchmark = tuned
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self.dtype != torch.float32
        torch.manual_seed(args.seed)
        net = models.Detector(args.model, args.nc).to(device).train()
        for i, stride in enumerate(statement.STRIDES):  # facts/yolo.md 1.3
            net.model[-1].cv2[i][2].bias.data.fill_(1.0)
            net.model[-1].cv3[i][2].bias.data.fill_(math.log(5 / args.nc / (640 / stride) ** 2))
        self.images, self.gt = batch_of(args, device)
        if tuned:
            net = net.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        self.graphs = how == "graphs"
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.run = net
        if how in ("compile", "graphs"):
            self.run = torch.compile(net, mode="reduce-overhead" if self.graphs else "default")
        decays = (5e-4 * args.batch * max(round(64 / args.batch), 1) / 64, 0.0, 0.0)
        groups = [{"params": p, "weight_decay": d} for p, d in zip(train.groups_of(net), decays)]
        self.optimiser = torch.optim.SGD(groups, lr=1e-4, momentum=0.937, nesterov=True,
                                         fused=True if tuned and device.type == "cuda" else None)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.average, self.loss = Average(net), Loss(args.imgsz, device)

    def __call__(self):
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        x = self.images.float() / 255
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            box, cls = self.run(x)
        items = self.loss([t.permute(0, 2, 3, 1) for t in box], [t.permute(0, 2, 3, 1) for t in cls], self.gt)
        self.scaler.scale(sum(items) * len(x)).backward()
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.parameters, 10.0)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        self.average.update()
        return items


# ---- timing --------------------------------------------------------------------------------------------------

class Clock:
    """Times between the ends of steps, in ms."""

    def __init__(self, device):
        self.cuda, self.marks = device.type == "cuda", []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def times(self):
        if self.cuda:
            torch.cuda.synchronize()
        pairs = zip(self.marks, self.marks[1:])
        return [a.elapsed_time(b) if self.cuda else (b - a) * 1e3 for a, b in pairs]


def measure(args, case, device):
    gib = 1 << 30
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step, clock, began = Step(args, case, device), Clock(device), time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(args.warmup - 1):
        step()
    clock.mark()
    for _ in range(args.steps):
        items = step()
        clock.mark()
    times = clock.times()
    ms = statistics.median(times)
    out = {"ms_per_step": round(ms, 3), "img_per_s": round(args.batch / ms * 1e3, 2),
           "ms_least": round(min(times), 3), "ms_most": round(max(times), 3), "first_step_s": round(first, 1)}
    if device.type == "cuda":
        out["peak_gib"] = round(torch.cuda.max_memory_allocated() / gib, 3)
        out["reserved_gib"] = round(torch.cuda.max_memory_reserved() / gib, 3)
    items = [float(i.detach()) for i in items]
    if not all(map(math.isfinite, items)):
        raise ArithmeticError(f"the loss is not finite: {items}")
    return out | {"loss": items}


def overdue(*_):
    raise TimeoutError("the time is over")


def case_line(args, case, device, until):
    """What one case comes to; a failure is a line too, and the next case goes on."""
    out = {"case": case, "model": args.model, "batch": args.batch, "imgsz": args.imgsz, "version": torch.__version__,
           "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    left = int(until - time.monotonic())
    if left < 1:
        return out | {"error": "left out: the time is over"}
    signal.signal(signal.SIGALRM, overdue)
    signal.alarm(left)
    try:
        return out | measure(args, case, device)
    except Exception as e:  # out of memory, what torch.compile cannot do
        return out | {"error": f"{type(e).__name__}: {e}".splitlines()[0][:300]}
    finally:
        signal.alarm(0)
        torch.compiler.reset()


def ours(args, device, seconds):
    words = [f"{k}={v}" for k, v in {"model": args.model, "batch": args.batch, "imgsz": args.imgsz, "nc": args.nc,
                                     "boxes": args.boxes, "steps": args.steps, "warmup": max(args.warmup, 4),
                                     "device": "cpu" if device.type == "cpu" else device.index or 0,
                                     "seconds": max(seconds, 1)}.items()]
    ended = subprocess.run([args.sluice, "bench", "step", *words], capture_output=True, text=True,
                           timeout=seconds + 60)
    if ended.returncode:
        return {"case": "sluice", "error": ended.stderr.strip().splitlines()[-1]}
    return {"case": "sluice"} | json.loads(ended.stdout)


def say(line):
    print(json.dumps(line), flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", default="yolo11m")
    for name, value in (("batch", 8), ("imgsz", 2048), ("nc", 80), ("boxes", 20), ("steps", 30), ("warmup", 10),
                        ("seconds", 480), ("seed", 0)):
        args.add_argument(f"--{name}", type=int, default=value)
    args.add_argument("--modes", default=",".join(CASES))
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args.add_argument("--sluice", help="the command to time beside it")
    args = args.parse_args()
    device, until = torch.device(args.device), time.monotonic() + args.seconds
    worst = check_loss(device)
    say({"case": "check", "loss_apart": worst, "allowed": WORST, "version": torch.__version__})
    if not worst <= WORST:
        return 1
    mine = ours(args, device, int(until - time.monotonic())) if args.sluice else None
    if mine:
        say(mine)
    lines = []
    for case in args.modes.split(","):
        lines.append(case_line(args, case, device, until))
        say(lines[-1])
    for line in lines:
        if mine and "ms_per_step" in mine and "ms_per_step" in line:
            say({"case": f"{line['case']} / sluice", "times": round(line["ms_per_step"] / mine["ms_per_step"], 3)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
