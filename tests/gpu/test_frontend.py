"""The Python frontend on a GPU: arrays of every kind, host arrays on calls, other shapes, plans compiled for
this chip as if it were elsewhere, the commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import checks
import numpy as np
import poison
import pytest
import weft
from weft import backend

torch = checks.need_gpu()
ROOT = Path(__file__).parents[2]
X = np.linspace(-2, 2, 24, dtype="f4").reshape(4, 6)


class Interface:
    """An array that offers only the CUDA array interface."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._tensor.__cuda_array_interface__


class Dlpack:
    """An array that offers only DLPack."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self._tensor.__dlpack__(stream=stream)


def softmax_graph(**options: Any) -> weft.Graph:
    g = weft.Graph("rows", handle=weft.create_handle("cuda"), io_data_type="f32", **options)
    g.softmax(g.mul(g.tensor([4, 6], name="x"), 2.0), name="y").set_name("y")
    return g.build()


def want(x: Any) -> Any:
    e = np.exp(2 * x.astype(float))
    return e / e.sum(1, keepdims=True)


def close(got: Any, x: Any = X) -> None:
    np.testing.assert_allclose(got, want(x), rtol=1e-5)


def test_torch_tensors_in_and_out() -> None:
    y = softmax_graph().plan(x=torch.from_numpy(X).cuda())
    assert (y.device.type, y.dtype) == ("cuda", torch.float32)
    close(y.cpu().numpy())


@pytest.mark.parametrize("wrap", [Interface, Dlpack])
def test_arrays_of_other_libraries(wrap: Any) -> None:
    y = softmax_graph().plan(wrap(torch.from_numpy(X).cuda()))
    assert isinstance(y, weft.DeviceArray)
    close(y.numpy())
    close(torch.as_tensor(y, device="cuda").cpu().numpy())


def test_arrays_of_weft() -> None:
    x = weft.DeviceArray([4, 6]).copy_from(X)
    g = softmax_graph()
    close(g.plan(x=x).numpy())
    y = weft.DeviceArray([4, 6])
    for _ in range(3):
        g.execute({"x": x, "y": y})
    close(y.numpy())


def test_host_arrays_are_copied() -> None:
    g = softmax_graph()
    close(g.plan(x=X))
    result = torch.empty(4, 6)
    g.plan(x=torch.from_numpy(X), out={"y": result})
    close(result.numpy())
    close(
        g.plan(x=X.copy(), out={"y": poison.tensor_of([4, 6], [6, 1], torch.float32, "cuda")}).cpu().numpy()
    )


def test_execute_is_strict() -> None:
    with pytest.raises(weft.BadParameterError, match=r"must be on a CUDA device, its buffer is on the host"):
        softmax_graph().execute({"x": X, "y": poison.tensor_of([4, 6], [6, 1], torch.float32, "cuda")})


def test_bound_plans_in_cuda_graphs() -> None:
    x, y = torch.from_numpy(X).cuda(), poison.tensor_of([4, 6], [6, 1], torch.float32, "cuda")
    run = softmax_graph().plan.bind(x=x, out={"y": y})
    run()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run()
    x.neg_()
    captured.replay()
    close(y.cpu().numpy(), -X)
    assert 0 < run.measure(10) < 1


def test_other_shapes() -> None:
    g = softmax_graph(is_override_shape_enabled=True)
    for rows in (1, 4, 300):
        x = np.random.default_rng(rows).normal(size=(rows, 6)).astype("f4")
        given, made = torch.from_numpy(x).cuda(), torch.full((rows, 6), float("nan"), device="cuda")
        shapes: Any = {"override_uids": [1], "override_shapes": [[rows, 6]]}
        g.execute({"x": given, "y": made}, **shapes)
        close(made.cpu().numpy(), x)


def test_overrides_on_a_stream() -> None:
    g, stream = softmax_graph(is_override_shape_enabled=True), torch.cuda.Stream()
    x, made = torch.zeros(9, 6, device="cuda"), torch.full((9, 6), float("nan"), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.add_(1)
        g.execute({"x": x, "y": made}, override_uids=[1], override_shapes=[[9, 6]])
        result = made.cpu().numpy()
    np.testing.assert_allclose(result, 1 / 6, rtol=1e-5)


def test_code_for_this_chip_compiled_as_if_it_were_elsewhere() -> None:
    arch = json.loads(weft.devices.DeviceProperties(handle=weft.create_handle("cuda")).serialize())["arch"]
    with weft.Graph("rows", io_data_type="f32", device=arch) as g:
        g.softmax(g.mul(g.tensor([4, 6], name="x"), 2.0), name="y").set_name("y")
    saved = g.serialize(code=True)
    before = backend.describe_machine()["cache"]["compiled"]
    loaded = weft.Graph(device="cuda").deserialize(saved, code=True)
    assert backend.describe_machine()["cache"]["compiled"] == before
    close(loaded.plan(x=X))


def run(*words: str) -> str:
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bindings"), *sys.path])
    env = os.environ | {"PYTHONPATH": paths, "WEFT_DEVICE": "cuda"}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_doctor_is_content() -> None:
    text = run("-m", "weft", "doctor")
    assert "smoke test    cuda:0: ok in" in text
    assert text.endswith("No problems found.\n")


def test_the_program_of_the_page(tmp_path: Path) -> None:
    text = (ROOT / "docs/gpu.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    program = next(each for each in programs if "rmsnorm_silu" in each)
    (tmp_path / "program.py").write_text(program)
    output = run(str(tmp_path / "program.py"))
    assert output.startswith("True graph 'rmsnorm_silu' on cuda ")


def test_the_demo_trains_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    text = run("-m", "weft", "demo", "--out", str(tmp_path))
    assert " on cuda:0, " in text.splitlines()[0]
    assert re.search(r"graph 'digits: forward' on cuda\b", text)
    assert text.count("   ok   ") == 2
