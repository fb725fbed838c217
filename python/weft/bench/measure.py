"""A case measured: built through a module, checked against the oracle, then timed. A wrong result has no
time."""

from __future__ import annotations

import datetime
import importlib
import textwrap
from collections.abc import Mapping
from typing import Any

import weft
from weft.bench.families import Case
from weft.bench.machines import Machine, sets_of, type_of
from weft.bench.results import Ceiling, Row
from weft.errors import BadParameterError, UnavailableError

# The largest error of a right result, by arithmetic: a few roundings of the operands' or the results' type.
LARGEST_ERRORS = {"bf16": 1e-2, "tf32": 2e-3, "f32": 1e-4}

Memory = dict[str, Any]


class Side:
    """A case's graph as one module builds it; `graph` is the module's own."""

    def __init__(self, module: Any, case: Case, machine: Machine) -> None:
        self._module, self._machine = module, machine
        self._handle = weft.create_handle(machine.kind) if module is weft else module.create_handle()
        types = {
            operand: getattr(module.data_type, type_of(operand).name)
            for operand in (*case.inputs.values(), *case.outputs.values())
        }
        floats = module.data_type.FLOAT
        g = self.graph = module.pygraph(
            handle=self._handle,
            io_data_type=types[next(iter(case.outputs.values()))],
            intermediate_data_type=floats,
            compute_data_type=floats,
        )
        self._tensors: dict[str, Any] = {
            name: g.tensor(
                name=name,
                dim=list(operand.dims),
                stride=list(operand.strides),
                is_pass_by_value=operand.value is not None,
                data_type=types[operand],
            )
            for name, operand in case.inputs.items()
        }
        made = case.build(module, g, self._tensors)
        for name, operand in case.outputs.items():
            made[name].set_output(True).set_data_type(types[operand])
            made[name].set_dim(list(operand.dims)).set_stride(list(operand.strides))
        self._tensors |= made
        g.build([module.heur_mode.A, module.heur_mode.FALLBACK])
        self._workspace = machine.scratch(g.get_workspace_size())

    def run(self, memory: Mapping[str, Any]) -> None:
        """Enqueues the graph once."""
        self._module.set_stream(handle=self._handle, stream=self._machine.stream())
        pack = {tensor: memory[name] for name, tensor in self._tensors.items()}
        self.graph.execute(pack, self._workspace, handle=self._handle)

    def close(self) -> None:
        """Gives the module's handle back."""
        self._module.destroy_handle(self._handle)


class Bench:
    """A machine and the modules that stand side by side on it."""

    def __init__(self, machine: Machine, peer: str = "", rounds: int = 7) -> None:
        self.machine, self.rounds, self.peer = machine, rounds, peer
        self._peer = _peer(peer, machine) if peer else None
        self._date = datetime.date.today().isoformat()
        version = getattr(self._peer, "backend_version_string", None)
        self.device = machine.name + (f", {peer} {version()}" if version else "")

    def ceilings(self) -> list[Row]:
        """What the machine reaches without Weft."""
        return [self._ceiling(ceiling) for ceiling in self.machine.ceilings]

    def _ceiling(self, ceiling: Ceiling) -> Row:
        seconds = self.machine.ceiling(ceiling, self.rounds)
        return Row(ceiling.name, peer=seconds, device=self.device, date=self._date)

    def row(self, case: Case) -> Row:
        """A case: checked first, then timed."""
        inputs = self._inputs(case)
        with self.machine.here():
            wanted = case.oracle(self.machine.xp, self._doubles(case, inputs))
        memory = inputs | {name: self.machine.poisoned(operand) for name, operand in case.outputs.items()}
        sets = [memory]
        while len(sets) < sets_of(case, self.machine):
            sets.append({name: self.machine.copy(array) for name, array in memory.items()})
        seconds, error, note = self._side(weft, case, sets, wanted)
        notes = [f"weft: {note}"] if note else []
        peer_seconds = None
        if self._peer is not None:
            peer_seconds, _, note = self._side(self._peer, case, sets, wanted)
            notes += [f"{self.peer}: {note}"] if note else []
        return Row(case.name, seconds, peer_seconds, error, self.device, self._date, tuple(notes))

    def _inputs(self, case: Case) -> Memory:
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

    def _side(
        self, module: Any, case: Case, sets: list[Memory], wanted: Memory
    ) -> tuple[float | None, float | None, str]:
        """Seconds and error of one module, and why they are missing."""
        try:
            side = Side(module, case, self.machine)
            try:
                return self._checked(side, case, sets, wanted)
            finally:
                side.close()
        except Exception as refusal:  # each module raises its own kinds, and may lack a method
            return None, None, textwrap.shorten(str(refusal), 240, placeholder=" …")

    def _checked(
        self, side: Side, case: Case, sets: list[Memory], wanted: Memory
    ) -> tuple[float | None, float | None, str]:
        for name, operand in case.outputs.items():
            self.machine.fill(sets[0][name], self.machine.poisoned(operand))
        side.run(sets[0])
        self.machine.wait()
        error = max(self._error(sets[0][name], wanted[name]) for name in case.outputs)
        if not error <= LARGEST_ERRORS[case.arithmetic]:
            return None, error, f"the result is wrong: its error is {error:.1e}"
        seconds = self.machine.seconds(lambda i: side.run(sets[i]), len(sets), self.rounds)
        return seconds, error, ""

    def _error(self, got: Any, wanted: Any) -> float:
        """‖got − wanted‖ / ‖wanted‖; infinite where something is no number, as what nothing wrote."""
        difference = self.machine.double(got) - wanted
        squares = float((difference * difference).sum()), float((wanted * wanted).sum())
        ratio = (squares[0] / max(squares[1], 1e-300)) ** 0.5
        return ratio if ratio == ratio else float("inf")


def _peer(name: str, machine: Machine) -> Any:
    if machine.kind == "cpu":
        raise BadParameterError(
            f"bench: --peer {name} runs on NVIDIA GPUs, this is the CPU. Leave it out, or use --device cuda."
        )
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            f"bench: --peer {name} cannot be imported ({error}). Install it, or leave --peer out."
        ) from None
