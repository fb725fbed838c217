"""Turns a graph's descriptor into plans: candidates from heuristics or by hand, filters, and building."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from weft import backend, enums
from weft.backend import Descriptor, Handle
from weft.devices import DeviceProperties, KernelCache, limited
from weft.enums import attribute_name, build_plan_policy, descriptor_type, heur_mode
from weft.errors import BadParameterError, InternalError, NotSupportedError, WeftError
from weft.plan import Plan
from weft.progress import Waiting

Wrapper: TypeAlias = "Callable[[Descriptor, Callable[[], Descriptor]], Plan]"
"""Creates a plan from its descriptor and from a function that builds the same plan with its kernels' code."""


class Candidate(NamedTuple):
    """An engine with its knobs set, chosen by heuristics or by the user."""

    config: Descriptor
    engine: Descriptor
    tag: str
    engine_id: int
    knobs: dict[int, int]
    """The chosen values, by knob type."""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.get_text(attribute_name.ENGINE_NAME_EXT)

    @property
    def numerical_notes(self) -> set[enums.numerical_note]:
        """How the engine's arithmetic differs from the plain formula."""
        notes = self.engine.get(attribute_name.ENGINE_NUMERICAL_NOTE, "NUMERICAL_NOTE")
        return {enums.numerical_note(note) for note in notes}

    @property
    def behavior_notes(self) -> set[enums.behavior_note]:
        """Effects and requirements of the engine other than arithmetic."""
        notes = self.engine.get(attribute_name.ENGINE_BEHAVIOR_NOTE, "BEHAVIOR_NOTE")
        return {enums.behavior_note(note) for note in notes}

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that its plan needs."""
        return int(self.config.get_one(attribute_name.ENGINECFG_WORKSPACE_SIZE, "INT64"))


class Knob(NamedTuple):
    """A tuning parameter of an engine and its legal values."""

    type: enums.knob_type
    max: int
    min: int
    stride: int


def _tag(engine_id: int, knobs: Mapping[int, int]) -> str:
    """The tag of an engine with knobs: eng0_k2=3."""
    return f"eng{engine_id}" + "".join(f"_k{knob}={value}" for knob, value in knobs.items())


class Planner:
    """The candidates for one finalized graph, and the plans built from them."""

    def __init__(
        self,
        graph: Descriptor,
        handle: Handle | None,
        device: DeviceProperties | None,
        kernel_cache: KernelCache | None,
        sm_count: int | None,
    ) -> None:
        self.graph = graph
        self.candidates: list[Candidate] = []
        self.plans: list[Plan | None] = []
        self.failures: list[str] = []
        self.label = "graph"
        self._handle, self._device, self._cache = handle, device, kernel_cache
        if sm_count is not None:
            self._device = limited(device or DeviceProperties(handle=handle), sm_count)
        self._filters: list[Callable[[Candidate], str]] = []

    def support(self, device: DeviceProperties | None = None) -> list[dict[str, Any]]:
        """Every engine's answer: a predicted time, or the reason why it declines. `device` defaults to the
        planner's own."""
        properties = device or self._device or DeviceProperties(handle=self._handle)
        return backend.query_support(self.graph, properties.descriptor)

    # ---- Candidates ----

    def ask(self, modes: Iterable[heur_mode | str]) -> None:
        """Adds the candidates that the heuristics recommend, best first. Raises if no engine can run the
        graph."""
        are_all = False
        for mode in modes:
            member = enums.member(heur_mode, mode)
            member = heur_mode.A if member is heur_mode.OPENSOURCE else member
            if are_all:  # FALLBACK, and modes that rank all engines again, return no others
                continue
            are_all = member is not heur_mode.FALLBACK
            query = Descriptor(descriptor_type.ENGINEHEUR_DESCRIPTOR)
            query.set(attribute_name.ENGINEHEUR_MODE, "HEUR_MODE", [member])
            query.set(attribute_name.ENGINEHEUR_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [self.graph])
            if self._device is not None:
                device = [self._device.descriptor]
                query.set(attribute_name.ENGINEHEUR_DEVICEPROP, "BACKEND_DESCRIPTOR", device)
            query.finalize()
            kind = descriptor_type.ENGINECFG_DESCRIPTOR
            for config in query.get_descriptors(attribute_name.ENGINEHEUR_RESULTS, kind):
                self._add(config)
        if not self.candidates:
            raise self.not_supported()

    def engine(self, engine_id: int) -> Descriptor:
        """An engine for the graph, by its number."""
        engine = Descriptor(descriptor_type.ENGINE_DESCRIPTOR)
        engine.set(attribute_name.ENGINE_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [self.graph])
        engine.set(attribute_name.ENGINE_GLOBAL_INDEX, "INT64", [engine_id])
        if self._device is not None:
            engine.set(attribute_name.ENGINE_DEVICEPROP, "BACKEND_DESCRIPTOR", [self._device.descriptor])
        engine.finalize()
        return engine

    def knobs(self, engine_id: int) -> list[Knob]:
        """The tuning parameters of an engine."""
        kind = descriptor_type.KNOB_INFO_DESCRIPTOR
        infos = self.engine(engine_id).get_descriptors(attribute_name.ENGINE_KNOB_INFO, kind)
        return [
            Knob(
                enums.knob_type(info.get_one(attribute_name.KNOB_INFO_TYPE, "KNOB_TYPE")),
                info.get_one(attribute_name.KNOB_INFO_MAXIMUM_VALUE, "INT64"),
                info.get_one(attribute_name.KNOB_INFO_MINIMUM_VALUE, "INT64"),
                info.get_one(attribute_name.KNOB_INFO_STRIDE, "INT64"),
            )
            for info in infos
        ]

    def families(self, engine_id: int) -> list[str]:
        """An engine's kernel families, in the order of the bits of knob WITHOUT_FAMILIES_EXT."""
        return self.engine(engine_id).get_text(attribute_name.ENGINE_FAMILIES_EXT).split()

    def choose(self, engine_id: int, knobs: Mapping[int | str, int] | Mapping[int, int]) -> int:
        """Adds an engine with knobs set by hand unless it is already a candidate. Returns its index."""
        return self._add(self._config(engine_id, knobs))

    def _config(self, engine_id: int, knobs: Mapping[int | str, int] | Mapping[int, int]) -> Descriptor:
        config = Descriptor(descriptor_type.ENGINECFG_DESCRIPTOR)
        config.set(attribute_name.ENGINECFG_ENGINE, "BACKEND_DESCRIPTOR", [self.engine(engine_id)])
        choices = []
        for knob, value in knobs.items():
            choice = Descriptor(descriptor_type.KNOB_CHOICE_DESCRIPTOR)
            kind = enums.member(enums.knob_type, knob)
            choice.set(attribute_name.KNOB_CHOICE_KNOB_TYPE, "KNOB_TYPE", [kind])
            choice.set(attribute_name.KNOB_CHOICE_KNOB_VALUE, "INT64", [value])
            choice.finalize()
            choices.append(choice)
        if choices:
            config.set(attribute_name.ENGINECFG_KNOB_CHOICES, "BACKEND_DESCRIPTOR", choices)
        config.finalize()
        return config

    def _add(self, config: Descriptor) -> int:
        kind = descriptor_type.ENGINE_DESCRIPTOR
        (engine,) = config.get_descriptors(attribute_name.ENGINECFG_ENGINE, kind)
        engine_id, knobs = int(engine.get_one(attribute_name.ENGINE_GLOBAL_INDEX, "INT64")), {}
        kind = descriptor_type.KNOB_CHOICE_DESCRIPTOR
        for choice in config.get_descriptors(attribute_name.ENGINECFG_KNOB_CHOICES, kind):
            knob = int(choice.get_one(attribute_name.KNOB_CHOICE_KNOB_TYPE, "KNOB_TYPE"))
            knobs[knob] = int(choice.get_one(attribute_name.KNOB_CHOICE_KNOB_VALUE, "INT64"))
        tag = _tag(engine_id, knobs)
        tags = [candidate.tag for candidate in self.candidates]
        if tag not in tags:
            self.candidates.append(Candidate(config, engine, tag, engine_id, knobs))
            self.plans.append(None)
        return [*tags, tag].index(tag)

    def refusal(self, candidate: Candidate) -> str:
        """The reason why the filters passed to `keep` drop a candidate; empty if they do not."""
        return next((text for text in (refuse(candidate) for refuse in self._filters) if text), "")

    def _held_to(self, workspace: int | None, candidate: Candidate) -> Candidate:
        """The candidate, or a variant of it that respects the workspace limit, if one exists."""
        if workspace is None or workspace < 0 or candidate.workspace_size <= workspace:
            return candidate
        knobs = {int(enums.knob_type.WORKSPACE): workspace} | candidate.knobs
        try:
            config = self._config(candidate.engine_id, knobs)
        except NotSupportedError:
            return candidate
        return candidate._replace(config=config, tag=_tag(candidate.engine_id, knobs), knobs=knobs)

    def keep(self, filters: Sequence[Callable[[Candidate], str]], workspace: int | None = None) -> None:
        """Drops the candidates for which a filter returns a reason; raises if none is left. Before that,
        candidates are replaced by variants that need at most `workspace` bytes."""
        remaining, self._filters = [], list(filters)
        for candidate in [self._held_to(workspace, candidate) for candidate in self.candidates]:
            reason = self.refusal(candidate)
            if reason:
                self.failures.append(f"{candidate.name} ({candidate.tag}): deselected by {reason}.")
            else:
                remaining.append(candidate)
        self.candidates, self.plans = remaining, [None] * len(remaining)
        if not remaining:
            raise self.not_supported()

    # ---- Plans ----

    def build(self, policy: build_plan_policy, wrap: Wrapper) -> int:
        """Builds the first candidate that can be built, or with policy ALL every one, and returns the index
        of the first. If none can be built, an internal error of Weft takes precedence over refusals."""
        built, defect = [], None
        for i in range(len(self.candidates)):
            try:
                self.build_at(i, wrap)
            except WeftError as error:
                self.failures.append(f"{self.candidates[i].name} ({self.candidates[i].tag}): {error}")
                defect = defect or (error if isinstance(error, InternalError) else None)
                continue
            built.append(i)
            if policy == build_plan_policy.HEURISTICS_CHOICE:
                break
        if not built:
            raise defect or self.not_supported()
        return built[0]

    def build_at(self, index: int, wrap: Wrapper) -> None:
        """Builds one candidate."""
        if self.plans[index] is None:
            self.plans[index] = wrap(self._make(index), partial(self._make, index, with_code=True))

    def _make(self, index: int, with_code: bool = False) -> Descriptor:
        """Builds a candidate's plan; `with_code` includes the code of its kernels when it is saved."""
        descriptor = Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
        if self._device is not None:
            device = [self._device.descriptor]
            descriptor.set(attribute_name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", device)
        if self._handle is not None:
            descriptor.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self._handle.pointer])
        config = [self.candidates[index].config]
        descriptor.set(attribute_name.EXECUTION_PLAN_ENGINE_CONFIG, "BACKEND_DESCRIPTOR", config)
        if self._cache is not None:
            cache = [self._cache.descriptor]
            descriptor.set(attribute_name.EXECUTION_PLAN_KERNEL_CACHE, "BACKEND_DESCRIPTOR", cache)
        if with_code:
            descriptor.set(attribute_name.EXECUTION_PLAN_WITH_CODE_EXT, "BOOLEAN", [True])
        with Waiting(f"{self.label}: compiling kernels"):
            descriptor.finalize()
        return descriptor

    def checked(self, index: int) -> int:
        """Validates the index of a candidate."""
        count = len(self.plans)
        if not 0 <= index < count:
            expected = f"expected 0 to {count - 1}" if count else "no plans have been created"
            fix = "Choose one of these." if count else "Call create_execution_plans() first."
            raise BadParameterError(f"{self.label}: there is no plan {index}: {expected}. {fix}")
        return index

    def not_supported(self) -> NotSupportedError:
        """The exception to raise when no candidate is left, with every engine's reason."""
        reasons = list(self.failures)
        reasons = reasons or [f"{a['engine']}: {a['reason']}" for a in self.support() if not a["supported"]]
        listed = " ".join(reasons) or "No engine supports this device."
        return NotSupportedError(f"{self.label}: no engine can run it. {listed}", reasons=reasons)
