"""Everything that measures Weft: `python -m benchmarks` times cases with the sizes of real networks, and each
script `python -m benchmarks.<name>` measures one thing, such as the host's cost. `results/` has the committed
tables; docs/benchmark.md is the manual."""
