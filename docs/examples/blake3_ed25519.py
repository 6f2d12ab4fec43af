"""BLAKE3 and the checking of Ed25519 signatures in plain Python, for verify.py: Python itself has neither."""
import hashlib

MASK = 0xFFFFFFFF
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
           (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def compress(cv, block, counter, length, flags):
    """BLAKE3's one building block; the first eight words of what it gives."""
    m = [int.from_bytes(block[i:i + 4], "little") for i in range(0, 64, 4)]
    v = list(cv) + list(IV[:4]) + [counter & MASK, counter >> 32, length, flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(COLUMNS):
            for word, r1, r2 in ((m[2 * i], 16, 12), (m[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & MASK
                x = v[d] ^ v[a]
                v[d] = (x >> r1 | x << 32 - r1) & MASK
                v[c] = (v[c] + v[d]) & MASK
                x = v[b] ^ v[c]
                v[b] = (x >> r2 | x << 32 - r2) & MASK
        m = [m[p] for p in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def blake3(data, key=IV, flags=0):
    def subtree(data, counter):
        """What is left to compress for these bytes: with the flag 8 if they are all there are."""
        if len(data) <= 1024:
            blocks = [data[i:i + 64] for i in range(0, len(data), 64)] or [b""]
            cv = key
            for i, block in enumerate(blocks):
                step = flags | (i == 0) | (2 if i == len(blocks) - 1 else 0)
                last = (cv, block.ljust(64, b"\0"), counter, len(block), step)
                cv = compress(*last) if i < len(blocks) - 1 else cv
            return last
        left = 1024
        while left * 2 < len(data):
            left *= 2
        both = compress(*subtree(data[:left], counter)), compress(*subtree(data[left:], counter + left // 1024))
        return key, b"".join(w.to_bytes(4, "little") for cv in both for w in cv), 0, 64, flags | 4
    cv, block, counter, length, step = subtree(data, 0)
    return b"".join(w.to_bytes(4, "little") for w in compress(cv, block, counter, length, step | 8))


def derive_key(context, data):
    key = blake3(context.encode(), flags=32)
    return blake3(data, [int.from_bytes(key[i:i + 4], "little") for i in range(0, 32, 4)], 64)


P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, -1, 2**255 - 19) % (2**255 - 19), pow(2, (2**255 - 20) // 4, 2**255 - 19)


def plus(a, b):
    """Adds two points of the curve, each as x, y, z and x·y/z."""
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    e, f = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2)
    g, h = 2 * t1 * t2 * D, 2 * z1 * z2
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n, point):
    total = (0, 1, 1, 0)
    while n:
        total, point, n = plus(total, point) if n & 1 else total, plus(point, point), n >> 1
    return total


def point(data):
    y, sign = int.from_bytes(data, "little") & (1 << 255) - 1, data[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * ROOT % P
    if y >= P or x * x % P != square or (x == 0 and sign):
        raise ValueError("not a point")
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


BASE = point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def signed_by(public, message, signature):
    try:
        a, r, s = point(public), point(signature[:32]), int.from_bytes(signature[32:], "little")
    except (ValueError, IndexError):
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    (x1, y1, z1, _), (x2, y2, z2, _) = times(s, BASE), plus(r, times(k, a))
    return len(signature) == 64 and s < L and (x1 * z2 - x2 * z1) % P == 0 == (y1 * z2 - y2 * z1) % P
