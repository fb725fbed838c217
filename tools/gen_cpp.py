"""Generates include/weft/weft_operations.hpp, a part of the C++ frontend: its enumerations, a class of
attributes per method, and the methods of a graph. tools/gen.py calls it with the data that it has read.

Data comes from the library's description. The tables here contain only what is specific to C++: the operands
that are parameters of a method, and names that differ from Python's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATH = "include/weft/weft_operations.hpp"

Json = dict[str, Any]

INTERNAL_ENUMS = {"weftBackendAttributeName_t", "weftBackendAttributeType_t", "weftBackendDescriptorType_t"}
INTERNAL_ENUMS |= {"weftStatus_t", "weftSeverity_t"}
RENAMED_ENUMS = {"ReduceTensorOp_t": "ReductionMode_t"}

# The operands that are parameters of a C++ method, in its order; by default those without a default value.
NORM, NORM_BACKWARD = "input scale bias", "grad input scale"
OPERANDS = {
    "conv_wgrad": "loss image",
    "layernorm": NORM,
    "adalayernorm": NORM,
    "instancenorm": NORM,
    "groupnorm": NORM,
    "rmsnorm": "input scale",
    "batchnorm": NORM,
    "batchnorm_inference": "input mean inv_variance scale bias",
    "layernorm_backward": NORM_BACKWARD,
    "adalayernorm_backward": NORM_BACKWARD,
    "instancenorm_backward": NORM_BACKWARD,
    "groupnorm_backward": NORM_BACKWARD,
    "batchnorm_backward": NORM_BACKWARD,
    "rmsnorm_backward": "grad input scale inv_variance",
    "rng": "seed offset",
    "moe_grouped_matmul": "token weight first_token_offset token_index token_ks",
}
# Classes whose names differ from the method's.
CLASSES = {
    "bn_finalize": "BN_finalize",
    "dbn_weight": "DBN_weight",
    "paged_cache_load": "PagedCacheLoad",
    "adalayernorm": "AdaLayernorm",
    "adalayernorm_backward": "AdaLayernorm_backward",
}
# Methods that weft.hpp completes by hand; the generated class of their options is a base class.
COMPLETED = {"sdpa_fwd", "sdpa_bwd", "strided_slice", "resample", "rmsnorm_backward", "reduction"}
COMPLETED |= {"block_scale_quantize", "diagonal_band_mask"}
# Setters whose names differ from the argument's.
SETTERS = {
    "norm_forward_phase": "forward_phase",
    "resample.mode": "resampling_mode",
    "use_alibi_mask": "alibi_mask",
    "score_max": "logit_max",
    "dBias": "dbias",
    "dSink_token": "dsink_token",
    "softmax.stats_log2": "stats_use_log2",
    "sdpa_bwd.is_deterministic": "deterministic_algorithm",
}
# Results of getters for unset attributes, by the setter's name. Otherwise, enumerations return NOT_SET,
# booleans false, and numbers an empty std::optional.
DEFAULTS = {
    "convolution_mode": "ConvolutionMode_t::CROSS_CORRELATION",
    "reshape_mode": "ReshapeMode_t::VIEW_ONLY",
    "matmul.padding": "0.0",
}
# Enumerations whose getters also return an std::optional.
OPTIONAL = {"reduction.mode"}
# Setters of several operands at once, for classes that have all of them.
TOGETHER = {
    "previous_running_stats": "in_running_mean in_running_var momentum",
    "saved_mean_and_inv_variance": "mean inv_variance",
}
# Integer attributes that the C++ interface presents as an enumeration.
ENUM_ROWS = {"diagonal_alignment": "DiagonalAlignment_t"}
# Classes that also set the shape of the result.
SHAPED = {"rng", "reshape"}
# Results that are computed only if an operand is passed.
RESULTS_OF = {"out_mean": "in_running_mean", "out_var": "in_running_var"}
PHASED = {"layernorm", "adalayernorm", "instancenorm", "groupnorm", "rmsnorm"}

NUMBERS = {
    "INT64": "std::int64_t",
    "INT32": "std::int32_t",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "bool",
    "FRACTION": "weftFraction_t",
}
FORMS = {"unary": "x", "binary": "x b", "select": "x b t", "backward": "dy x", "index": "x"}


class Frame(NamedTuple):
    """The generator's input: the manifest and two functions of tools/gen.py."""

    manifest: Json
    short_members: Callable[[Json], list[tuple[str, int, str]]]
    is_statistic: Callable[[str], bool]


def write(frame: Frame) -> str:
    """The complete header."""
    methods = [
        (op, method)
        for op in frame.manifest["operations"]
        for method in op["methods"]
        if op["name"] != "pointwise"
    ]
    pointwise = next(op for op in frame.manifest["operations"] if op["name"] == "pointwise")
    parts = [HEAD, *enums(frame), *class_of_pointwise(frame, pointwise)]
    for op, method in methods:
        parts += attribute_class(frame, op, method)
    parts += ["} // namespace graph", "namespace detail {", *pointwise_operands(frame, pointwise)]
    parts += ["/** The operations of a graph, one method each. */", "class Operations : public Recorder {"]
    parts += ["public:", *method_of_any_mode()]
    for method in pointwise["methods"]:
        parts += pointwise_method(frame, pointwise, method)
    for op, method in methods:
        if method["name"] not in COMPLETED:
            parts += graph_method(frame, op, method)
    parts += ["};", "} // namespace detail", "} // namespace weft::frontend", "", "#endif"]
    return formatted("\n".join(parts) + "\n")


HEAD = """/* SPDX-License-Identifier: Apache-2.0 */
/* Generated by tools/gen.py from the C headers and weftDescribe. Do not edit.
 * The part of weft.hpp that the library describes itself: enumerations, attributes, operations. */
#ifndef WEFT_OPERATIONS_HPP
#define WEFT_OPERATIONS_HPP

#ifndef WEFT_HPP
#error "This is a part of weft.hpp. Include <weft/weft.hpp>."
#endif

namespace weft::frontend {
"""


def formatted(text: str) -> str:
    """Text formatted according to .clang-format."""
    program = Path(sys.executable).with_name("clang-format")
    command = [str(program if program.exists() else "clang-format"), f"--assume-filename={PATH}"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def comment(text: str) -> list[str]:
    """A /** */ comment, wrapped."""
    lines, line = [], "/**"
    for word in text.replace("*/", "* /").split():
        if len(line) + len(word) > 105:
            lines.append(line)
            line = "   "
        line += f" {word}"
    return [*lines, f"{line} */"]


# ---- Enumerations ------------------------------------------------------------------------------------------


def enum_name(enum: str) -> str:
    """The C++ name of a C enumeration."""
    name = re.sub(r"^weft(Backend)?", "", enum)
    return RENAMED_ENUMS.get(name, name)


def enums(frame: Frame) -> Iterator[str]:
    """Every enumeration that attributes accept."""
    for enum in frame.manifest["enums"]:
        if not enum["name"] or enum["name"] in INTERNAL_ENUMS:
            continue
        members = frame.short_members(enum)
        if not any(name == "NOT_SET" or value == -1 for name, value, _ in members):
            members.append(("NOT_SET", -1, "Not set: the default."))
        yield from comment(enum["doc"])
        yield f"enum class {enum_name(enum['name'])} : int {{"
        for name, value, doc in members:
            yield from comment(doc)
            yield f"{name} = {value},"
        yield "};"
    yield "namespace graph {"


def enum_of(frame: Frame, kind: str) -> str:
    """The C++ enumeration that attributes of a type accept; empty without one."""
    types = next(e for e in frame.manifest["enums"] if e["name"] == "weftBackendAttributeType_t")
    doc = next(m["doc"] for m in types["members"] if m["name"] == f"WEFT_TYPE_{kind}")
    named = {e["name"] for e in frame.manifest["enums"]}
    results = re.search(r"weft\w+_t", doc)
    return enum_name(results[0]) if results and results[0] in named else ""


# ---- Attributes --------------------------------------------------------------------------------------------


def rows_of(frame: Frame, op: Json, key: str) -> list[Json]:
    """The rows of a key, of the operation or of its parameters."""
    parameters = [d for d in frame.manifest["descriptors"] if d["kind"] == op["parameters"]]
    return [row for each in [op, *parameters] for row in each["rows"] if row["key"] == key]


def class_name(method: str) -> str:
    """The class of a method's attributes."""
    if method in COMPLETED:
        return f"{method[0].upper()}{method[1:]}_options"
    return f"{CLASSES.get(method, method[0].upper() + method[1:])}_attributes"


def operand_names(method: Json, op: Json, frame: Frame) -> list[str]:
    """The arguments of a method that are also parameters in C++."""
    if method["name"] in OPERANDS:
        return OPERANDS[method["name"]].split()
    return [a["name"] for a in method["arguments"] if a["default"] is None and is_operand(frame, op, a)]


def is_operand(frame: Frame, op: Json, argument: Json) -> bool:
    """True if an argument is a tensor that the operation reads."""
    rows = [row for key in argument["keys"] for row in rows_of(frame, op, key)]
    return any(row["role"] == "input" for row in rows)


def setter(frame: Frame, name: str, rows: list[Json], of: str) -> Iterator[str]:
    """The methods that set one argument; `rows` has one row for each attribute that it sets."""
    row, itself = rows[0], f"{of} &set_{name}"
    kind, doc = row["type"], row["doc"]
    if row["role"] in ("input", "output"):
        verb, one = ("give", "Operand") if row["role"] == "input" else ("receive", "Tensor")
        calls = [f'this->{verb}({r["attribute"]}, "{r["key"]}", values);' for r in rows]
        signatures = [("std::vector<Tensor>" if row["storage"] == "list" else one, calls)]
    elif kind in ("BACKEND_DESCRIPTOR", "VOID_PTR", "CHAR"):
        return
    elif row["key"] in ENUM_ROWS:
        stored = "static_cast<std::int64_t>(values)"
        call = f"this->put({row['attribute']}, WEFT_TYPE_{kind}, {stored});"
        signatures = [(ENUM_ROWS[row["key"]], [call])]
    else:
        signatures = list(value_signatures(frame, rows))
    yield from comment(doc)
    for taken, calls in signatures:
        given = taken if taken in NUMBERS.values() or taken.endswith("_t") else f"const {taken} &"
        yield f"{itself}({given} values) {{ {' '.join(calls)} return this->self(); }}"


def value_signatures(frame: Frame, rows: list[Json]) -> Iterator[tuple[str, list[str]]]:
    """The types that a value's setter accepts, with the calls that store them."""
    row = rows[0]
    kind, is_list = row["type"], row["storage"] != "value"
    enum = enum_of(frame, kind)
    taken = [enum] if enum else [NUMBERS[kind]]
    if kind == "FRACTION":
        taken.append("std::int64_t")
    for one in taken:
        stored = kind if one == taken[0] else "INT64"
        calls = [f"this->put({r['attribute']}, WEFT_TYPE_{stored}, values);" for r in rows]
        if row["key"] == "phase":
            calls.insert(0, f"this->keep_statistics(values == {enum}::TRAINING);")
        yield f"std::vector<{one}>" if is_list else one, calls
    if kind == "INT32" and is_list:
        yield f"{taken[0]}", [f"this->put({r['attribute']}, WEFT_TYPE_{kind}, values);" for r in rows]


def getter(frame: Frame, name: str, row: Json, method: str) -> Iterator[str]:
    """The method that returns the value passed to a setter."""
    kind = row["type"]
    has_values = kind in NUMBERS or enum_of(frame, kind)
    if row["role"] in ("input", "output") or not has_values:
        return
    if kind == "FRACTION":  # stored as fractions or as integers
        return
    enum = ENUM_ROWS.get(row["key"]) or enum_of(frame, kind)
    taken, attribute, where = enum or NUMBERS[kind], row["attribute"], f"{method}.{name}"
    if row["storage"] != "value":
        yield f"std::vector<{taken}> get_{name}() const {{"
        yield f"return this->template get_list<{taken}>({attribute}); }}"
        return
    default = DEFAULTS.get(where, DEFAULTS.get(name))
    if default is None and where not in OPTIONAL:
        default = f"{enum}::NOT_SET" if enum else "false" if taken == "bool" else None
    returned = taken if default is not None else f"std::optional<{taken}>"
    otherwise = f".value_or({default})" if default is not None else ""
    yield f"{returned} get_{name}() const {{"
    yield f"return this->template get_value<{taken}>({attribute}){otherwise}; }}"


def setters(frame: Frame, op: Json, method: Json, of: str) -> Iterator[str]:
    """The setters and getters of a class."""
    for argument in method["arguments"]:
        name, keys = argument["name"], argument["keys"]
        if not keys or name.startswith("subgraph"):  # score modifiers are functions in C++
            continue
        text = SETTERS.get(f"{method['name']}.{name}", SETTERS.get(name, name))
        shown = operand_names(method, op, frame)
        per_key = [rows_of(frame, op, key) for key in keys]
        for rows in zip(*per_key, strict=True):
            if name not in shown or rows[0]["role"] != "input":
                yield from setter(frame, text, list(rows), of)
                yield from getter(frame, text, rows[0], method["name"])
    optional = {a["name"]: a for a in method["arguments"] if a["keys"]}
    for name, parts in TOGETHER.items():
        if not set(parts.split()) <= set(optional) - set(operand_names(method, op, frame)):
            continue
        parameters = ", ".join(f"const Operand &{part}" for part in parts.split())
        calls = "; ".join(f"this->set_{part}({part})" for part in parts.split())
        yield from comment(f"{' and '.join(parts.split())} at once.")
        yield f"{of} &set_{name}({parameters}) {{ {calls}; return this->self(); }}"
    if method["name"] in SHAPED:
        yield "/** Extents of the result. */"
        yield f"{of} &set_dim(const std::vector<std::int64_t> &values) {{"
        yield "this->shape_result(values, {}); return this->self(); }"
        yield "/** Strides of the result, in elements. */"
        yield f"{of} &set_stride(const std::vector<std::int64_t> &values) {{"
        yield "this->shape_result({}, values); return this->self(); }"
        yield "std::vector<std::int64_t> get_dim() const { return this->dims_; }"
        yield "std::vector<std::int64_t> get_stride() const { return this->strides_; }"


def attribute_class(frame: Frame, op: Json, method: Json) -> Iterator[str]:
    """The attributes of one method."""
    name = class_name(method["name"])
    yield from comment(f"Attributes of {method['name']}: {method['doc']}.")
    if method["name"] in COMPLETED:
        yield f"template <class Self> class {name} : public detail::Attributes<Self> {{"
        of = "Self"
    else:
        yield f"class {name} : public detail::Attributes<{name}> {{"
        of = name
    yield "public:"
    yield from setters(frame, op, method, of)
    yield "};"


def class_of_pointwise(frame: Frame, op: Json) -> Iterator[str]:
    """The attributes of pointwise operations, which share one class."""
    name = "Pointwise_attributes"
    yield "/** Attributes of pointwise operations of any mode. */"
    yield f"class {name} : public detail::Attributes<{name}> {{"
    yield "public:"
    parameters = [d for d in frame.manifest["descriptors"] if d["kind"] == op["parameters"]]
    for row in [*op["rows"], *(row for each in parameters for row in each["rows"])]:
        if row["role"] == "option" and row["key"] not in ("pw", "name", "compute_data_type"):
            yield from setter(frame, row["key"], [row], name)
            yield from getter(frame, row["key"], row, "pointwise")
    yield "};"


# ---- Methods -----------------------------------------------------------------------------------------------


def pointwise_operands(frame: Frame, op: Json) -> Iterator[str]:
    """The attributes that the operands of a mode set, in order, and its result."""
    yield from comment("The attributes that operands of a pointwise mode fill, in order, the result's last.")
    yield "inline std::vector<weftBackendAttributeName_t> pointwise_attributes(PointwiseMode_t mode) {"
    yield "switch (static_cast<int>(mode)) {"
    by_form: dict[str, list[int]] = {}
    for mode in frame.manifest["pointwise_modes"]:
        by_form.setdefault(mode["form"], []).append(mode["mode"])
    for form, keys in FORMS.items():
        keys += " dx" if form == "backward" else " y"
        names = ", ".join(rows_of(frame, op, key)[0]["attribute"] for key in keys.split())
        cases = " ".join(f"case {mode}:" for mode in sorted(by_form.get(form, [])))
        yield f"{cases} return {{{names}}};"
    yield "default: return {};"
    yield "} }"


def method_of_any_mode() -> list[str]:
    """The methods for which the mode of a pointwise operation is an attribute."""
    results = []
    for count, words in enumerate(("a", "a b", "a b c"), 1):
        parameters = ", ".join(f"const Operand &{word}" for word in words.split())
        results += comment(f"A pointwise operation of {count} operands; its mode is an attribute.")
        results += [f"Tensor pointwise({parameters}, const graph::Pointwise_attributes &attributes) {{"]
        results += [f'return record_pointwise("pointwise", {{{", ".join(words.split())}}}, attributes); }}']
    return results


def pointwise_method(frame: Frame, op: Json, method: Json) -> Iterator[str]:
    """A method for one mode; options without a default are also parameters."""
    operands = [a for a in method["arguments"] if a["keys"] and is_operand(frame, op, a)]
    needed = [a for a in method["arguments"] if a["keys"] and a["default"] is None and a not in operands]
    parameters = [f"const Operand &{a['name']}" for a in operands]
    parameters += [f"{NUMBERS[rows_of(frame, op, a['keys'][0])[0]['type']]} {a['name']}" for a in needed]
    formula = f": {method['formula']}" if method["formula"] else ""
    mode = method["fixed"].removeprefix("mode=")
    yield from comment(f"{method['doc']}{formula}.")
    parameters.append("graph::Pointwise_attributes attributes = {}")
    yield f"Tensor {method['name']}({', '.join(parameters)}) {{"
    for a in needed:
        yield f"attributes.set_{a['keys'][0]}({a['name']});"
    names = ", ".join(a["name"] for a in operands)
    yield f"attributes.set_mode(PointwiseMode_t::{mode});"
    yield f'return record_pointwise("{method["name"]}", {{{names}}}, attributes); }}'


def graph_method(frame: Frame, op: Json, method: Json) -> Iterator[str]:
    """A method of a graph, which records an operation."""
    arguments = {a["name"]: a for a in method["arguments"]}
    shown = operand_names(method, op, frame)
    given, parameters = [], []
    for name in shown:
        rows = rows_of(frame, op, arguments[name]["keys"][0])
        row = next(row for row in rows if row["type"] == "BACKEND_DESCRIPTOR")
        is_list = row["storage"] == "list"
        needed = "true" if row["required"] else "false"
        given.append(f'{{{row["attribute"]}, "{name}", {name}, {needed}}}')
        parameters.append(f"const std::vector<Tensor> &{name}" if is_list else f"const Operand &{name}")
    results = [result(frame, op, method, key) for key in method["results"]]
    plural = f"std::array<Tensor, {len(results)}>"
    returned = "Tensor" if len(results) == 1 else plural
    parameters.append(f"graph::{class_name(method['name'])} attributes = {{}}")
    yield from comment(f"{method['doc']}. Returns {', '.join(method['results'])}.")
    yield f"{returned} {method['name']}({', '.join(parameters)}) {{"
    for word in (method["fixed"] or "").split():
        key, _, value = word.partition("=")
        row = rows_of(frame, op, key)[0]
        value = f"{enum_of(frame, row['type'])}::{value}"
        yield f"attributes.put({row['attribute']}, WEFT_TYPE_{row['type']}, {value});"
    yield f'auto made = record("{method["name"]}", {op["descriptor"]}, attributes,'
    yield f"{compute_type(frame, op)}, {{{', '.join(given)}}}, {{{', '.join(results)}}});"
    yield "return made[0]; }" if len(results) == 1 else f"return to_array<{len(results)}>(made); }}"


def compute_type(frame: Frame, op: Json) -> str:
    """The attribute for the compute type of an operation."""
    rows = rows_of(frame, op, "compute_data_type")
    return rows[0]["attribute"] if rows else "std::nullopt"


def result(frame: Frame, op: Json, method: Json, key: str) -> str:
    """A result as arguments of record(): attribute, name, whether the library infers its type, whether it is
    computed, whether it is required."""
    row = rows_of(frame, op, key)[0]
    inferred = "true" if frame.is_statistic(key) else "false"
    computed = "true"
    arguments = {a["name"]: a for a in method["arguments"]}
    if method["name"] in PHASED and key != "y":
        computed = "attributes.has_statistics()"
    elif key in RESULTS_OF and RESULTS_OF[key] in arguments:
        computed = f"attributes.has({rows_of(frame, op, RESULTS_OF[key])[0]['attribute']})"
    needed = "true" if row["required"] else "false"
    return f'{{{row["attribute"]}, "{key.upper()}", {inferred}, {computed}, {needed}}}'
