"""SVG output: diagrams of graphs and plans, and line charts."""

from weft.plot.diagram import plot

__all__ = ["plot"]
