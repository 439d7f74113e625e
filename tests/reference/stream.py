"""Which sample stands where, and what is drawn for it: Philox, the order, and the geometry of one training cell.

The order and the keys of the draws are the project's own (design 4), the draws' meaning and their order within a
stream facts/yolo.md 5.3 to 5.8. A stream is keyed by (seed, epoch, position, purpose).
"""
import math

import cv2
import numpy as np

ORDER, MOSAIC, AFFINE, MIXUP, MIXUP_MOSAIC, MIXUP_AFFINE, HSV, FLIP = range(1, 9)
MASK = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & MASK, a >> 32 ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


class Draws:
    def __init__(self, seed, epoch, position, purpose):
        self.key = (seed & MASK, seed >> 32)
        self.counter = [purpose << 24, epoch, position & MASK, position >> 32]
        self.left = []

    def word(self):
        if not self.left:
            self.left = philox(self.counter, self.key)
            self.counter[0] += 1
        return self.left.pop(0)

    def unit(self):
        high, low = self.word() >> 5, self.word() >> 6
        return (high << 26 | low) / 2**53

    def between(self, lo, hi):
        return lo + (hi - lo) * self.unit()

    def below(self, n):
        """Without bias: products whose low half is below 2^32 mod n are drawn again."""
        while True:
            product = self.word() * n
            if product & MASK >= 2**32 % n:
                return product >> 32


def sample_at(seed, epoch, position, n):
    """A permutation of [0, n): six Feistel rounds over the bits that n - 1 has, walked until below n."""
    if n == 1:
        return 0
    bits, value = (n - 1).bit_length(), position % n
    while True:
        low_bits, high_bits = (bits + 1) // 2, bits // 2
        for number in range(6):
            low, high = value & (1 << low_bits) - 1, value >> low_bits
            mixed = philox((ORDER << 24, epoch, low, number), (seed & MASK, seed >> 32))[0]
            value = low << high_bits | (high ^ mixed) & (1 << high_bits) - 1
            low_bits, high_bits = high_bits, low_bits
        if value < n:
            return value


def partner(seed, epoch, position, n, draws):
    """One of the min(n, 1000) positions before this one, reaching into the epochs before."""
    back = 1 + draws.below(min(n, 1000))
    while back > position:
        epoch, position = (epoch - 1) & MASK, position + n
    return sample_at(seed, epoch, position - back, n)


def matrix(draws, o, width, height, side):
    """Canvas to output, and the drawn scale (facts/yolo.md 5.4)."""
    p, c, s, t = (np.eye(3) for _ in range(4))
    c[0, 2], c[1, 2] = -width / 2, -height / 2
    p[2, 0] = draws.between(-o["perspective"], o["perspective"])
    p[2, 1] = draws.between(-o["perspective"], o["perspective"])
    angle = draws.between(-o["degrees"], o["degrees"])
    scale = draws.between(1 - o["scale"], 1 + o["scale"])
    r = np.eye(3)
    r[:2] = cv2.getRotationMatrix2D((0, 0), angle, scale)
    s[0, 1] = math.tan(math.radians(draws.between(-o["shear"], o["shear"])))
    s[1, 0] = math.tan(math.radians(draws.between(-o["shear"], o["shear"])))
    t[0, 2] = draws.between(0.5 - o["translate"], 0.5 + o["translate"]) * side
    t[1, 2] = draws.between(0.5 - o["translate"], 0.5 + o["translate"]) * side
    return t @ s @ r @ p @ c, scale


def view(seed, epoch, position, n, side, o, sample, load, mosaic_purpose, affine_purpose):
    """One canvas: its samples in order of place, its centre (None without a mosaic), its matrix and scale."""
    draws, samples, centre = Draws(seed, epoch, position, mosaic_purpose), [sample], None
    width, height = load(sample)
    if o["mosaic_on"] and draws.unit() <= o["mosaic"]:
        yc, xc = (int(draws.between(side / 2, 3 * side / 2)) for _ in range(2))
        samples += [partner(seed, epoch, position, n, draws) for _ in range(3)]
        centre, width, height = (xc, yc), 2 * side, 2 * side
    m, scale = matrix(Draws(seed, epoch, position, affine_purpose), o, width, height, side)
    return {"samples": samples, "centre": centre, "matrix": m, "scale": scale}


def cell(seed, epoch, position, n, side, o, load):
    """All that is drawn for one training cell. load: sample -> its loaded width and height."""
    own = sample_at(seed, epoch, position, n)
    out = {"views": [view(seed, epoch, position, n, side, o, own, load, MOSAIC, AFFINE)], "mix": 1.0}
    draws = Draws(seed, epoch, position, MIXUP)
    if o["mosaic_on"] and o["mixup"] > 0 and draws.unit() <= o["mixup"]:
        other = partner(seed, epoch, position, n, draws)
        out["mix"] = sorted(draws.unit() for _ in range(63))[31]  # Beta(32, 32)
        out["views"].append(view(seed, epoch, position, n, side, o, other, load, MIXUP_MOSAIC, MIXUP_AFFINE))
    draws = Draws(seed, epoch, position, HSV)
    out["hsv"] = [draws.between(-1, 1) * o[k] for k in ("hsv_h", "hsv_s", "hsv_v")]
    draws = Draws(seed, epoch, position, FLIP)
    out["flip_y"], out["flip_x"], out["bgr"] = (draws.unit() < o[k] for k in ("flipud", "fliplr", "bgr"))
    return out
