"""Graphs in layers, one class each: RecordedGraph has tensors and operations, PlannedGraph turns them into
plans, ExecutableGraph runs the plans, and Graph adds diagrams, text and saving."""

from weft.graphs.graph import Graph

__all__ = ["Graph"]
