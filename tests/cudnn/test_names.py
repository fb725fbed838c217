"""Names, arguments, positional order and defaults are those of cuDNN's frontend; differences are in one
table, with reasons."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import weft
import weft.cudnn as cudnn
from weft.cudnn.differences import DIFFERENCES, EXTRAS
from weft.cudnn.grouped import METHODS
from weft.cudnn.rotary import COMPOSED
from weft.cudnn.table import MATMUL, POINTWISE, STRUCTURED

FACTS = json.loads(Path(__file__).with_name("frontend_names.json").read_text())
TAIL = ["name", "compute_data_type", "out_dims"]


def shown(function: Any) -> str:
    """Formats a signature like the recorded facts."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "kw "}
    words = []
    for p in list(inspect.signature(function).parameters.values())[1:]:
        default = "" if p.default is inspect.Parameter.empty else f"={p.default!r}"
        words.append(stars.get(p.kind.name, "") + p.name + default)
    return ", ".join(words)


def positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [p.name for p in list(inspect.signature(function).parameters.values())[1:] if p.kind in kinds]


def differences_of_methods() -> list[str]:
    found = []
    for name, wanted in FACTS["pygraph"].items():
        own = inspect.getattr_static(cudnn.pygraph, name, None)
        if own is None:
            found.append(f"pygraph.{name}: missing")
        elif wanted == "property":
            found += [] if isinstance(own, property) else [f"pygraph.{name}: no property"]
        elif not wanted.startswith("*args"):
            found += [] if shown(own) == wanted else [f"pygraph.{name}({shown(own)}): cuDNN ({wanted})"]
        else:
            found += differences_of_operation(name, own, wanted)
    return found


def order_of(name: str) -> list[str]:
    """How cuDNN's operation takes its arguments: operands, then attributes."""
    if name in FACTS["pointwise"]:
        return FACTS["pointwise"][name].split()
    if name in FACTS["attention"]:
        return FACTS["attention"][name].split()
    facts = FACTS["structured"].get(name, {})
    return " ".join(
        facts.get(key, "") for key in ("inputs", "list_inputs", "attrs", "keyword_inputs")
    ).split()


def differences_of_operation(name: str, own: Any, wanted: str) -> list[str]:
    parameters = inspect.signature(own).parameters
    found = []
    if shown(own) == wanted:  # takes anything: a life cycle method, or one that refuses by name
        return found
    for key in TAIL:
        if f"kw {key}=" in wanted and key not in parameters:
            found.append(f"pygraph.{name}: no {key}")
    order = order_of(name)
    missing = [key for key in order if key not in parameters]
    if missing:
        found.append(f"pygraph.{name}: no {' '.join(missing)}")
    if positional(own) != order:
        found.append(f"pygraph.{name}: positional ({' '.join(positional(own))}), cuDNN ({' '.join(order)})")
    return found


def differences_of_enumerations() -> list[str]:
    found = []
    for name, members in FACTS["enums"].items():
        own = {member.name: int(member) for member in getattr(cudnn, name, ())}
        if own != members:
            found.append(f"{name}: {dict(own.items() ^ members.items())}")
    return found


def differences_of_results() -> list[str]:
    return [
        f"pygraph.{name}: results {' '.join(row.results)}, cuDNN {FACTS['structured'][name]['outputs']}"
        for name, row in STRUCTURED.items()
        if " ".join(row.results) != FACTS["structured"][name]["outputs"]
    ]


def differences() -> list[str]:
    """Lists every difference, one sentence each."""
    found = [f"cudnn.{name}: missing" for name in FACTS["module"] if not hasattr(cudnn, name)]
    found += [f"Tensor.{name}: missing" for name in FACTS["tensor"] if not hasattr(cudnn.Tensor, name)]
    return [*found, *differences_of_enumerations(), *differences_of_methods(), *differences_of_results()]


def test_what_differs_is_in_the_table_with_its_reason() -> None:
    found = differences()
    print("\n".join(found))
    assert set(found) == set(DIFFERENCES)
    assert all(reason.endswith(".") for reason in DIFFERENCES.values())


def test_wefts_methods_take_what_the_rows_say() -> None:
    for name, row in {**POINTWISE, **STRUCTURED, "matmul": MATMUL}.items():
        method = METHODS.get(name) or getattr(weft.Graph, name, None) or COMPOSED[name]
        wanted = {*row.operands, *row.attributes, "name", "compute_data_type"}
        assert wanted <= inspect.signature(method).parameters.keys(), name


def test_names_that_cudnn_lacks_are_in_the_table() -> None:
    own = {name for name in cudnn.__all__ if name not in (*FACTS["module"], *FACTS["enums"])}
    assert own == set(EXTRAS)


@pytest.mark.parametrize("name", ["nodes", "plans", "tensors", "context", "selected_engine"])
def test_properties_can_be_asked_before_anything_is_built(name: str) -> None:
    g = cudnn.pygraph(handle=cudnn.create_handle("cpu"), io_data_type=cudnn.data_type.FLOAT)
    g.neg(g.tensor([2], [1]))
    getattr(g, name)


if __name__ == "__main__":
    print("\n".join(differences()) or "nothing differs")
