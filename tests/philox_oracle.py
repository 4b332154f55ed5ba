"""Philox4x64-10 in Python's integers, after Salmon and others 2011, and its published answers."""

_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_MASK = 2**64 - 1

#: Counter, key and answer of Random123's file of known answers (kat_vectors).
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (_MASK,) * 4,
        (_MASK,) * 2,
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


def philox(counter, key):
    """Return four numbers of 64 bits."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> 64) ^ b ^ k, second & _MASK, (first >> 64) ^ d ^ m, first & _MASK
        k, m = (k + _WEYL[0]) & _MASK, (m + _WEYL[1]) & _MASK
    return a, b, c, d


def words(seed, site, step, count, rank=0):
    """Return so many words of 32 bits, as `lit_gelu.tasks.keyed_noise` says that they are numbered."""
    found = []
    for block in range(-(-count // 8)):
        for number in philox((1 + block, step % 2**64, rank, 0), (seed % 2**64, site)):
            found += [number % 2**32, number >> 32]
    return found[:count]
