#!/usr/bin/env python3
"""Writes the result of `weft_bench rpc --json FILE` as Markdown tables and as a picture.

    tools/performance_tables.py FILE                    prints the tables
    tools/performance_tables.py FILE --svg docs/pictures/performance.svg

Each table belongs to one mode of Weft. A cell against a peer is the ratio with its interval in
brackets; above 1, Weft is better. Against a floor of the machine it is the share that Weft reaches.
The picture has the ratios against torch.distributed.rpc.
"""

import argparse
import html
import json
import math
import pathlib
import sys

# Mode: (what the names of its rows end with, its peers).
MODES = {
    "weft": ("", ["torch shm", "memcpy", "small call"]),
    "weft blocking": (", blocking", ["futex", "small call"]),
    "weft tcp": (", tcp", ["torch uv", "grpc unary", "grpc stream", "raw tcp", "small call"]),
}
PICTURED = {"weft": "torch shm", "weft tcp": "torch uv"}
COLOURS = {"weft": "#1b6ca8", "weft tcp": "#8fb8d8"}


def mode_of(row):
    for mode, (ending, _) in MODES.items():
        if ending and row.endswith(ending):
            return mode, row[: -len(ending)]
    return "weft", row


def by_mode(results):
    """Returns mode -> row -> peer -> result, rows in the order of the file."""
    modes = {mode: {} for mode in MODES}
    for result in results:
        if result["peer"] == "none":
            continue
        mode, row = mode_of(result["row"])
        modes[mode].setdefault(row, {})[result["peer"]] = result
    return modes


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def quantity(value, unit):
    if unit == "calls/s":
        return f"{number(value / 1000)} k/s"
    if unit == "us" and value >= 1000:
        return f"{number(value / 1000)} ms"
    return f"{number(value)} {unit}"


def cell(result):
    if result is None:
        return ""
    return f"{number(result['ratio'])} [{number(result['low'])}, {number(result['high'])}]"


def table(rows, peers):
    peers = [peer for peer in peers if any(peer in results for results in rows.values())]
    lines = [f"| row | Weft | {' | '.join(peers)} |", "|---" * (2 + len(peers)) + "|"]
    for row, results in rows.items():
        first = next(iter(results.values()))
        cells = [row, quantity(first["weft"], first["unit"])]
        cells += [cell(results.get(peer)) for peer in peers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(modes):
    """Bars of the ratios on a logarithmic axis."""
    bars = []  # (row, mode, ratio)
    for row in modes["weft"]:
        for mode, peer in PICTURED.items():
            result = modes[mode].get(row, {}).get(peer)
            if result is not None and result["ratio"] > 0:
                bars.append((row, mode, result["ratio"]))
    if not bars:
        sys.exit("performance_tables: no picture, for the file has no row against torch")
    left, right, top, step = 170, 650, 50, 14
    height = top + step * len(bars) + 30
    highest = max(ratio for _, _, ratio in bars)
    decades = max(1, math.ceil(math.log10(highest)))

    def x(ratio):
        return left + (right - left) * max(0, math.log10(ratio * 2)) / (decades + math.log10(2))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="18" font-size="13">Times better than torch.distributed.rpc</text>',
    ]
    for i, (mode, peer) in enumerate(PICTURED.items()):
        out.append(f'<rect x="{10 + 190 * i}" y="26" width="10" height="10" fill="{COLOURS[mode]}"/>')
        out.append(f'<text x="{25 + 190 * i}" y="35">{mode}, against {peer}</text>')
    for tick in [0.5, 1] + [m * 10**d for d in range(decades + 1) for m in (2, 5, 10)]:
        if x(tick) > right + 1:
            continue
        colour = "#444" if tick == 1 else "#ddd"
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 6}" y2="{height - 22}" '
                   f'stroke="{colour}"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>')
    shown = None
    for i, (row, mode, ratio) in enumerate(bars):
        y = top + step * i
        if row != shown:
            out.append(f'<text x="{left - 8}" y="{y + 9}" text-anchor="end">{html.escape(row)}</text>')
        shown = row
        begin, end = sorted([x(1), x(ratio)])
        out.append(f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{step - 3}" '
                   f'fill="{COLOURS[mode]}"/>')
        out.append(f'<text x="{max(end, x(1)) + 4:.1f}" y="{y + 9}">{number(ratio)}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=pathlib.Path, help="from weft_bench rpc --json")
    parser.add_argument("--svg", type=pathlib.Path, help="writes the picture there")
    arguments = parser.parse_args()
    try:
        modes = by_mode(json.loads(arguments.file.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"performance_tables: {arguments.file}: {error!r}")
    for mode, rows in modes.items():
        if rows:
            print(f"### `{mode}`\n\n{table(rows, MODES[mode][1])}\n")
    if arguments.svg:
        arguments.svg.write_text(picture(modes))


if __name__ == "__main__":
    main()
