"""Writes tests/golden/model_*.safetensors: yolo11n and yolov8n whole, on a batch of 64 px and one of 160 px, and
models.safetensors: what the ten models are made of.

In float64, from float32 draws (draws.py); tests/test_model_golden.c runs the same. Of each batch: raw head outputs in
training and inference, running statistics after one forward pass, gradients of every parameter, of a linear function
of the outputs and of the loss. Small tensors whole, of the others summaries (store.py).
"""
import numpy as np
import torch

import draws
import loss
import model
import store

NC = 5
# name: (images, side, boxes of each image as class and pixels x1 y1 x2 y2)
BATCHES = {
    "64": (4, 64, [[(0, 4, 6, 40, 52), (3, 30, 20, 60, 44), (1, 9, 40, 15, 46)],
                   [(4, 2, 3, 62, 60), (2, 34, 35, 58, 57)], [],
                   [(2, 1, 1, 30, 33), (2, 28, 4, 63, 31), (0, 3, 36, 33, 61), (1, 50, 50, 55, 58)]]),
    "160": (2, 160, [[(0, 11, 17, 99, 132), (3, 80, 41, 151, 118), (1, 20, 101, 27, 108), (4, 100, 3, 158, 60)],
                     [(2, 3, 2, 77, 81), (2, 70, 12, 157, 79), (1, 125, 125, 139, 147)]]),
}
# facts/yolo.md 1.1, with the frozen projection.
PARAMETERS = {"yolo11n": 2624080, "yolo11s": 9458752, "yolo11m": 20114688, "yolo11l": 25372160, "yolo11x": 56966176,
              "yolov8n": 3157200, "yolov8s": 11166560, "yolov8m": 25902640, "yolov8l": 43691520, "yolov8x": 68229648}


def sum_of_shapes(m):
    """FNV-1a, 64 bits, of the lines "name TAB shape" in order of the state dict."""
    h = 0xCBF29CE484222325
    for key, t in m.state_dict().items():
        for byte in f"{key}\t{'x'.join(map(str, t.shape)) or 'scalar'}\n".encode():
            h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def ten_models(to):
    out = {}
    for name, count in PARAMETERS.items():
        with torch.device("meta"):
            m = model.Detector(name, 80)
        counted = sum(p.numel() for p in m.parameters())
        assert counted == count, f"{name} has {counted} parameters, facts/yolo.md says {count}"
        out[name] = np.array([sum_of_shapes(m), counted, len(m.state_dict())], np.uint64).view(np.int64)
    to.save("models", out)


def nhwc(maps):
    return [t.permute(0, 2, 3, 1) for t in maps]


def named(box, cls):
    return {f"{kind}.{i}": t for kind, maps in (("box", box), ("cls", cls)) for i, t in enumerate(maps)}


def fresh(name):
    """The model with its drawn weights; the head's last biases as they are before training (facts/yolo.md 1.3)."""
    m = model.Detector(name, NC)
    state = {k: torch.from_numpy(v) for k, v in draws.state_of(m, name).items() if "dfl" not in k}
    m.load_state_dict(state, strict=False)
    for i, stride in enumerate((8, 16, 32)):
        m.model[-1].cv2[i][2].bias.data.fill_(2.0)
        m.model[-1].cv3[i][2].bias.data.fill_(np.log(5 / NC / (640 / stride) ** 2))
    return m.double().to(torch.get_default_device())


def batch_of(case):
    n, side, boxes = BATCHES[case]
    x = draws.octets(f"pixels/{case}", n * side * side * 3).reshape(n, side, side, 3) / np.float32(255)
    gts = [torch.tensor(rows, dtype=torch.float64).reshape(-1, 5) for rows in boxes]
    return torch.from_numpy(x).double().to(torch.get_default_device()).permute(0, 3, 1, 2), gts


def backward(m, x, gts, case, kind, out):
    m.zero_grad()
    box, cls = map(nhwc, m.train()(x))
    if kind == "loss":
        items = loss.detect_loss(box, cls, gts)[:4]
        out["items"] = np.array([float(torch.as_tensor(v).detach()) for v in items], np.float32)
        (sum(items[:3]) * len(x)).backward()
    else:
        sum((t * torch.from_numpy(draws.draw(f"dy/{case}/{k}", tuple(t.shape))).to(t.device)).sum()
            for k, t in named(box, cls).items()).backward()
    store.put_gradients(out, [(f"{kind}.{k}", p.grad) for k, p in m.named_parameters() if p.requires_grad],
                        lambda g: 1100 if g.ndim == 1 else 0)
    return box, cls


def whole(name, case, to):
    x, gts = batch_of(case)
    m, out = fresh(name), {}
    with torch.no_grad():
        for key, t in named(*map(nhwc, m.eval()(x))).items():
            store.put(out, "eval." + key, t, 1 << 15)
    box, cls = backward(m, x, gts, case, "linear", out)
    for key, t in named(box, cls).items():
        out["train." + key] = t.float()
    for key, b in m.named_buffers():
        if "running" in key and (".bn." in key and ("model.0." in key or "model.10." in key or "cv3" in key)):
            out["stat." + key] = b.float()
    backward(fresh(name), x, gts, case, "loss", out)
    to.save(f"model_{name}_{case}", out)


def main(to):
    ten_models(to)
    for name in ("yolo11n", "yolov8n"):
        for case in BATCHES:
            whole(name, case, to)


if __name__ == "__main__":
    main(store.Store())
