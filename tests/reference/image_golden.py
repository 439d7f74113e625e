"""Writes tests/golden/images.safetensors: what OpenCV makes of drawn pictures, step by step and as whole cells.

tests/test_image_golden.c has the same cases; a picture is draws.pixels of its name.
"""
import cv2
import numpy as np

import draws
import image
import stream

SIDE = 64
RESIZES = {"down": ("noise", 97, 61, 64, 41), "up": ("shades", 31, 50, 40, 64), "thin": ("blocks", 150, 33, 64, 15),
           "both": ("noise", 40, 90, 64, 64)}
# kind, width, height of the file; width and height of the cell
LETTERBOXES = {"wide": ("noise", 100, 70, 96, 64), "tall": ("shades", 57, 120, 64, 96),
               "small": ("noise", 33, 22, 64, 64), "tight": ("blocks", 90, 90, 64, 32)}
WARPS = {  # kind, width, height, matrix canvas -> output
    "affine_turn": ("noise", 80, 60, [0.9, 0.35, -7.3, -0.3, 1.1, 11.9, 0, 0, 1]),
    "affine_small": ("shades", 150, 120, [0.41, 0.05, 1.7, -0.07, 0.44, 4.2, 0, 0, 1]),
    "affine_large": ("blocks", 40, 40, [2.3, -0.6, -9.1, 0.5, 2.1, -20.3, 0, 0, 1]),
    "perspective_turn": ("noise", 80, 60, [0.9, 0.35, -7.3, -0.3, 1.1, 11.9, 0.0011, -0.0007, 1]),
    "perspective_small": ("shades", 150, 120, [0.5, 0.05, 1.7, -0.07, 0.6, 4.2, 0.0006, 0.0015, 1]),
}
JITTERS = {"zero": (0, 0, 0), "warm": (0.0131, 0.43, -0.29), "cold": (-0.0119, -0.66, 0.37), "far": (0.4, 0.9, -0.9)}
FILES = [("shades", 150, 110), ("blocks", 64, 96), ("noise", 100, 80), ("shades", 48, 40), ("blocks", 90, 96)]
SEED, EPOCHS, CELLS = 5, 3, 4  # the last epoch without mosaic
BASE = {"mosaic": 0.8, "mixup": 0.5, "degrees": 20, "translate": 0.1, "scale": 0.5, "shear": 5, "perspective": 0,
        "hsv_h": 0, "hsv_s": 0, "hsv_v": 0, "flipud": 0, "fliplr": 0, "bgr": 0}
SETS = {"plain": BASE,
        "all": BASE | {"perspective": 0.0008, "hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4, "flipud": 0.4, "fliplr": 0.5,
                       "bgr": 0.3}}


def labels_of(i):
    u = draws.draw(f"labels/{i}", (12, 4))
    half, quarter, eighth = np.float32(0.5), np.float32(0.25), np.float32(0.125)
    return np.stack([np.arange(12) % 2, half + quarter * u[:, 0], half + quarter * u[:, 1],
                     quarter + eighth * u[:, 2], quarter + eighth * u[:, 3]], 1).astype(np.float32)


def drawn_picture(name, kind, width, height):
    return draws.pixels(name, height, width, kind)


def cells(out):
    pictures = [drawn_picture(f"image/{i}", *f) for i, f in enumerate(FILES)]
    labels = [labels_of(i) for i in range(len(FILES))]
    size = lambda s: image.loaded_size(FILES[s][1], FILES[s][2], SIDE)
    for name, options in SETS.items():
        seen = []
        for epoch in range(EPOCHS):
            o = options | {"mosaic_on": epoch + 1 < EPOCHS}
            for position in range(CELLS):
                drawn = stream.cell(SEED, epoch, position, len(FILES), SIDE, o, size)
                drawn["jitters"] = any(o[k] for k in ("hsv_h", "hsv_s", "hsv_v"))
                pixels, rows = image.training_cell(drawn, pictures, labels, SIDE, o["perspective"] != 0)
                out[f"cell.{name}.{epoch}.{position}"] = pixels
                out[f"labels.{name}.{epoch}.{position}"] = rows.reshape(-1, 5)
                seen.append(len(drawn["views"]) * 10 + (drawn["views"][0]["centre"] is not None))
        assert {10, 11, 21} <= set(seen), f"{name}: too little variety: {seen}"


def main(to):
    cv2.setNumThreads(1)
    out = {}
    for name, (kind, w, h, nw, nh) in RESIZES.items():
        out[f"resize.{name}"] = image.resize(drawn_picture(f"resize/{name}", kind, w, h), nw, nh)
    for name, (kind, w, h, nw, nh) in LETTERBOXES.items():
        picture = image.load(drawn_picture(f"letterbox/{name}", kind, w, h), SIDE)
        out[f"letterbox.{name}"] = image.letterbox(picture, nw, nh)
    for name, (kind, w, h, m) in WARPS.items():
        out[f"warp.{name}"] = image.warp(drawn_picture(f"warp/{name}", kind, w, h), np.array(m).reshape(3, 3), SIDE,
                                         name.startswith("perspective"))
    for name, r in JITTERS.items():
        out[f"hsv.{name}"] = image.jitter(drawn_picture("hsv", "noise", 64, 48), r)
    cells(out)
    to.save("images", out)


if __name__ == "__main__":
    import store

    main(store.Store())
