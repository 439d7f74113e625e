"""Image and label transforms, stated with OpenCV and NumPy (facts/yolo.md 5). Pictures are R G B uint8."""
import math

import cv2
import numpy as np

BORDER = 114


def loaded_size(width, height, side):
    r = side / max(width, height)
    return min(math.ceil(width * r), side), min(math.ceil(height * r), side)


def resize(picture, width, height):
    if (width, height) == picture.shape[1::-1]:
        return picture
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)


def load(picture, side):
    return resize(picture, *loaded_size(picture.shape[1], picture.shape[0], side))


def letterbox(picture, width, height):
    """A loaded picture in the middle of width x height, made smaller if it has to be, never larger."""
    h, w = picture.shape[:2]
    r = min(height / h, width / w, 1.0)
    inner = round(w * r), round(h * r)
    dw, dh = (width - inner[0]) / 2, (height - inner[1]) / 2
    return cv2.copyMakeBorder(resize(picture, *inner), round(dh - 0.1), round(dh + 0.1), round(dw - 0.1),
                              round(dw + 0.1), cv2.BORDER_CONSTANT, value=(BORDER,) * 3)


def tiles(sizes, centre, side):
    """Of the four pictures around a mosaic's centre: canvas rectangle (x1, y1, x2, y2) and offset of the picture."""
    (xc, yc), s, out = centre, 2 * side, []
    for place, (w, h) in enumerate(sizes):
        left, upper = place in (0, 2), place < 2
        x1, x2 = (max(xc - w, 0), xc) if left else (xc, min(xc + w, s))
        y1, y2 = (max(yc - h, 0), yc) if upper else (yc, min(yc + h, s))
        out.append(((x1, y1, x2, y2), (xc - w if left else xc, yc - h if upper else yc)))
    return out


def mosaic(pictures, centre, side):
    canvas = np.full((2 * side, 2 * side, 3), BORDER, np.uint8)
    for p, ((x1, y1, x2, y2), (ox, oy)) in zip(pictures, tiles([p.shape[1::-1] for p in pictures], centre, side)):
        canvas[y1:y2, x1:x2] = p[y1 - oy:y2 - oy, x1 - ox:x2 - ox]
    return canvas


def warp(canvas, m, side, perspective):
    args = {"dsize": (side, side), "borderValue": (BORDER,) * 3}
    return cv2.warpPerspective(canvas, m, **args) if perspective else cv2.warpAffine(canvas, m[:2], **args)


def mixup(a, b, r):
    return (a * r + b * (1 - r)).astype(np.uint8)


def jitter(picture, r):
    """r: draws times gains. Hue turns, saturation and value are scaled; no saturation stays none."""
    x = np.arange(256, dtype=np.float64)
    hue = ((x + r[0] * 180) % 180).astype(np.uint8)
    saturation = np.clip(x * (1 + r[1]), 0, 255).astype(np.uint8)
    value = np.clip(x * (1 + r[2]), 0, 255).astype(np.uint8)
    saturation[0] = 0
    h, s, v = cv2.split(cv2.cvtColor(picture, cv2.COLOR_RGB2HSV))
    turned = cv2.merge((cv2.LUT(h, hue), cv2.LUT(s, saturation), cv2.LUT(v, value)))
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB)


def move_boxes(rows, size, drawn, place, side, perspective):
    """Labels (class, cx, cy, w, h of the picture) of one tile -> (class, x1, y1, x2, y2) in output pixels."""
    out, canvas = [], 2 * side
    offset = tiles_offset(drawn, place, size, side)
    for cls, cx, cy, w, h in np.asarray(rows, np.float64):
        x1, x2 = (cx - w / 2) * size[0] + offset[0], (cx + w / 2) * size[0] + offset[0]
        y1, y2 = (cy - h / 2) * size[1] + offset[1], (cy + h / 2) * size[1] + offset[1]
        if drawn["centre"]:
            x1, x2, y1, y2 = (min(max(v, 0), canvas) for v in (x1, x2, y1, y2))
            if (x2 - x1) * (y2 - y1) <= 0:
                continue
        corners = drawn["matrix"] @ np.array([[x1, x2, x1, x2], [y1, y1, y2, y2], [1, 1, 1, 1]])
        corners = corners[:2] / corners[2] if perspective else corners[:2]
        nx1, ny1, nx2, ny2 = (min(max(v, 0), side) for v in (*corners.min(1), *corners.max(1)))
        w1, h1, w2, h2 = (x2 - x1) * drawn["scale"], (y2 - y1) * drawn["scale"], nx2 - nx1, ny2 - ny1
        if w2 > 2 and h2 > 2 and w2 * h2 / (w1 * h1 + 1e-16) > 0.1 and max(w2 / (h2 + 1e-16), h2 / (w2 + 1e-16)) < 100:
            out.append([cls, nx1, ny1, nx2, ny2])
    return out


def tiles_offset(drawn, place, size, side):
    if not drawn["centre"]:
        return 0, 0
    sizes = [size] * 4  # only the tile's own size matters for its place
    return tiles(sizes, drawn["centre"], side)[place][1]


def training_cell(drawn, pictures, labels, side, perspective):
    """The pixels and labels of stream.cell's draws; pictures and labels are those of the files."""
    shown, boxes = [], []
    for v in drawn["views"]:
        parts = [load(pictures[s], side) for s in v["samples"]]
        canvas = mosaic(parts, v["centre"], side) if v["centre"] else parts[0]
        shown.append(warp(canvas, v["matrix"], side, perspective))
        for place, (s, part) in enumerate(zip(v["samples"], parts)):
            boxes += move_boxes(labels[s], part.shape[1::-1], v, place, side, perspective)
    out = shown[0] if len(shown) == 1 else mixup(shown[0], shown[1], drawn["mix"])
    out = jitter(out, drawn["hsv"]) if drawn["jitters"] else out
    boxes = np.array(boxes, np.float64).reshape(-1, 5)
    if drawn["flip_y"]:
        out, boxes[:, [2, 4]] = out[::-1], side - boxes[:, [4, 2]]
    if drawn["flip_x"]:
        out, boxes[:, [1, 3]] = out[:, ::-1], side - boxes[:, [3, 1]]
    out = out[:, :, ::-1] if drawn["bgr"] else out
    centre, size = (boxes[:, 1:3] + boxes[:, 3:5]) / 2 / side, (boxes[:, 3:5] - boxes[:, 1:3]) / side
    return np.ascontiguousarray(out), np.concatenate([boxes[:, :1], centre, size], 1).astype(np.float32)
