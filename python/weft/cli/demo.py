"""`python -m weft demo`: trains a convolutional network on handwritten digits, then compares an attention
block with NumPy. Weft's graphs do all computation of the training, on the first GPU or otherwise on the CPU;
NumPy shuffles, slices and evaluates."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.devices import DeviceProperties, default_handle
from weft.explain import explain_text
from weft.plot import plot
from weft.plot.chart import Panel, chart
from weft.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

SEED, BATCH, EPOCHS = 7, 64, 20
LEARNING_RATE, BETA_1, BETA_2, EPSILON = 3e-3, 0.9, 0.999, 1e-8
LEAST_ACCURACY = 0.97
LARGEST_ERROR = 1e-5
PADDING = [1, 1]
POOL: dict[str, Any] = {"window": [2, 2], "stride": [2, 2], "mode": "MAXPOOL"}
SHAPES = {
    "w1": (16, 1, 3, 3),
    "b1": (1, 16, 1, 1),
    "w2": (32, 16, 3, 3),
    "b2": (1, 32, 1, 1),
    "w3": (512, 10),
    "b3": (1, 10),
}
# Attention: batch, sequence length, width, query heads, key/value heads, width of a head.
B, S, E, HEADS, GROUPS, D = 2, 128, 128, 8, 2, 16


# ---- The network as graphs ----


def forward_graph(images: int, training: bool) -> weft.Graph:
    """Computes logits from images and, for training, the loss. The tensors that the backward graph reads are
    results, too."""
    with weft.Graph("digits: forward", io_data_type="f32") as g:
        x = g.tensor([images, 1, 8, 8], name="x")
        w1, b1, w2, b2, w3, b3 = (g.tensor(shape, name=name) for name, shape in SHAPES.items())
        a1 = g.relu(g.add(g.conv_fprop(x, w1, padding=PADDING, name="conv1"), b1, name="bias1"), name="relu1")
        p1, index = g.resample(a1, **POOL, generate_index=training, name="pool1")
        a2 = g.relu(
            g.add(g.conv_fprop(p1, w2, padding=PADDING, name="conv2"), b2, name="bias2"), name="relu2"
        )
        flat = g.reshape(a2, name="flatten").set_dim([images, 512])
        logits = g.add(g.matmul(flat, w3, name="dense"), b3, name="bias3")
        logits.set_name("logits").set_output(True)
        if training:
            for tensor, name in (a1, "a1"), (p1, "p1"), (a2, "a2"), (index, "index"):
                tensor.set_name(name).set_output(True)
            index.set_data_type("i32")
            labels = g.tensor([images, 1], data_type="i32", name="labels")
            log_sum = g.tensor(is_virtual=True, data_type="f32")
            probability = g.softmax(logits, axis=1, stats=log_sum, name="softmax")
            target = g.cmp_eq(g.gen_index(logits, axis=1, name="class"), labels, name="is_label")
            score = g.reduction(g.mul(logits, target, name="pick"), "ADD", dims=[1], name="score")
            loss = g.reduction(g.sub(log_sum, score, name="cross_entropy"), "AVG", dims=[0], name="mean")
            loss.set_name("loss").set_output(True)
            error = g.sub(probability, target, name="error")
            error.set_name("error").set_output(True)
    return g


def backward_graph(images: int) -> weft.Graph:
    """Computes the gradient of every parameter from the error of the probabilities."""
    with weft.Graph("digits: backward", io_data_type="f32") as g:
        x, a1 = g.tensor([images, 1, 8, 8], name="x"), g.tensor([images, 16, 8, 8], name="a1")
        p1, a2 = g.tensor([images, 16, 4, 4], name="p1"), g.tensor([images, 32, 4, 4], name="a2")
        index = g.tensor([images, 16, 4, 4], data_type="i32", name="index")
        w2, error = g.tensor(SHAPES["w2"], name="w2"), g.tensor([images, 10], name="error")
        # The transposes of w3 and a2 share their memory and differ only in strides.
        w3_t = g.tensor([10, 512], [1, 10], name="w3")
        a2_t = g.tensor([512, images], [1, 512], name="a2_t")

        d_logits = g.mul(error, 1.0 / images, name="average")
        dw3 = g.matmul(a2_t, d_logits, name="dense_dw")
        db3 = g.reduction(d_logits, "ADD", dims=[0], name="bias3_db")
        d_flat = g.reshape(g.matmul(d_logits, w3_t, name="dense_dx"), name="unflatten").set_dim(
            [images, 32, 4, 4]
        )
        d2 = g.relu_backward(d_flat, a2, name="relu2_dx")
        dw2 = g.conv_wgrad(p1, d2, padding=PADDING, name="conv2_dw").set_dim(SHAPES["w2"])
        db2 = g.reduction(d2, "ADD", dims=[0, 2, 3], name="bias2_db")
        d_p1 = g.conv_dgrad(d2, w2, padding=PADDING, name="conv2_dx").set_dim([images, 16, 4, 4])
        d_a1 = g.resample_backward(d_p1, index=index, **POOL, name="pool1_dx").set_dim([images, 16, 8, 8])
        d1 = g.relu_backward(d_a1, a1, name="relu1_dx")
        dw1 = g.conv_wgrad(x, d1, padding=PADDING, name="conv1_dw").set_dim(SHAPES["w1"])
        db1 = g.reduction(d1, "ADD", dims=[0, 2, 3], name="bias1_db")
        for name, tensor in zip(SHAPES, (dw1, db1, dw2, db2, dw3, db3), strict=True):
            tensor.set_name(f"d_{name}").set_output(True)
    return g


def update_graph(count: int) -> weft.Graph:
    """Adam, in place, on all parameters as one vector. The rate includes the bias corrections of the step."""
    with weft.Graph("digits: update", io_data_type="f32") as g:
        parameter, gradient = g.tensor([count], name="parameter"), g.tensor([count], name="gradient")
        mean, square = g.tensor([count], name="mean"), g.tensor([count], name="square")
        rate = g.tensor([1], data_type="f32", is_pass_by_value=True, name="rate")
        new_mean = g.add(
            g.mul(mean, BETA_1, name="keep_mean"), g.mul(gradient, 1 - BETA_1, name="take"), name="new_mean"
        )
        power = g.mul(g.mul(gradient, gradient, name="power"), 1 - BETA_2, name="take_power")
        new_square = g.add(g.mul(square, BETA_2, name="keep_square"), power, name="new_square")
        size = g.add(g.sqrt(new_square, name="root"), EPSILON, name="size")
        step = g.mul(g.div(new_mean, size, name="direction"), rate, name="step")
        moved = g.sub(parameter, step, name="move")
        for tensor, name in (new_mean, "new_mean"), (new_square, "new_square"), (moved, "new_parameter"):
            tensor.set_name(name).set_output(True)
    return g


# ---- Training ----


class Training:
    """The graphs of a training step. Tensors of the same name share memory between graphs."""

    def __init__(self, images: int, random: np.random.Generator) -> None:
        import numpy as np

        self.count = sum(math.prod(shape) for shape in SHAPES.values())
        self.memory: dict[str, weft.DeviceArray] = {}
        for name in ("parameter", "gradient", "mean", "square"):
            self.memory[name] = weft.DeviceArray([self.count]).copy_from(np.zeros(self.count, np.float32))
            self.memory[f"new_{name}"] = self.memory[name]
        for name, start, shape in _parts():
            self.memory[name] = self.memory["parameter"].view(start, shape)
            self.memory[f"d_{name}"] = self.memory["gradient"].view(start, shape)
            if name.startswith("w"):
                fan_in = shape[0] if name == "w3" else math.prod(shape[1:])
                weights = random.normal(0, math.sqrt(2 / fan_in), shape)
                self.memory[name].copy_from(weights.astype(np.float32))
        self.forward, self.backward, self.update = (
            forward_graph(images, True),
            backward_graph(images),
            update_graph(self.count),
        )
        self._rate = np.zeros(1, np.float32)  # passed by value: read on the host at every run
        self._runs = {graph: self._bind(graph) for graph in (self.forward, self.backward, self.update)}
        self._steps = 0

    def _bind(self, graph: weft.Graph) -> weft.BoundPlan:
        """The plan of a graph, bound to memory for every tensor."""
        arrays: dict[str, Any] = {}
        for slot in graph.plan.slots:
            if slot.is_by_value:
                arrays[slot.name] = self._rate
                continue
            known = self.memory.get("a2" if slot.name == "a2_t" else slot.name)
            if known is None:
                known = self.memory[slot.name] = weft.DeviceArray(slot.dims, slot.data_type, slot.strides)
            arrays[slot.name] = known.view(0, slot.dims, slot.strides)
        return graph.plan.bind(**arrays)

    def step(self, images: Array, labels: Array) -> float:
        """Runs one step and returns the loss before it."""
        self._steps += 1
        self.memory["x"].copy_from(images)
        self.memory["labels"].copy_from(labels)
        correction = math.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        self._rate[:] = LEARNING_RATE * correction
        for run in self._runs.values():
            run()
        return float(self.memory["loss"].numpy().item())

    def seconds(self, graph: weft.Graph) -> float:
        """Seconds per run: the best of a few."""
        return best_time(self._runs[graph])


def _parts() -> list[tuple[str, int, tuple[int, ...]]]:
    """The offset of each parameter in the joined vector."""
    parts, start = [], 0
    for name, shape in SHAPES.items():
        parts.append((name, start, shape))
        start += math.prod(shape)
    return parts


def best_time(run: weft.BoundPlan, repeats: int = 5) -> float:
    """Seconds of the fastest of a few runs."""
    return min(run.measure() for _ in range(repeats))


def load_digits() -> tuple[Array, Array, Array, Array]:
    """Images and labels for training, then those of the test set, which is every third image."""
    import numpy as np
    from sklearn.datasets import load_digits as load

    digits = load()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)[:, None]
    order = np.random.default_rng(SEED).permutation(len(images))
    test, training = order[::3], np.delete(order, np.s_[::3])
    return images[training], labels[training], images[test], labels[test]


def train(epochs: int = EPOCHS) -> tuple[Training, dict[str, list[float]]]:
    """Trains the network. The returned curves have one point per epoch."""
    import numpy as np

    random = np.random.default_rng(SEED)
    images, labels, held_images, held_labels = load_digits()
    training, judge = Training(BATCH, random), forward_graph(len(held_images), False)
    batches, logits = len(images) // BATCH, np.empty((len(held_images), 10), np.float32)
    weights: dict[str, Any] = {name: training.memory[name] for name in SHAPES}
    print(
        f"   {len(images)} training images, {len(held_images)} held out; {training.count} "
        f"parameters; {epochs} epochs of {batches} batches of {BATCH}"
    )
    curves: dict[str, list[float]] = {"loss": [], "accuracy": []}
    progress = Progress(epochs, batches)
    for epoch in range(1, epochs + 1):
        order, losses = random.permutation(len(images)), []
        for batch in range(batches):
            chosen = order[batch * BATCH : (batch + 1) * BATCH]
            losses.append(training.step(images[chosen], labels[chosen]))
            progress.step(epoch, batch + 1, f"loss {losses[-1]:.4f}")
        judge.plan(x=held_images, **weights, out={"logits": logits})
        curves["loss"].append(sum(losses) / batches)
        curves["accuracy"].append(float((logits.argmax(1) == held_labels[:, 0]).mean()))
        progress.finish_part(
            epoch, f"loss {curves['loss'][-1]:.4f}  held-out accuracy {curves['accuracy'][-1]:.1%}"
        )
    return training, curves


# ---- Attention ----


def attention_graph() -> weft.Graph:
    """A block of causal attention with its projections; groups of query heads share key/value heads."""
    with weft.Graph("attention", io_data_type="f32") as g:
        # keep full precision in the matmuls
        g.deselect_numeric_notes([weft.numerical_note.DOWN_CONVERT_INPUTS])
        x = g.tensor([B, S, E], name="x")
        heads = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        parts = []
        for name, count in heads.items():
            weight = g.tensor([1, E, count * D], name=f"w_{name}")
            flat = g.matmul(x, weight, name=f"project_{name}")
            # [B, S, count * D] viewed as [B, count, S, D]: the same memory with other strides.
            part = g.reshape(flat, name=f"heads_{name}").set_dim([B, count, S, D])
            parts.append(part.set_stride([S * count * D, D, count * D, 1]))
        q, k, v = parts
        scale = 1 / math.sqrt(D)
        o, _ = g.sdpa(q, k, v, attn_scale=scale, use_causal_mask=True, generate_stats=False, name="attention")
        o.set_dim([B, HEADS, S, D]).set_stride([S * HEADS * D, D, HEADS * D, 1])
        joined = (
            g.reshape(o, name="join").set_dim([B, S, HEADS * D]).set_stride([S * HEADS * D, HEADS * D, 1])
        )
        projected = g.matmul(joined, g.tensor([1, HEADS * D, E], name="w_o"), name="project_o")
        g.add(projected, x, name="residual").set_name("y").set_output(True)
    return g


def attention_in_numpy(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array) -> Array:
    """The same block in NumPy, in double precision."""
    import numpy as np

    def split(weight: Array, count: int) -> Array:
        part: Array = (x.astype(np.float64) @ weight).reshape(B, S, count, D).transpose(0, 2, 1, 3)
        return part.repeat(HEADS // count, axis=1)

    q, k, v = split(w_q, HEADS), split(w_k, GROUPS), split(w_v, GROUPS)
    score = np.where(np.tri(S, dtype=bool), q @ k.transpose(0, 1, 3, 2) / math.sqrt(D), -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    o = (weight / weight.sum(-1, keepdims=True)) @ v
    return np.asarray(o.transpose(0, 2, 1, 3).reshape(B, S, HEADS * D) @ w_o + x)


def attend() -> tuple[weft.Graph, float, float]:
    """Runs the block and returns the graph, its largest error and the seconds per run."""
    import numpy as np

    random = np.random.default_rng(SEED)
    graph = attention_graph()
    arrays: dict[str, Any] = {}
    for slot in graph.plan.slots:
        if not slot.is_output:
            deviation = 1 if slot.name == "x" else 1 / math.sqrt(E)
            arrays[slot.name] = random.normal(0, deviation, slot.dims).astype(np.float32)
    on_device: dict[str, Any] = {
        name: weft.DeviceArray(array.shape).copy_from(array) for name, array in arrays.items()
    }
    run = graph.plan.bind(**on_device)
    error = float(np.abs(run().numpy() - attention_in_numpy(**arrays)).max())
    return graph, error, best_time(run)


# ---- The demo -----


def missing_packages() -> list[str]:
    """The packages that the demo needs and that are not installed."""
    from importlib.util import find_spec

    needed = {"numpy": "numpy", "sklearn": "scikit-learn"}
    return [package for module, package in needed.items() if find_spec(module) is None]


def draw(out: Path, graphs: Mapping[str, weft.Graph], curves: Mapping[str, list[float]]) -> list[Path]:
    """Writes the figures and returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    for name, graph in graphs.items():
        plot(graph, out / f"{name}.svg")
    panels = [
        Panel("loss", {"training": curves["loss"]}),
        Panel("accuracy", {"held out": curves["accuracy"]}, is_percent=True),
    ]
    chart("Handwritten digits, learned with Weft", panels, path=out / "training.svg")
    return [out / f"{name}.svg" for name in [*graphs, "training"]]


def run(out: Path, epochs: int = EPOCHS) -> int:
    """Runs the demo. The exit status is 0 if accuracy and error are within their limits."""
    missing = missing_packages()
    if missing:
        print(f"The demonstration needs {' and '.join(missing)}: python -m pip install {' '.join(missing)}")
        return 2
    print(f"Weft {weft.backend_version_string()} on {_device_name()}\n")
    print("1  A convolutional network learns handwritten digits")
    start = time.perf_counter()
    training, curves = train(epochs)
    seconds, accuracy = time.perf_counter() - start, curves["accuracy"][-1]
    is_right = accuracy >= LEAST_ACCURACY
    verdict = f"{_verdict(is_right)} held-out accuracy {accuracy:.2%}, at least {LEAST_ACCURACY:.0%}"
    print(f"   {verdict}; {seconds:.1f} s\n")

    print(
        f"2  Causal attention, {HEADS} query heads on {GROUPS} key heads, against NumPy in double precision"
    )
    attention, error, attention_seconds = attend()
    is_close = error <= LARGEST_ERROR
    print(f"   {_verdict(is_close)} largest error {error:.1e}, at most {LARGEST_ERROR:.0e}\n")

    print("3  What ran where, and why\n")
    forward, backward = training.forward, training.backward
    print(_indented(explain_text(forward.plan.report, forward.support(), training.seconds(forward))))
    for graph in backward, training.update:
        print(_indented(explain_text(graph.plan.report, (), training.seconds(graph), brief=True)))
    print(_indented(explain_text(attention.plan.report, (), attention_seconds, brief=True)))

    print("4  Pictures")
    for path in draw(out, {"forward": forward, "backward": backward, "attention": attention}, curves):
        print(f"   {path}")
    return 0 if is_right and is_close else 1


def _device_name() -> str:
    handle = default_handle()
    name = handle.device.name.lower()
    return f"{name}:{handle.ordinal}, {json.loads(DeviceProperties(handle=handle).serialize())['name']}"


def _verdict(is_good: bool) -> str:
    return "ok  " if is_good else "FAIL"


def _indented(text: str) -> str:
    return "".join(f"   {line}".rstrip() + "\n" for line in text.splitlines())
