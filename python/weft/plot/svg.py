"""Building blocks for SVG: a page for light and dark backgrounds, and text of estimated width.

No library and no font is needed: widths are estimates that err on the wide side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

SANS = "ui-sans-serif,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

# The colour of each class on light and dark backgrounds.
_COLOURS: Mapping[str, tuple[str, str]] = {
    "page": ("fill:#ffffff;stroke:#e2e8f0", "fill:#0f172a;stroke:#1e293b"),
    "box": ("fill:#ffffff;stroke:#94a3b8", "fill:#1e293b;stroke:#64748b"),
    "pill": ("fill:#f1f5f9;stroke:#cbd5e1", "fill:#1e293b;stroke:#475569"),
    "out": ("fill:#e2e8f0;stroke:#64748b", "fill:#334155;stroke:#94a3b8"),
    "rule": ("stroke:#e2e8f0", "stroke:#334155"),
    "line": ("stroke:#64748b;fill:none", "stroke:#94a3b8;fill:none"),
    "tip": ("fill:#64748b", "fill:#94a3b8"),
    "text": ("fill:#0f172a", "fill:#f1f5f9"),
    "soft": ("fill:#64748b", "fill:#94a3b8"),
    "blue": ("fill:#dbeafe;stroke:#3b82f6", "fill:#172554;stroke:#3b82f6"),
    "green": ("fill:#dcfce7;stroke:#22c55e", "fill:#052e16;stroke:#22c55e"),
    "amber": ("fill:#fef3c7;stroke:#f59e0b", "fill:#451a03;stroke:#f59e0b"),
    "violet": ("fill:#ede9fe;stroke:#8b5cf6", "fill:#2e1065;stroke:#8b5cf6"),
    "rose": ("fill:#ffe4e6;stroke:#f43f5e", "fill:#4c0519;stroke:#f43f5e"),
    "teal": ("fill:#ccfbf1;stroke:#14b8a6", "fill:#042f2e;stroke:#14b8a6"),
    "grey": ("fill:#f1f5f9;stroke:#94a3b8", "fill:#1e293b;stroke:#64748b"),
}
_NARROW, _WIDE = set("iIjlt.,:;'|!()[]{} -fr"), set("mwMW@%")


def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """The approximate width of a text in pixels."""
    if mono:
        return 0.61 * size * len(text)
    units = sum(
        0.38 if c in _NARROW else 0.92 if c in _WIDE else 0.7 if c.isupper() or ord(c) > 0x2000 else 0.6
        for c in text
    )
    return units * size * (1.06 if bold else 1.0)


def ends(text: str, most: int) -> str:
    """The text, or its beginning and its end if it has more than `most` characters."""
    return text if len(text) <= most else text[: (most + 1) // 2] + "…" + text[len(text) - most // 2 :]


def cut(text: str, width: float, size: float, mono: bool = False, bold: bool = False) -> str:
    """The text, shortened in the middle until it fits, because the ends of long names distinguish them."""
    text = ends(text, max(int(width / (0.3 * size)), 4))  # lower bound on the width of a character
    shown = text
    length = len(text)
    while length > 2 and text_width(shown, size, mono, bold) > width:
        length -= 1
        shown = text[: (length + 1) // 2] + "…" + text[len(text) - length // 2 :]
    return shown


def text(
    x: float,
    y: float,
    words: str,
    size: float = 12,
    style: str = "text",
    anchor: str = "middle",
    mono: bool = False,
    bold: bool = False,
) -> str:
    """A line of text; y is its baseline."""
    attributes = f'class="w-{style}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
    attributes += ' font-weight="600"' if bold else ""
    attributes += f' font-family="{MONO}"' if mono else ""
    return f"<text {attributes}>{escape(words)}</text>"


def rectangle(x: float, y: float, width: float, height: float, style: str, round_: float = 6) -> str:
    """A rectangle with rounded corners."""
    return (
        f'<rect class="w-{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_:g}"/>'
    )


def path(data: str, style: str = "line", width: float = 1.3) -> str:
    """A line along SVG path data."""
    return f'<path class="w-{style}" d="{data}" stroke-width="{width:g}"/>'


def titled(title: str, *parts: str) -> str:
    """Elements with a tooltip."""
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def page(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """A complete SVG document."""
    light = "".join(f".w-{name}{{{colours[0]}}}" for name, colours in _COLOURS.items())
    dark = "".join(f".w-{name}{{{colours[1]}}}" for name, colours in _COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{SANS}" role="img" '
            'style="max-width:100%;height:auto">',
            f"<title>{escape(title)}</title>",
            f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
            rectangle(0.5, 0.5, width - 1, height - 1, "page", 10),
            *parts,
            "</svg>\n",
        ]
    )
