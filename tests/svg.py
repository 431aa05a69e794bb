"""Pictures as SVG: readable on a light and on a dark page, with a title and a description for who cannot see them."""

from __future__ import annotations

import html
from collections.abc import Iterable

STYLE = """
.page { fill: #ffffff; stroke: #d0d7de; }
text { font: 14px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
text.head { font-weight: 600; font-size: 16px; }
text.soft { fill: #59636e; font-size: 13px; }
.line { stroke: #d0d7de; fill: none; }
.d { fill: #59636e; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.theirs { fill: #fff1e5; stroke: #bc4c00; }
.a { stroke: #0969da; fill: #0969da; } .b { stroke: #8250df; fill: #8250df; } .c { stroke: #bc4c00; fill: #bc4c00; }
path.a, path.b, path.c, path.arrow { fill: none; stroke-width: 2.5; }
path.arrow { stroke: #59636e; stroke-width: 1.5; }
text.a, text.b, text.c { stroke: none; font-weight: 600; }
circle.number { fill: #0969da; } text.number { fill: #ffffff; font-weight: 700; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; stroke: #3d444d; }
  text { fill: #f0f6fc; } text.soft { fill: #9198a1; }
  .d { fill: #9198a1; }
  .line { stroke: #3d444d; } .box { fill: #151b23; stroke: #656c76; }
  .theirs { fill: #2a1a0e; stroke: #db6d28; }
  .a { stroke: #4493f8; fill: #4493f8; } .b { stroke: #ab7df8; fill: #ab7df8; }
  .c { stroke: #f0883e; fill: #f0883e; }
  path.arrow { stroke: #9198a1; }
  text.number { fill: #0d1117; } circle.number { fill: #4493f8; }
}
"""


def document(wide: float, high: float, title: str, description: str, body: Iterable[str]) -> str:
    """A picture of this size in pixels."""
    inside = "\n".join(body)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}"
  width="{wide:g}" height="{high:g}" role="img" aria-labelledby="title description">
<title id="title">{html.escape(title, quote=False)}</title>
<desc id="description">{html.escape(description, quote=False)}</desc>
<style>{STYLE}</style>
<rect class="page" x=".5" y=".5" width="{wide - 1:g}" height="{high - 1:g}" rx="8"/>
{inside}
</svg>
"""


def words(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    """Text whose baseline is at this point."""
    mark = (f' class="{name}"' if name else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text{mark} x="{x:g}" y="{y:g}">{html.escape(text, quote=False)}</text>'
