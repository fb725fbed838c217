"""Measures a case: builds it with a module, checks it against the oracle, then times it. A wrong result gets
no time."""

from __future__ import annotations

import datetime
import importlib
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import weft
from weft.errors import BadParameterError, ExecutionError, NotSupportedError, UnavailableError

from benchmarks.case import Case
from benchmarks.machines import Machine, Timer, in_turn, sets_of, type_of
from benchmarks.tables import Ceiling, Row

# Error limits by arithmetic: a few roundings in the type of the operands or results.
LARGEST_ERRORS = {"bf16": 1e-2, "f16": 2e-3, "tf32": 2e-3, "f32": 1e-4, "fp8": 1e-2, "int8": 0.0}

BARE = "bare"  # the peer that is Weft's own unfused case of the same size

Memory = dict[str, Any]


class Library(NamedTuple):
    """A module to measure: Weft, a module with cuDNN's methods, or torch, for which cases may have
    programs."""

    name: str
    module: Any
    handle: Any = None


@contextmanager
def named(failure: str) -> Iterator[None]:
    """Adds the name of the running case to an error. torch raises its own exceptions, and a GPU may become
    unusable for the process, so that nothing can be measured afterwards."""
    try:
        yield
    except Exception as error:
        raise ExecutionError(f"bench: {failure}: {textwrap.shorten(str(error), 300)}") from error


def graph_of(case: Case, module: Any, **where: Any) -> tuple[Any, dict[str, Any]]:
    """A case's graph built with a module, and its tensors by name. where: the device, as a keyword of
    pygraph."""
    types = {
        operand: getattr(module.data_type, type_of(operand).name)
        for operand in (*case.inputs.values(), *case.outputs.values())
    }
    floats = module.data_type.FLOAT
    g = module.pygraph(
        io_data_type=types[next(iter(case.outputs.values()))],
        compute_data_type=floats,
        **({} if case.is_free else {"intermediate_data_type": floats}),
        **where,
    )
    tensors: dict[str, Any] = {
        name: g.tensor(
            name=name,
            dim=list(operand.dims),
            stride=list(operand.strides),
            is_pass_by_value=operand.value is not None,
            data_type=types[operand],
        )
        for name, operand in case.inputs.items()
    }
    outputs = case.build(module, g, tensors)
    for name, operand in case.outputs.items():
        outputs[name].set_output(True).set_data_type(types[operand])
        outputs[name].set_dim(list(operand.dims)).set_stride(list(operand.strides))
    return g, tensors | dict(outputs)


class Side:
    """A case's graph built by a library; `graph` is the library's own."""

    def __init__(self, library: Library, case: Case, machine: Machine) -> None:
        self._library, self._machine, self._frozen = library, machine, case.frozen
        module = library.module
        self.graph, self._tensors = graph_of(case, module, handle=library.handle)
        self.graph.build([module.heur_mode.A, module.heur_mode.FALLBACK])
        self._workspace = machine.scratch(self.graph.get_workspace_size())
        self._bound: dict[int, tuple[Mapping[str, Any], Any]] = {}

    def use(self, index: int) -> None:
        """Selects one of the graph's plans."""
        self.graph.build_plan_at_index(index)
        self._bound.clear()
        self._workspace = self._machine.scratch(self.graph.get_workspace_size())

    def run(self, memory: Mapping[str, Any]) -> None:
        """Enqueues the graph once. Weft's plans on the CPU are bound to each set of memory once, just as
        torch's tensors are created once; alternating arrays would otherwise be checked every time."""
        if self._library.module is weft and self._machine.kind == "cpu":
            if id(memory) not in self._bound:
                self._bound[id(memory)] = memory, self._bind(memory)
            self._bound[id(memory)][1](0)
            return
        self._library.module.set_stream(handle=self._library.handle, stream=self._machine.stream())
        pack = {tensor: memory[name] for name, tensor in self._tensors.items()}
        self.graph.execute(pack, self._workspace, handle=self._library.handle)

    def step_seconds(self, memory: Mapping[str, Any], repeats: int) -> list[float]:
        """The mean time of each step of Weft's plan, measured one by one."""
        self._library.module.set_stream(handle=self._library.handle, stream=self._machine.stream())
        return list(self._bind(memory).measure_steps(repeats))

    def _bind(self, memory: Mapping[str, Any]) -> Any:
        plan, uids = self.graph.plan, {name: tensor.get_uid() for name, tensor in self._tensors.items()}
        given = {plan.index[uids[name]]: array for name, array in memory.items() if uids[name] in plan.index}
        plan.freeze(**{name: memory[name] for name in self._frozen})
        return plan.bind_slots(given)


class Bench:
    """A machine and the libraries compared on it. The first peer that runs a case is compared with Weft."""

    def __init__(self, machine: Machine, peers: Sequence[str] = (), rounds: int = 7) -> None:
        self.machine, self.rounds = machine, rounds
        self._weft = Library("weft", weft, weft.create_handle(machine.kind))
        self._peers = [_peer(name, machine) for name in peers]
        self.date = datetime.date.today().isoformat()
        self.device = ", ".join([machine.name, *map(_version, self._peers)])

    def compile(self, chosen: Iterable[Case], build_others: Callable[[Any], object] = lambda _: None) -> None:
        """Builds Weft's plans of cases in parallel, so that their kernels are compiled before measuring.
        build_others: builds other plans of a graph."""

        def build(case: Case) -> None:
            with suppress(Exception):  # measuring raises it again and reports it
                build_others(self.side(case).graph)

        results = {case.name: case for case in chosen}
        if any(peer.name == BARE for peer in self._peers):
            results |= {case.bare.name: case.bare for case in results.values() if case.bare}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, results.values()))

    def ceilings(self) -> list[Row]:
        """The rates that the machine reaches without Weft."""
        return [self._ceiling(ceiling) for ceiling in self.machine.ceilings]

    def _ceiling(self, ceiling: Ceiling) -> Row:
        seconds = self.machine.ceiling(ceiling, self.rounds)
        return Row(ceiling.name, peer=seconds, device=self.device, date=self.date)

    def row(self, case: Case) -> Row:
        """Checks a case, then times it."""
        memory = self.memory(case)
        timer, error, notes = self._ready(self._weft, case, *memory)
        beside, device = None, self.machine.name
        for peer in self._peers:
            if peer.name == BARE and case.bare is not None:
                beside, _, refusal = self._ready(peer, case.bare, *self.memory(case.bare))
            else:
                beside, _, refusal = self._ready(peer, case, *memory)
            notes += refusal
            if beside is not None:
                device += f", {_version(peer)}"
                break
        times = iter(in_turn([found for found in (timer, beside) if found], self.rounds))
        seconds, peers = (next(times) if found else None for found in (timer, beside))
        return Row(case.name, seconds, peers, error, device, self.date, tuple(notes))

    def side(self, case: Case) -> Side:
        """The case built with Weft."""
        return Side(self._weft, case, self.machine)

    def sets(self, case: Case, inputs: Memory) -> list[Memory]:
        """Inputs and poisoned outputs, one set for each execution in the rotation."""
        memory = inputs | {name: self.machine.poisoned(operand) for name, operand in case.outputs.items()}
        sets = [memory]
        while len(sets) < sets_of(case, self.machine):
            others = {name: self.machine.copy(memory[name]) for name in memory if name not in case.frozen}
            sets.append(memory | others)
        return sets

    def memory(self, case: Case) -> tuple[list[Memory], Memory]:
        """Sets of memory, and the expected outputs."""
        inputs = self.inputs(case)
        with self.machine.here():
            wanted = case.oracle(self.machine.xp, self._doubles(case, inputs))
        return self.sets(case, inputs), wanted

    def inputs(self, case: Case) -> Memory:
        """Random values, and those derived from them."""
        machine = self.machine
        results = {name: machine.random(operand) for name, operand in case.inputs.items()}
        if case.derive is not None:
            with machine.here():
                values = case.derive(machine.xp, self._doubles(case, results))
            for name in values.keys() & results.keys():
                machine.fill(results[name], values[name])
        return results

    def _doubles(self, case: Case, arrays: Memory) -> Memory:
        """The tensors as float64; scalars are part of the oracle."""
        return {
            name: self.machine.double(array)
            for name, array in arrays.items()
            if case.inputs[name].value is None
        }

    def _ready(
        self, library: Library, case: Case, sets: list[Memory], wanted: Memory
    ) -> tuple[Timer | None, float | None, list[str]]:
        """The timer and the error of one library, and the reasons if they are missing."""
        error = None
        try:
            if library.name == "torch":
                run = self._program(library, case)
            else:
                run = Side(library, case, self.machine).run
                error = self.error(run, case, sets[0], wanted)
                if not error <= (case.largest_error or LARGEST_ERRORS[case.arithmetic]):
                    return None, error, [f"{library.name}: the result is wrong: its error is {error:.1e}"]
            timer = self.machine.timer(lambda i: run(sets[i]), len(sets))
        except Exception as refusal:  # each library raises its own exceptions, and may lack a method
            return None, error, [f"{library.name}: {textwrap.shorten(str(refusal), 200, placeholder=' …')}"]
        return timer, error, []

    def _program(self, torch: Library, case: Case) -> Callable[[Memory], object]:
        """torch's program for a case. Its results are not checked."""
        program = case.program
        if program is None:
            raise NotSupportedError("the case has no program of its own.")
        seen: dict[int, Memory] = {}

        def run(memory: Memory) -> object:
            if id(memory) not in seen:
                seen[id(memory)] = {name: self.machine.tensor(array) for name, array in memory.items()}
            return program(torch.module, seen[id(memory)])

        return run

    def error(self, run: Callable[[Memory], object], case: Case, memory: Memory, wanted: Memory) -> float:
        """‖got − wanted‖ / ‖wanted‖ of the worst output; infinite if an output contains NaN."""
        for name, operand in case.outputs.items():
            self.machine.fill(memory[name], self.machine.poisoned(operand))
        run(memory)
        self.machine.wait()
        return self.worst({name: memory[name] for name in case.outputs}, wanted)

    def worst(self, found: Memory, wanted: Memory) -> float:
        """‖found − wanted‖ / ‖wanted‖ of the worst output in both. NaN in `wanted` marks unwritten
        elements."""
        errors = []
        for name in found.keys() & wanted.keys():
            each, outputs = wanted[name], self.machine.double(found[name])
            is_known = each == each
            if not is_known.all():
                each, outputs = each[is_known], outputs[is_known]
            difference = outputs - each
            squares = float((difference * difference).sum()), float((each * each).sum())
            ratio = (squares[0] / max(squares[1], 1e-300)) ** 0.5
            errors.append(ratio if ratio == ratio else float("inf"))
        return max(errors)


def _version(library: Library) -> str:
    if library.name == BARE:
        return "peer: the bare product"
    version = getattr(library.module, "backend_version_string", lambda: library.module.__version__)
    return f"{library.name} {version()}"


def _peer(name: str, machine: Machine) -> Library:
    if name == BARE:
        return Library(name, weft, weft.create_handle(machine.kind))
    if machine.kind == "cpu" and name != "torch":
        raise BadParameterError(
            f"bench: --peer {name} runs on NVIDIA GPUs, this is the CPU. Use torch, or --device cuda."
        )
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            f"bench: --peer {name} cannot be imported ({error}). Install it, or leave --peer out."
        ) from None
    return Library(name, module, None if name == "torch" else module.create_handle())
