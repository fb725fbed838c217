"""A case measured: built through a module, checked against the oracle, then timed. A wrong result has no
time."""

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
from weft.bench.case import Case
from weft.bench.machines import Machine, Timer, in_turn, sets_of, type_of
from weft.bench.results import Ceiling, Row
from weft.errors import BadParameterError, ExecutionError, NotSupportedError, UnavailableError

# The largest error of a right result, by arithmetic: a few roundings of the operands' or the results' type.
LARGEST_ERRORS = {"bf16": 1e-2, "f16": 2e-3, "tf32": 2e-3, "f32": 1e-4, "fp8": 1e-2, "int8": 0.0}

BARE = "bare"  # the peer that is Weft's own product, of the same sizes and with nothing fused

Memory = dict[str, Any]


class Library(NamedTuple):
    """A module to measure: Weft, one that has cuDNN's methods, or torch, whose programs cases may bring."""

    name: str
    module: Any
    handle: Any = None


@contextmanager
def named(failure: str) -> Iterator[None]:
    """Says of an error what ran when it came. torch raises kinds of its own, and a GPU may be lost to the
    process, so that nothing can be measured after it."""
    try:
        yield
    except Exception as error:
        raise ExecutionError(f"bench: {failure}: {textwrap.shorten(str(error), 300)}") from error


def graph_of(case: Case, module: Any, **where: Any) -> tuple[Any, dict[str, Any]]:
    """A case's graph in a module's words, and its tensors by name. where: the device, as pygraph takes it."""
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
    made = case.build(module, g, tensors)
    for name, operand in case.outputs.items():
        made[name].set_output(True).set_data_type(types[operand])
        made[name].set_dim(list(operand.dims)).set_stride(list(operand.strides))
    return g, tensors | dict(made)


class Side:
    """A case's graph as a library builds it; `graph` is the library's own."""

    def __init__(self, library: Library, case: Case, machine: Machine) -> None:
        self._library, self._machine, self._frozen = library, machine, case.frozen
        module = library.module
        self.graph, self._tensors = graph_of(case, module, handle=library.handle)
        self.graph.build([module.heur_mode.A, module.heur_mode.FALLBACK])
        self._workspace = machine.scratch(self.graph.get_workspace_size())
        self._bound: dict[int, tuple[Mapping[str, Any], Any]] = {}

    def use(self, index: int) -> None:
        """Chooses one of the graph's plans."""
        self.graph.build_plan_at_index(index)
        self._bound.clear()
        self._workspace = self._machine.scratch(self.graph.get_workspace_size())

    def run(self, memory: Mapping[str, Any]) -> None:
        """Enqueues the graph once. Weft's plans on the CPU are bound to a set of memory once, as torch's
        tensors are made once: arrays in turn would be checked anew each time."""
        if self._library.module is weft and self._machine.kind == "cpu":
            if id(memory) not in self._bound:
                self._bound[id(memory)] = memory, self._bind(memory)
            self._bound[id(memory)][1](0)
            return
        self._library.module.set_stream(handle=self._library.handle, stream=self._machine.stream())
        pack = {tensor: memory[name] for name, tensor in self._tensors.items()}
        self.graph.execute(pack, self._workspace, handle=self._library.handle)

    def step_seconds(self, memory: Mapping[str, Any], repeats: int) -> list[float]:
        """Means of the steps of Weft's plan, one by one."""
        self._library.module.set_stream(handle=self._library.handle, stream=self._machine.stream())
        return list(self._bind(memory).measure_steps(repeats))

    def _bind(self, memory: Mapping[str, Any]) -> Any:
        plan, uids = self.graph.plan, {name: tensor.get_uid() for name, tensor in self._tensors.items()}
        given = {plan.index[uids[name]]: array for name, array in memory.items() if uids[name] in plan.index}
        plan.freeze(**{name: memory[name] for name in self._frozen})
        return plan.bind_slots(given)


class Bench:
    """A machine, and the libraries that stand side by side on it. Of the peers the first that runs a case is
    the one beside Weft."""

    def __init__(self, machine: Machine, peers: Sequence[str] = (), rounds: int = 7) -> None:
        self.machine, self.rounds = machine, rounds
        self._weft = Library("weft", weft, weft.create_handle(machine.kind))
        self._peers = [_peer(name, machine) for name in peers]
        self.date = datetime.date.today().isoformat()
        self.device = ", ".join([machine.name, *map(_version, self._peers)])

    def compile(self, chosen: Iterable[Case], build_others: Callable[[Any], object] = lambda _: None) -> None:
        """Builds Weft's plans of cases side by side, so that measuring finds their kernels compiled.
        build_others: builds other plans of a graph."""

        def build(case: Case) -> None:
            with suppress(Exception):  # measuring meets it again, and names it
                build_others(self.side(case).graph)

        found = {case.name: case for case in chosen}
        if any(peer.name == BARE for peer in self._peers):
            found |= {case.bare.name: case.bare for case in found.values() if case.bare}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, found.values()))

    def ceilings(self) -> list[Row]:
        """What the machine reaches without Weft."""
        return [self._ceiling(ceiling) for ceiling in self.machine.ceilings]

    def _ceiling(self, ceiling: Ceiling) -> Row:
        seconds = self.machine.ceiling(ceiling, self.rounds)
        return Row(ceiling.name, peer=seconds, device=self.device, date=self.date)

    def row(self, case: Case) -> Row:
        """A case: checked first, then timed."""
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
        """The case as Weft builds it."""
        return Side(self._weft, case, self.machine)

    def sets(self, case: Case, inputs: Memory) -> list[Memory]:
        """Inputs and poisoned outputs, as often as executions rotate over them."""
        memory = inputs | {name: self.machine.poisoned(operand) for name, operand in case.outputs.items()}
        sets = [memory]
        while len(sets) < sets_of(case, self.machine):
            others = {name: self.machine.copy(memory[name]) for name in memory if name not in case.frozen}
            sets.append(memory | others)
        return sets

    def memory(self, case: Case) -> tuple[list[Memory], Memory]:
        """Sets of memory, and the outputs that are wanted there."""
        inputs = self.inputs(case)
        with self.machine.here():
            wanted = case.oracle(self.machine.xp, self._doubles(case, inputs))
        return self.sets(case, inputs), wanted

    def inputs(self, case: Case) -> Memory:
        """Random values, and those that follow from them."""
        machine = self.machine
        found = {name: machine.random(operand) for name, operand in case.inputs.items()}
        if case.derive is not None:
            with machine.here():
                values = case.derive(machine.xp, self._doubles(case, found))
            for name in values.keys() & found.keys():
                machine.fill(found[name], values[name])
        return found

    def _doubles(self, case: Case, arrays: Memory) -> Memory:
        """The tensors as float64; scalars stand in the oracle itself."""
        return {
            name: self.machine.double(array)
            for name, array in arrays.items()
            if case.inputs[name].value is None
        }

    def _ready(
        self, library: Library, case: Case, sets: list[Memory], wanted: Memory
    ) -> tuple[Timer | None, float | None, list[str]]:
        """What times one library, and its error; and why they are missing."""
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
        except Exception as refusal:  # each library raises its own kinds, and may lack a method
            return None, error, [f"{library.name}: {textwrap.shorten(str(refusal), 200, placeholder=' …')}"]
        return timer, error, []

    def _program(self, torch: Library, case: Case) -> Callable[[Memory], object]:
        """What torch runs for a case. Its results are its own, and are not judged."""
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
        """‖got − wanted‖ / ‖wanted‖ of the worst output; infinite where one holds what is no number."""
        for name, operand in case.outputs.items():
            self.machine.fill(memory[name], self.machine.poisoned(operand))
        run(memory)
        self.machine.wait()
        return self.worst({name: memory[name] for name in case.outputs}, wanted)

    def worst(self, found: Memory, wanted: Memory) -> float:
        """‖found − wanted‖ / ‖wanted‖ of the worst of what is in both. Wanted NaN: what nobody writes."""
        errors = []
        for name in found.keys() & wanted.keys():
            each, made = wanted[name], self.machine.double(found[name])
            is_known = each == each
            if not is_known.all():
                each, made = each[is_known], made[is_known]
            difference = made - each
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
