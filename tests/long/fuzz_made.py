"""Spoils what is valid, and makes what is anything; all of it from one random number generator."""

import json

GIANTS = (2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400)
LEAVES = (
    *(None, True, False, 0, 1, -1, 2, 7, 128, 1.5, -0.0, float("inf"), float("nan"), 1e308),
    *(
        "",
        "a",
        "npu:0",
        "float16",
        "🦀",
        "\ud800",
        "a\nb",
        "\x1b[2J",
        "[red]",
        "9" * 5000,
        "x" * 300,
    ),
)
TEXTS = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "9" * 20,
        "9" * 5000,
        "\uff11",
        "²",
        "npu:",
        ":",
        ";",
        ",",
        "-",
        "+",
    ),
    *("(", ")", "@", "=", "&", "?", "#", "/", "//", "%", "%00", "\0", "\n", "\t", "é", "\ud800"),
    *("all", "window", "float16", "e9", "inf", "nan", "KiB", "[", "]", "::1", "..", "~", "🦀"),
)


def anything(random, depth=3):
    """Return a value of JSON's types."""
    kind = random.random()
    if depth and kind < 0.15:
        return [anything(random, depth - 1) for _ in range(random.randrange(4))]
    if depth and kind < 0.3:
        return {str(random.choice(LEAVES)): anything(random, depth - 1) for _ in range(3)}
    if kind < 0.45:
        return random.choice((1, -1)) * random.choice(GIANTS)
    return random.choice(LEAVES)


def spoiled_json(random, value):
    """Return a copy of a value of JSON's types with one or a few places changed."""
    copy = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        copy = _with_a_change(random, copy)
    return copy


def _with_a_change(random, whole):
    parent, name, at = None, None, whole
    while isinstance(at, dict | list) and at and (parent is None or random.random() < 0.85):
        name = random.choice(list(at)) if isinstance(at, dict) else random.randrange(len(at))
        parent, at = at, at[name]
    if parent is None:
        return anything(random)
    change = random.random()
    if change < 0.2:
        del parent[name]
    elif change < 0.3 and isinstance(parent, dict):
        parent[random.choice(("", name.upper(), f"{name} ", "extra"))] = parent.pop(name)
    elif change < 0.4 and isinstance(parent, list):
        parent.append(at)
    elif change < 0.5 and isinstance(at, int | float) and abs(at) < GIANTS[0]:
        parent[name] = at * random.choice((-1, 0, 2, 1000, 10**9, 0.5))
    elif change < 0.55:
        parent[name] = [at]
    else:
        parent[name] = anything(random)
    return whole


def spoiled_bytes(random, raw):
    """Return bytes like `raw`: some flipped, cut, repeated, put in or taken from elsewhere."""
    raw = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(raw) + 1)
        change = random.random()
        if change < 0.35 and at < len(raw):
            raw[at] ^= 1 << random.randrange(8)
        elif change < 0.5:
            del raw[at:]
        elif change < 0.6:
            del raw[at : at + random.choice((1, 2, 8, 64))]
        elif change < 0.75:
            raw[at:at] = random.choice((b"\0", b"\xff\xfe", b"9" * 30, b"[" * 9, b'"', b"\n", b"}"))
        elif change < 0.85:
            start = random.randrange(len(raw) + 1)
            raw[at:at] = raw[start : start + random.choice((1, 8, 64))]
        else:
            raw[at : at + 8] = random.randbytes(8)
    return bytes(raw)


def spoiled_text(random, text):
    """Return a text like `text`, with parts left out, doubled, or put in."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(text) + 1)
        end = at + random.choice((0, 0, 1, 2, 5))
        text = text[:at] + random.choice((*TEXTS, text[at:end] * 2, text[::-1][:3])) + text[end:]
    return text


def any_text(random):
    """Return a text of parts that mean something somewhere."""
    return "".join(random.choice(TEXTS) for _ in range(random.randrange(8)))


def file_of(random, content, path):
    """Write `content`, of JSON's types: its values spoiled, its bytes, both or neither."""
    kind = random.random()
    text = json.dumps(content if kind < 0.1 else spoiled_json(random, content))
    raw = text.encode()
    if kind > 0.8:
        raw = spoiled_bytes(random, raw)
    elif kind > 0.79:
        raw = random.choice((b"", b"[" * 100_000, b"{" * 9, b"1" * 5000, random.randbytes(50)))
    path.write_bytes(raw)
    return path
