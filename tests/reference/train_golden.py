"""Writes tests/golden/train.safetensors: twenty steps of whole trainings on batches that our loaders made.

    SLUICE_BATCH_DUMP=/tmp/batches.safetensors build/tests/test_train_golden

writes the batches; make.py does that by itself. The same trainings stand in tests/test_train_golden.c. In float64;
with --float32 the difference that float32 makes in PyTorch is printed. Not every start would do: as initialised, a
yolo11n whose biases learn at 0.1 is chaotic, and float32 is 2e-2 from float64 after five steps in PyTorch itself.
"""
import sys

import numpy as np
import torch
from safetensors.numpy import load_file

import draws
import loss
import model
import store
import train

SIDE, EPOCHS = 96, 4
DEFAULTS = {"lr0": 0.01, "lrf": 0.01, "momentum": 0.937, "weight_decay": 0.0005, "warmup_epochs": 3.0,
            "warmup_momentum": 0.8, "warmup_bias_lr": 0.1, "cos_lr": False, "nbs": 16, "epochs": EPOCHS}
CASES = [("yolo11n", "SGD", {"optimizer": "SGD", "lr0": 0.003}), ("yolo11n", "AdamW", {"optimizer": "auto"}),
         ("yolov8n", "SGD", {"optimizer": "SGD", "cos_lr": True}),
         ("yolov8n", "AdamW", {"optimizer": "AdamW", "lr0": 0.001, "warmup_bias_lr": 0.01})]


def kept(key):
    """Tensors whose values at the end are compared: the first layer, an inner norm, a box and a class branch."""
    return key in ("model.0.conv.weight", "model.0.bn.weight", "model.0.bn.bias", "model.0.bn.running_mean",
                   "model.0.bn.running_var", "model.6.cv2.bn.weight") or key.endswith(("cv3.0.2.bias", "cv2.1.2.bias"))


def corners(rows):
    """Class, centre and size in parts of the side -> class and pixels x1 y1 x2 y2, in float32 as the trainer does."""
    half = rows[:, 3:5] / np.float32(2)
    low, high = (rows[:, 1:3] - half) * np.float32(SIDE), (rows[:, 1:3] + half) * np.float32(SIDE)
    return torch.from_numpy(np.concatenate([rows[:, :1], low, high], 1))


def start(name, nc):
    """Drawn weights, running statistics as of a new model; the head's boxes small (bias -bin / 2) and its classes rare,
    so that every term of the loss has a part from the first step on."""
    m = model.Detector(name, nc)
    state = {k: torch.from_numpy(v) for k, v in draws.state_of(m, name).items()
             if "running" not in k and "dfl" not in k}
    m.load_state_dict(state, strict=False)
    for i, stride in enumerate((8, 16, 32)):
        m.model[-1].cv2[i][2].bias.data[:] = torch.arange(64) % 16 * -0.5
        m.model[-1].cv3[i][2].bias.data.fill_(np.log(5 / nc / (640 / stride) ** 2))
    return m


def run(name, options, dump, dtype):
    images, labels, counts = dump["images"], dump["labels"], dump["counts"]
    steps, batch = counts.shape
    nc = int(dump["classes"][0])
    o = DEFAULTS | options | {"batch": batch, "steps": steps // EPOCHS, "images": steps // EPOCHS * batch, "nc": nc}
    t = train.Training(start(name, nc).to(torch.get_default_device(), dtype), o)
    items, said = [], []
    for k in range(steps):
        x = images[k].reshape(batch, SIDE, SIDE, 3).astype(np.float32) / np.float32(255)
        x = torch.from_numpy(x).to(torch.get_default_device(), dtype).permute(0, 3, 1, 2)
        gts = [corners(labels[k, i].reshape(-1, 5)[:counts[k, i]]).to(dtype) for i in range(batch)]

        def loss_of(net):
            box, cls = ([v.permute(0, 2, 3, 1) for v in maps] for maps in net(x))
            parts = loss.detect_loss(box, cls, [g.to(x.device) for g in gts])[:3]
            items.append([float(torch.as_tensor(p).detach()) for p in parts])
            return sum(parts) * batch

        said.append(t.step(loss_of))
    return t, np.array(items), np.array(said)


def main(to, path, float32=False):
    dump = load_file(path)
    out = {"digests": dump["digests"]}
    for name, optimizer, options in CASES:
        t, items, said = run(name, options, dump, torch.float64)
        prefix, before = f"{name}.{optimizer}.", start(name, int(dump["classes"][0])).state_dict()
        out[prefix + "items"], out[prefix + "schedule"] = items, said
        for word, m in (("last", t.model), ("ema", t.average.model)):
            for key, value in m.state_dict().items():
                if kept(key):
                    value = value.cpu().numpy()
                    out[f"{prefix}{word}.{key}"] = value.astype(np.float32)
                    out[f"{prefix}moved.{word}.{key}"] = np.array([np.abs(value - before[key].cpu().numpy()).max()])
        print(f"  {name} {optimizer}: loss {items[0].sum():.3f} -> {items[-1].sum():.3f}, "
              f"{t.average.updates} updates of {len(items)} steps")
        if float32:
            again = run(name, options, dump, torch.float32)[1]
            print(f"  {name} {optimizer}: float32 differs by {(np.abs(again - items) / items).max():.1e}")
    to.save("train", out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(store.Store(), sys.argv[1], "--float32" in sys.argv)
