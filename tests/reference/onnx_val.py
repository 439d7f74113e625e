"""mAP of an exported model on a data set, with nothing of the program's own in it: OpenCV reads and letterboxes,
onnxruntime runs the model, suppression and average precision are those of loss.py.

    python tests/reference/onnx_val.py MODEL.onnx DATA.yaml [batch=32]

MODEL.onnx is one without nms=True. A fixed size takes every image in squares (`sluice val ... rect=False`), a dynamic
one in the shapes of a validation (facts/yolo.md 6.2; `sluice val` as it is). A .safetensors file in its place runs in
PyTorch (model.py), in the shapes of a validation. Classes meet by name. Needs onnxruntime, OpenCV and PyTorch.
"""
import ast
import math
import pathlib
import re
import sys

import cv2
import numpy as np
import torch

import image as picture
import loss as reference

KINDS = (".jpg", ".jpeg", ".png", ".bmp")
CONF, IOU, MAX_NMS, MAX_DET, PAD, STEP = 0.001, 0.7, 30000, 300, 0.5, 32


class Onnx:
    def __init__(self, path):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (given,) = self.session.get_inputs()
        said = self.session.get_modelmeta().custom_metadata_map
        sides = given.shape[2:]
        self.size = tuple(sides) if all(isinstance(s, int) for s in sides) else None
        self.batch = given.shape[0] if isinstance(given.shape[0], int) else None
        self.type = np.float16 if given.type == "tensor(float16)" else np.float32
        self.names = ast.literal_eval(said["names"])
        self.side = max(ast.literal_eval(said["imgsz"]))

    def __call__(self, x):
        n = len(x)
        if self.batch and n < self.batch:
            x = np.concatenate([x, np.zeros((self.batch - n, *x.shape[1:]), x.dtype)])
        return self.session.run(None, {"images": x.astype(self.type)})[0][:n].astype(np.float32)


class Torch:
    size = batch = None

    def __init__(self, path):
        import json

        import safetensors

        import model as statement
        with safetensors.safe_open(path, "pt") as f:
            said = f.metadata()
            weights = {k: f.get_tensor(k) for k in f.keys()}
        names = json.loads(said["names"])
        self.names = dict(enumerate(names)) if isinstance(names, list) else {int(k): v for k, v in names.items()}
        self.side = int(re.search(r"^imgsz: (\d+)", said.get("args", ""), re.M)[1])
        self.model = statement.Detector(said["model"], len(self.names)).eval()
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def __call__(self, x):
        box, cls = ([m.permute(0, 2, 3, 1) for m in maps] for maps in self.model(torch.from_numpy(x)))
        points, strides = reference.anchors_of(*x.shape[2:])
        corners = reference.decode(reference.flatten(box), points) * strides[:, None]
        middle, size = (corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]
        return torch.cat([middle, size, reference.flatten(cls).sigmoid()], 2).transpose(1, 2).numpy()


def files_of(data):
    """Of a file of plain `key: value` lines, names as a list or as lines `0: name`: the images of val, and the names."""
    said, names = {}, {}
    for line in data.read_text().splitlines():
        key, _, value = line.partition(":")
        if line[:1].isspace() and key.strip().isdigit():
            names[int(key)] = value.strip()
        else:
            said[key.strip()] = value.strip()
    if said.get("names"):
        names = dict(enumerate(n.strip() for n in said["names"].strip("[]").split(",")))
    folder = data.parent / said.get("path", ".") / said["val"]
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in KINDS), names


def labels_of(path):
    parts = list(path.parts)
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    text = pathlib.Path(*parts).with_suffix(".txt")
    rows = [line.split() for line in text.read_text().splitlines() if line.strip()] if text.exists() else []
    return np.unique(np.array(rows, np.float32).reshape(-1, 5), axis=0)


def groups(sizes, side, batch, size):
    """Images of one batch and its (height, width): in the order of their sides' ratio (facts/yolo.md 6.2)."""
    if size:
        return [(range(i, min(i + batch, len(sizes))), size) for i in range(0, len(sizes), batch)]
    ratio = np.array([h / w for w, h in sizes])
    order, out = np.argsort(ratio, kind="stable"), []
    for i in range(0, len(order), batch):
        some = order[i:i + batch]
        low, high = ratio[some].min(), ratio[some].max()
        shape = (high, 1) if high < 1 else (1, 1 / low) if low > 1 else (1, 1)
        out.append((some, tuple(math.ceil(s * side / STEP + PAD) * STEP for s in shape)))
    return out


def suppress(output):
    """One image's [4 + nc, anchors] -> rows x1, y1, x2, y2, score, class: every class above CONF counts, best first."""
    scores = torch.from_numpy(output[4:].T)
    middle, size = torch.from_numpy(output[:2].T), torch.from_numpy(output[2:4].T)
    boxes = torch.cat([middle - size / 2, middle + size / 2], 1)
    anchor, label = (scores > CONF).nonzero().unbind(1)
    value = scores[anchor, label]
    order = value.argsort(descending=True, stable=True)[:MAX_NMS]
    boxes, value, label = boxes[anchor[order]], value[order], label[order]
    alive = torch.ones(len(value), dtype=torch.bool)
    for c in label.unique():
        mine = (label == c).nonzero()[:, 0]
        hit, left = reference.plain_iou(boxes[mine], boxes[mine]) > IOU, torch.ones(len(mine), dtype=torch.bool)
        for i in range(len(mine)):
            if left[i]:
                left[i + 1:] &= ~hit[i, i + 1:]
        alive[mine] = left
    kept = alive.nonzero()[:MAX_DET, 0]
    return torch.cat([boxes[kept], value[kept, None], label[kept, None].float()], 1).numpy()


def main(path, data, batch):
    model = Torch(path) if path.endswith(".safetensors") else Onnx(path)
    files, names = files_of(data)
    number = {name: c for c, name in names.items()}
    renamed = np.array([number.get(model.names[c], -1) for c in range(len(model.names))])
    read = [cv2.imread(str(f))[:, :, ::-1] for f in files]
    loaded = [picture.load(p, model.side) for p in read]
    correct, score, label, wanted = [], [], [], []
    for some, (height, width) in groups([p.shape[1::-1] for p in read], model.side, model.batch or batch, model.size):
        boxed = [picture.letterbox(loaded[i], width, height) for i in some]
        outputs = model(np.stack(boxed).transpose(0, 3, 1, 2).astype(np.float32) / 255)
        for i, output in zip(some, outputs):
            h, w = loaded[i].shape[:2]
            r = min(height / h, width / w, 1)
            inner = round(w * r), round(h * r)
            left, top = round((width - inner[0]) / 2 - 0.1), round((height - inner[1]) / 2 - 0.1)
            rows = labels_of(files[i])
            middle, size = rows[:, 1:3] * inner + (left, top), rows[:, 3:5] * inner
            truth = np.concatenate([rows[:, :1], middle - size / 2, middle + size / 2], 1).astype(np.float32)
            found = suppress(output)
            found[:, 5] = renamed[found[:, 5].astype(int)]
            found = found[found[:, 5] >= 0]
            correct.append(reference.match(found, truth))
            score.append(found[:, 4])
            label.append(found[:, 5])
            wanted.append(rows[:, 0])
    score, wanted = np.concatenate(score), np.concatenate(wanted)
    p, r, map50, map_all, _ = reference.evaluate(np.concatenate(correct), score, np.concatenate(label), wanted, len(names))
    print(f"{path}: {len(files)} images, {len(wanted)} objects, {len(score)} detections: "
          f"P {p:.5f}, R {r:.5f}, mAP50 {map50:.5f}, mAP50-95 {map_all:.5f}")


if __name__ == "__main__":
    words = dict(w.split("=", 1) for w in sys.argv[3:])
    main(sys.argv[1], pathlib.Path(sys.argv[2]), int(words.get("batch", 32)))
