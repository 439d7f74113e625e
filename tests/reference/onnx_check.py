"""What `sluice export` writes, run in onnxruntime and compared with what the program itself computes.

    SLUICE_ONNX_DUMP=/tmp/dump build/tests/test_onnx
    python tests/reference/onnx_check.py /tmp/dump build/bin/sluice

The dump holds models whose normalisation is far from new (gamma, beta, running mean and variance drawn anew), an
input, and the raw outputs of the program's own head, which are decoded here in float64 (loss.py). Every file also
passes onnx.checker with full_check and strict shape inference. Needs onnx and onnxruntime; exits 1 beyond a bound.
"""
import ast
import pathlib
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

import loss as reference
import model as statement

# Largest difference: boxes as a share of the longer side, scores. Half precision keeps 11 bits of each of some
# sixty convolutions' outputs. What leaves the head is off by a few of the last bit, a distance by that much of its
# level's stride: up to a quarter of a pixel, whatever the side is, which is most of the smallest side (64).
BOUNDS = {"float": (1e-3, 1e-3), "half": (1e-2, 5e-3)}
CONF, IOU, MAX_DET = 0.25, 0.7, 300


def ours(run):
    """The program's outputs as output0 has them: [n, 4 + nc, anchors], float64."""
    maps = {k: [torch.from_numpy(run[f"{k}.{i}"]).double() for i in range(3)] for k in ("box", "cls")}
    points, strides = reference.anchors_of(*run["input"].shape[2:])
    x1, y1, x2, y2 = (reference.decode(reference.flatten(maps["box"]), points.double()) *
                      strides[:, None].double()).unbind(-1)
    boxes = torch.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], 1)
    return torch.cat([boxes, reference.flatten(maps["cls"]).sigmoid().transpose(1, 2)], 1).numpy()


def suppress(output):
    """Rows (x1, y1, x2, y2, score, class) an image, best first: an anchor has its best class. And whether some
    choice was so close that rounding may make another: an overlap or a score beside its threshold, or two scores."""
    out, close = [], []
    for image in output:
        boxes, scores, label = image[:4].T, image[4:].max(0), image[4:].argmax(0)
        corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
        order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > CONF]
        iou = reference.plain_iou(torch.from_numpy(corners), torch.from_numpy(corners)).numpy()
        kept = []
        for i in order:
            if not any(label[k] == label[i] and iou[k, i] > IOU for k in kept):
                kept.append(i)
        kept = kept[:MAX_DET]
        out.append(np.concatenate([corners[kept], scores[kept, None], label[kept, None]], 1))
        pairs = (label[order][:, None] == label[order][None]) & ~np.eye(len(order), dtype=bool)
        alike = np.abs(scores[order][:, None] - scores[order][None]) < 1e-6
        close.append((np.abs(iou[np.ix_(order, order)] - IOU)[pairs] < 1e-4).any() or (alike & pairs).any() or
                     (np.abs(scores - CONF) < 1e-5).any())
    return out, close


def loads_in_torch(folder, name, run):
    """The file of weights in the three lines of the README, and the largest difference of raw outputs, of the
    largest (model.py)."""
    with torch.no_grad():
        model = statement.Detector(re.match("yolo[a-z0-9]+[nslmx]", name)[0], run["cls.0"].shape[3]).eval()
        weights = load_torch(folder / f"{name}.safetensors")
        model.load_state_dict(weights)
        maps = model(torch.from_numpy(run["input"]))
    gap = 0.0
    for kind, levels in zip(("box", "cls"), maps):
        for i, t in enumerate(levels):
            mine = run[f"{kind}.{i}"]
            gap = max(gap, np.abs(t.permute(0, 2, 3, 1).numpy() - mine).max() / np.abs(mine).max())
    return gap


def export(sluice, folder, name, options):
    path = folder / f"{name}.onnx"
    path.unlink(missing_ok=True)
    subprocess.run([sluice, "export", f"model={folder}/{name}.safetensors", "format=onnx", f"out={path}", *options],
                   check=True, stdout=subprocess.DEVNULL)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    size = path.stat().st_size
    path.unlink()
    return session, size


def metadata(session, nc, shape, dynamic, nms):
    meta = session.get_modelmeta().custom_metadata_map
    assert ast.literal_eval(meta["names"]) == {i: f"it's {i}" for i in range(nc)}, meta["names"]
    assert ast.literal_eval(meta["imgsz"]) == list(shape[2:]) and int(meta["stride"]) == 32, meta
    assert meta["task"] == "detect" and int(meta["batch"]) == shape[0] and int(meta["channels"]) == 3, meta
    args = ast.literal_eval(meta["args"])
    assert args["dynamic"] == dynamic and args["nms"] == nms and ast.literal_eval(meta["end2end"]) is False, args
    for side in ("description", "author", "version", "license"):
        assert meta[side], side


def compare_plain(got, want, side):
    """Largest differences of boxes (in pixels) and scores."""
    assert got.shape == want.shape and got.dtype == np.float32, (got.shape, want.shape, got.dtype)
    gap = np.abs(got - want)
    return gap[:, :4].max(), gap[:, 4:].max()


def compare_rows(got, want, close, most=MAX_DET):
    """The same of detections. Where a choice was close, it may be made otherwise: then rows of the same object are
    compared, and those without one are counted."""
    box, score, lost, rows = 0.0, 0.0, 0, 0
    for g, w, may_differ in zip(got, want, close):
        real = g[g[:, 4] > 0]
        assert g.shape == (most, 6) and not g[len(real):].any() and (np.diff(real[:, 4]) <= 0).all()
        rows += len(w)
        assert may_differ or len(real) == len(w), (len(real), len(w))
        for row in w:
            gap = np.abs(real - row)
            gap[real[:, 5] != row[5]] = np.inf
            near = gap[:, :4].max(1)
            k = near.argmin() if len(near) else 0
            if not len(near) or near[k] > 2:
                assert may_differ, row
                lost += 1
                continue
            box, score = max(box, near[k]), max(score, gap[k, 4])
    assert rows > 0 and lost <= rows / 4, (rows, lost)
    return box, score, rows, lost


def check(sluice, folder, name, worst):
    run = load_file(folder / f"{name}.run.safetensors")
    n, _, h, w = shape = run["input"].shape
    want, nc, side = ours(run), run["cls.0"].shape[3], max(shape[2:])
    suppressed, close = suppress(want)
    spread = want[:, 4:].max(1)
    print(f"{name}: {want.shape[2]} anchors, best scores {spread.min():.3f} to {spread.max():.3f}, "
          f"{sum(map(len, suppressed))} of {(spread > CONF).sum()} left by suppression, "
          f"{sum(close)} of {n} images with close choices")
    gap = loads_in_torch(folder, name, run)
    worst["torch"] = max(worst.get("torch", 0), gap)
    print(f"  loaded in PyTorch, raw outputs within {gap:.2g} of the largest")
    fixed = [f"imgsz={h},{w}", f"batch={n}"]
    variants = {
        "plain": fixed, "opset 20": fixed + ["opset=20"], "opset 22": fixed + ["opset=22"],
        "dynamic": ["imgsz=640", "dynamic=True"], "half": fixed + ["half=True"],
        "half dynamic": ["imgsz=640", "dynamic=True", "half=True"], "nms": fixed + ["nms=True"],
        "nms 5 rows": fixed + ["nms=True", "max_det=5"],
        "nms dynamic": ["imgsz=640", "dynamic=True", "nms=True"], "nms half": fixed + ["nms=True", "half=True"],
    }
    for title, options in variants.items():
        session, size = export(sluice, folder, name, options)
        half, dynamic, nms = "half" in title, "dynamic" in title, "nms" in title
        metadata(session, nc, (1, 3, 640, 640) if dynamic else shape, dynamic, nms)
        pixels = run["input"].astype(np.float16 if half else np.float32)
        box = score = 0.0
        note = ""
        for count in {1, n} if dynamic else {n}:
            got = session.run(["output0"], {"images": pixels[:count]})[0]
            if nms:
                most = 5 if "5 rows" in title else MAX_DET
                b, s, rows, lost = compare_rows(got, [rows[:most] for rows in suppressed[:count]],
                                                [True] * n if half else close, most)
                note = f", {rows} detections" + (f", {lost} decided otherwise" if lost else "")
            else:
                b, s = compare_plain(got, want[:count], side)
            box, score = max(box, b), max(score, s)
        if nms and nc == 1 and not half and most == MAX_DET:  # with one class the program's own suppression is the same
            own = [d[:c].astype(np.float64) for d, c in zip(run["dets"], run["counts"])]
            b, s, rows, _ = compare_rows(session.run(["output0"], {"images": pixels})[0], own, close)
            box, score, note = max(box, b), max(score, s), note + " (the program's own too)"
        bound = BOUNDS["half" if half else "float"]
        kind = ("half " if half else "float ") + ("nms" if nms else "raw")
        worst[kind] = tuple(map(max, worst.get(kind, (0, 0, 0)), (box / side, score, box)))
        good = box / side <= bound[0] and score <= bound[1]
        print(f"  {title:13} {size / 1e6:6.1f} MB  boxes {box:.2g} px, {box / side:.2g} of the side; scores "
              f"{score:.2g}{note}{'' if good else '  BEYOND THE BOUND'}")
        worst["bad"] = worst.get("bad", 0) + (not good)


def main():
    folder, sluice = pathlib.Path(sys.argv[1]), sys.argv[2]
    worst = {}
    for path in sorted(folder.glob("*.run.safetensors")):
        check(sluice, folder, path.name.removesuffix(".run.safetensors"), worst)
    bad, gap = worst.pop("bad"), worst.pop("torch")
    print(f"PyTorch: {gap:.2g} of the largest raw output")
    for kind, (share, score, box) in worst.items():
        print(f"{kind}: boxes {share:.2g} of the side ({box:.2g} px), scores {score:.2g}")
    return 1 if bad or gap > 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
