"""The functions of the legacy API on the CPU, compared with PyTorch in double precision."""

from __future__ import annotations

import ctypes as C
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from cudnn_functions import CudnnError, DeviceMemory, Library, ints

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

TYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.int32: 4,
    torch.bfloat16: 9,
}
EPSILON = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
MAX, AVERAGE_WITH_PADDING, AVERAGE_WITHOUT_PADDING, MAX_DETERMINISTIC = range(4)
RELU = 1


# With WEFT_TEST_DEVICE=cuda, addresses are those of copies on the GPU.
MEMORY: DeviceMemory | None = None


@pytest.fixture(autouse=True)
def _seed(cudnn: Library) -> Iterator[None]:
    global MEMORY
    if os.environ.get("WEFT_TEST_DEVICE") == "cuda" and MEMORY is None:
        MEMORY = cudnn.memory = DeviceMemory()
    torch.manual_seed(0)
    yield
    if MEMORY:
        MEMORY.clear()


class Api:
    """Descriptors and addresses of torch's tensors."""

    def __init__(self, library: Library, handle: C.c_void_p) -> None:
        self.library, self.handle = library, handle

    def __getattr__(self, name: str) -> Callable[..., None]:
        """A function whose first argument is the handle."""
        return lambda *arguments: getattr(self.library, name)(self.handle, *arguments)

    def tensor(self, t: Any) -> C.c_void_p:
        descriptor = self.library.create("Tensor")
        dims, strides = [*t.shape], [*t.stride()]
        while len(dims) < 4:
            dims.append(1)
            strides.append(1)
        self.library.SetTensorNdDescriptor(descriptor, TYPES[t.dtype], len(dims), ints(dims), ints(strides))
        return descriptor

    def filter(self, w: Any) -> C.c_void_p:
        descriptor = self.library.create("Filter")
        channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}[w.dim()]
        nhwc = w.is_contiguous(memory_format=channels_last) and not w.is_contiguous()
        self.library.SetFilterNdDescriptor(descriptor, TYPES[w.dtype], int(nhwc), w.dim(), ints(w.shape))
        return descriptor

    def convolution(
        self,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        x: Any,
        groups: int = 1,
    ) -> C.c_void_p:
        descriptor = self.library.create("Convolution")
        compute = int(x.dtype == torch.float64)
        arrays = map(ints, (padding, stride, dilation))
        self.library.SetConvolutionNdDescriptor(descriptor, len(padding), *arrays, 1, compute)
        self.library.SetConvolutionGroupCount(descriptor, groups)
        return descriptor

    def activation(self, mode: int, coef: float = 0) -> C.c_void_p:
        descriptor = self.library.create("Activation")
        self.library.SetActivationDescriptor(descriptor, mode, 0, coef)
        return descriptor


@pytest.fixture
def api(cudnn: Library, handle: C.c_void_p) -> Api:
    return Api(cudnn, handle)


def at(t: Any) -> Any:
    """The address of a tensor's elements."""
    if t is None:
        return None
    size = t.untyped_storage().nbytes()
    return C.c_void_p(MEMORY.address(t.data_ptr(), size) if MEMORY else t.data_ptr())


def number(value: float, t: Any) -> Any:
    """A factor in the type in which functions read it."""
    return C.byref(C.c_double(value) if t.dtype == torch.float64 else C.c_float(value))


def close(found: Any, expected: Any, epsilon: float) -> None:
    scale = max(expected.double().abs().max().item(), 1e-30)
    torch.testing.assert_close(found.double() / scale, expected.double() / scale, rtol=0, atol=epsilon)


def normal(*shape: int, dtype: Any = torch.float32, channels_last: bool = False) -> Any:
    t = torch.randn(shape).to(dtype)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if channels_last else t


# ---- Convolution -------------------------------------------------------------------------------------------

Shape = tuple[int, ...]
CONVOLUTIONS: list[tuple[Any, Shape, Shape, Shape, Shape, Shape, int, bool, float, float]] = [
    (torch.float32, (2, 8, 11, 9), (12, 8, 3, 3), (1, 1), (2, 1), (1, 1), 1, False, 1, 0),
    (torch.float32, (2, 8, 11, 9), (12, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1, False, 0.5, 2),
    (torch.float64, (2, 6, 8, 9), (4, 3, 3, 3), (0, 1), (1, 1), (2, 1), 2, False, 0.1, 0.3),
    (torch.float16, (2, 16, 12, 12), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1, True, 1, 0),
    (torch.bfloat16, (2, 16, 12, 12), (16, 4, 3, 3), (1, 1), (1, 1), (1, 1), 4, True, 1, 0),
    (torch.float32, (1, 4, 5, 6, 7), (8, 4, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1, False, 1, 0),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_gradients(api: Api, case: Any) -> None:
    dtype, shape, filters, padding, stride, dilation, groups, last, alpha, beta = case
    x, w = (
        normal(*shape, dtype=dtype, channels_last=last),
        normal(*filters, dtype=dtype, channels_last=last) / 5,
    )
    exact_x, exact_w = x.double().requires_grad_(), w.double().requires_grad_()
    convolve = F.conv2d if len(shape) == 4 else F.conv3d
    expected = convolve(exact_x, exact_w, None, stride, padding, dilation, groups)
    y = normal(*expected.shape, dtype=dtype, channels_last=last)
    dy, dx, dw = (normal(*t.shape, dtype=dtype, channels_last=last) for t in (y, x, w))
    old_y, old_dx, old_dw = (t.double().clone() for t in (y, dx, dw))
    descriptors = (
        api.tensor(x),
        api.filter(w),
        api.convolution(padding, stride, dilation, x, groups),
        api.tensor(y),
    )
    x_desc, w_desc, conv, y_desc = descriptors
    dims = ints([0] * len(shape))
    api.library.GetConvolutionNdForwardOutputDim(conv, x_desc, w_desc, len(shape), dims)
    assert [*dims] == [*expected.shape]
    size = api.library.size("GetConvolutionForwardWorkspaceSize", api.handle, *descriptors, 1)
    workspace = torch.zeros(size + 1, dtype=torch.uint8)
    gx, gw = torch.autograd.grad(expected, (exact_x, exact_w), dy.double())
    a, b, none = number(alpha, y), number(beta, y), (1, None, 0)
    api.ConvolutionForward(a, x_desc, at(x), w_desc, at(w), conv, 1, at(workspace), size, b, y_desc, at(y))
    api.ConvolutionBackwardData(a, w_desc, at(w), y_desc, at(dy), conv, *none, b, x_desc, at(dx))
    api.ConvolutionBackwardFilter(a, x_desc, at(x), y_desc, at(dy), conv, *none, b, w_desc, at(dw))
    close(y, alpha * expected + beta * old_y, EPSILON[dtype])
    close(dx, alpha * gx + beta * old_dx, EPSILON[dtype])
    close(dw, alpha * gw + beta * old_dw, EPSILON[dtype])
    db = torch.empty(1, w.shape[0], *[1] * (w.dim() - 2), dtype=dtype)
    api.ConvolutionBackwardBias(number(1, db), y_desc, at(dy), number(0, db), api.tensor(db), at(db))
    close(db.flatten(), dy.double().sum([0, *range(2, dy.dim())]), 3 * EPSILON[dtype])


class Perf(C.Structure):
    _fields_ = (
        *(("algo", C.c_int), ("status", C.c_int), ("time", C.c_float), ("memory", C.c_size_t)),
        *(("determinism", C.c_int), ("math", C.c_int), ("reserved", C.c_int * 3)),
    )


ADDRESSES = (None, None, None)


@pytest.mark.parametrize(
    ("direction", "operands"), [("Forward", "xwcy"), ("BackwardData", "wycx"), ("BackwardFilter", "xycw")]
)
def test_all_queries_report_one_deterministic_algorithm(api: Api, direction: str, operands: str) -> None:
    x, w, y = normal(2, 8, 9, 9), normal(4, 8, 3, 3), normal(2, 4, 9, 9)
    known = {"x": api.tensor(x), "w": api.filter(w), "y": api.tensor(y)}
    known["c"] = api.convolution((1, 1), (1, 1), (1, 1), x)
    plain, count, results = [known[key] for key in operands], C.c_int(), (Perf * 4)()
    # In the calls with addresses, each one follows its descriptor.
    paired = [item for key in operands for item in (known[key], *(() if key == "c" else (None,)))]
    answer = 4, C.byref(count), results
    for name, arguments in {
        f"GetConvolution{direction}Algorithm_v7": (*plain, *answer),
        f"FindConvolution{direction}Algorithm": (*plain, *answer),
        f"FindConvolution{direction}AlgorithmEx": (*paired, *answer, None, 0),
    }.items():
        getattr(api, name)(*arguments)
        found = results[0]
        assert (count.value, found.algo, found.status, found.determinism, found.math) == (1, 1, 0, 1, 0), name
    getattr(api, f"GetConvolution{direction}AlgorithmMaxCount")(C.byref(count))
    assert count.value == 1
    size = api.library.size(f"GetConvolution{direction}WorkspaceSize", api.handle, *plain, 0)
    assert size == results[0].memory


@pytest.mark.parametrize("mode", [1, 5])
@pytest.mark.parametrize(("alpha1", "alpha2"), [(1.0, 0.5), (0.5, 0.0), (1.0, 1.0)])
def test_convolution_bias_activation(api: Api, alpha1: float, alpha2: float, mode: int) -> None:
    x, w, z, bias = normal(2, 8, 10, 10), normal(16, 8, 3, 3) / 5, normal(2, 16, 10, 10), normal(1, 16, 1, 1)
    y = torch.full_like(z, float("nan"))
    expected = alpha1 * F.conv2d(x.double(), w.double(), None, 1, 1) + alpha2 * z + bias
    if alpha2 == 0:
        z = y  # not read
    api.ConvolutionBiasActivationForward(
        number(alpha1, y),
        *(api.tensor(x), at(x), api.filter(w), at(w), api.convolution((1, 1), (1, 1), (1, 1), x)),
        *(1, None, 0, number(alpha2, y), api.tensor(z), at(z), api.tensor(bias), at(bias)),
        *(api.activation(mode, 1e300), api.tensor(y), at(y)),
    )
    close(y, F.relu(expected) if mode == RELU else expected, 1e-4)


# ---- Normalization -----------------------------------------------------------------------------------------

PER_ACTIVATION, SPATIAL, PERSISTENT = range(3)


@pytest.mark.parametrize(
    ("dtype", "last", "mode"),
    [
        (torch.float32, False, SPATIAL),
        (torch.float16, True, PERSISTENT),
        (torch.float64, False, SPATIAL),
        (torch.float32, False, PER_ACTIVATION),
    ],
)
def test_batch_norm(api: Api, dtype: Any, last: bool, mode: int) -> None:
    x = normal(4, 6, 5, 7, dtype=dtype, channels_last=last)
    of_statistics = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (1, 6, 1, 1) if mode else (1, 6, 5, 7)
    scale, bias, mean = (normal(*shape, dtype=of_statistics) for _ in range(3))
    variance = mean.abs() + 0.5
    y, dx = torch.empty_like(x), torch.empty_like(x)
    saved_mean, inverse, dscale, dbias = (torch.empty_like(scale) for _ in range(4))
    old_mean, old_variance = mean.double().clone(), variance.double().clone()
    axes, count = ((0, 2, 3) if mode else (0,)), x.numel() // scale.numel()
    exact, exact_scale, exact_bias = (t.double().requires_grad_() for t in (x, scale, bias))
    mu, var = exact.mean(axes, keepdim=True), exact.var(axes, unbiased=False, keepdim=True)
    expected = (exact - mu) / (var + 1e-5).sqrt() * exact_scale + exact_bias
    x_desc, s_desc, derived = api.tensor(x), api.tensor(scale), api.library.create("Tensor")
    api.library.DeriveBNTensorDescriptor(derived, x_desc, mode)
    assert api.library.size("GetTensorSizeInBytes", derived) == scale.numel() * scale.element_size()
    assert (
        api.library.size("GetBatchNormalizationTrainingExReserveSpaceSize", api.handle, mode, 0, None, x_desc)
        == 0
    )
    one, zero, none = number(1, x), number(0, x), (None, None, 0, None, 0)
    api.BatchNormalizationForwardTrainingEx(
        *(mode, 0, one, zero, x_desc, at(x), None, None, x_desc, at(y), s_desc, at(scale), at(bias)),
        *(0.1, at(mean), at(variance), 1e-5, at(saved_mean), at(inverse), *none),
    )
    epsilon = EPSILON[dtype]
    close(y, expected, epsilon)
    close(mean, 0.9 * old_mean + 0.1 * mu, epsilon)
    close(variance, 0.9 * old_variance + 0.1 * var * count / (count - 1), epsilon)
    close(inverse, 1 / (var + 1e-5).sqrt(), epsilon)
    dy = normal(*x.shape, dtype=dtype, channels_last=last)
    gradients = torch.autograd.grad(expected, (exact, exact_scale, exact_bias), dy.double())
    for call, extra in {
        api.BatchNormalizationBackwardEx: (0, (x_desc, None), (x_desc, None), (at(bias),), none),
        api.BatchNormalizationBackward: None,
    }.items():
        for t in (dx, dscale, dbias):
            t.fill_(7)
        if extra is None:
            call(
                *(mode, one, zero, one, zero, x_desc, at(x), api.tensor(dy), at(dy), x_desc, at(dx)),
                *(s_desc, at(scale), at(dscale), at(dbias), 1e-5, at(saved_mean), at(inverse)),
            )
        else:
            ops, of_y, of_z, of_bias, rest = extra
            call(
                *(mode, ops, one, zero, one, zero, x_desc, at(x), *of_y, api.tensor(dy), at(dy), *of_z),
                *(x_desc, at(dx), s_desc, at(scale), *of_bias, at(dscale), at(dbias)),
                *(1e-5, at(saved_mean), at(inverse), *rest),
            )
        for found, gradient in zip((dx, dscale, dbias), gradients, strict=True):
            close(found, gradient, 3 * epsilon)
    api.BatchNormalizationForwardInference(
        *(mode, one, zero, x_desc, at(x), x_desc, at(y)),
        *(s_desc, at(scale), at(bias), at(mean), at(variance), 1e-5),
    )
    normalized = (x.double() - mean.double()) / (variance.double() + 1e-5).sqrt()
    close(y, normalized * scale.double() + bias.double(), epsilon)


def test_batch_norm_without_running_statistics(api: Api) -> None:
    x, scale, bias = normal(4, 6, 5, 7), normal(1, 6, 1, 1), normal(1, 6, 1, 1)
    y = torch.empty_like(x)
    api.BatchNormalizationForwardTraining(
        *(SPATIAL, number(1, x), number(0, x), api.tensor(x), at(x), api.tensor(x), at(y)),
        *(api.tensor(scale), at(scale), at(bias), 1.0, None, None, 1e-5, None, None),
    )
    close(
        y, F.batch_norm(x.double(), None, None, scale.double().flatten(), bias.double().flatten(), True), 1e-4
    )


@pytest.mark.parametrize("family", ["batch norm", "normalization"])
def test_norm_add_activation(api: Api, family: str) -> None:
    x, z, scale, bias = normal(4, 8, 5, 5), normal(4, 8, 5, 5), normal(1, 8, 1, 1), normal(1, 8, 1, 1)
    y, dx, dz = (torch.empty_like(x) for _ in range(3))
    mean, inverse, dscale, dbias = (torch.empty_like(scale) for _ in range(4))
    x_desc, s_desc, relu = api.tensor(x), api.tensor(scale), api.activation(RELU)
    one, zero, none = number(1, x), number(0, x), (None, 0, None, 0)
    exact, exact_z, exact_scale = (t.double().requires_grad_() for t in (x, z, scale))
    normalized = F.batch_norm(exact, None, None, exact_scale.flatten(), bias.double().flatten(), True)
    expected = F.relu(normalized + exact_z)
    dy = normal(*x.shape)
    if family == "batch norm":
        api.BatchNormalizationForwardTrainingEx(
            *(
                SPATIAL,
                2,
                one,
                zero,
                x_desc,
                at(x),
                x_desc,
                at(z),
                x_desc,
                at(y),
                s_desc,
                at(scale),
                at(bias),
            ),
            *(1.0, None, None, 1e-5, at(mean), at(inverse), relu, *none),
        )
        api.BatchNormalizationBackwardEx(
            *(SPATIAL, 2, one, zero, one, zero, x_desc, at(x), x_desc, at(y), x_desc, at(dy), x_desc, at(dz)),
            *(x_desc, at(dx), s_desc, at(scale), at(bias), at(dscale), at(dbias)),
            *(1e-5, at(mean), at(inverse), relu, *none),
        )
    else:
        api.NormalizationForwardTraining(
            *(1, 2, 0, one, zero, x_desc, at(x), s_desc, at(scale), at(bias), 1.0, s_desc, None, None, 1e-5),
            *(at(mean), at(inverse), relu, x_desc, at(z), x_desc, at(y), *none, 1),
        )
        api.NormalizationBackward(
            *(1, 2, 0, one, zero, one, zero, x_desc, at(x), x_desc, at(y), x_desc, at(dy), x_desc, at(dz)),
            *(x_desc, at(dx), s_desc, at(scale), at(bias), at(dscale), at(dbias), 1e-5),
            *(s_desc, at(mean), at(inverse), relu, *none, 1),
        )
    close(y, expected, 1e-4)
    gradients = torch.autograd.grad(expected, (exact, exact_z, exact_scale), dy.double())
    for found, gradient in zip((dx, dz, dscale), gradients, strict=True):
        close(found, gradient, 3e-4)


@pytest.mark.parametrize("ops", [0, 1, 2])
def test_normalization_inference(api: Api, ops: int) -> None:
    x, z = normal(4, 6, 5, 7), normal(4, 6, 5, 7)
    scale, bias, mean = (normal(1, 6, 1, 1) for _ in range(3))
    variance, y, x_desc = mean.abs() + 0.5, torch.empty_like(x), api.tensor(x)
    of_scale, of_statistics = api.library.create("Tensor"), api.library.create("Tensor")
    api.library.DeriveNormTensorDescriptor(of_scale, of_statistics, x_desc, 1, 1)
    api.NormalizationForwardInference(
        *(1, ops, 0, number(1, x), number(0, x), x_desc, at(x), of_scale, at(scale), at(bias)),
        *(of_statistics, at(mean), at(variance), x_desc, at(z), api.activation(RELU), x_desc, at(y), 1e-5, 1),
    )
    expected = (x.double() - mean) / (variance.double() + 1e-5).sqrt() * scale + bias
    expected = expected + z if ops == 2 else expected
    close(y, F.relu(expected) if ops else expected, 1e-4)
    with pytest.raises(CudnnError, match="groupCnt is 2: expected 1"):
        api.library.DeriveNormTensorDescriptor(of_scale, of_statistics, x_desc, 1, 2)


def local_response(x: Any, n: int, alpha: float, beta: float, k: float, axes: tuple[int, ...]) -> Any:
    """The definition with loops: the window begins (n - 1) // 2 elements before each element."""
    total = x * x
    for axis in axes:
        padded = F.pad(total.movedim(axis, -1), ((n - 1) // 2, n - 1 - (n - 1) // 2))
        total = padded.unfold(-1, n, 1).sum(-1).movedim(-1, axis)
    return x * (k + alpha / n ** len(axes) * total) ** -beta


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("n", "family"), [(5, "LRNCrossChannel"), (4, "LRNCrossChannel"), (3, "Divisive")])
def test_local_normalization(api: Api, n: int, family: str, last: bool) -> None:
    alpha, beta, k = 0.7, 0.75, 1.5
    x, dy = normal(2, 7, 5, 6, channels_last=last), normal(2, 7, 5, 6, channels_last=last)
    y, dx, x_desc = torch.empty_like(x), torch.empty_like(x), api.tensor(x)
    lrn = api.library.create("LRN")
    api.library.SetLRNDescriptor(lrn, n, alpha, beta, k)
    exact = x.double().requires_grad_()
    one, zero = number(1, x), number(0, x)
    if family == "Divisive":
        expected = local_response(exact, n, alpha, beta, k, (2, 3))
        api.DivisiveNormalizationForward(lrn, 0, one, x_desc, at(x), None, None, None, zero, x_desc, at(y))
        rest = at(x), None, at(dy), None, None, zero, x_desc, at(dx), None
        api.DivisiveNormalizationBackward(lrn, 0, one, x_desc, *rest)
    else:
        expected = local_response(exact, n, alpha, beta, k, (1,))
        api.LRNCrossChannelForward(lrn, 0, one, x_desc, at(x), zero, x_desc, at(y))
        operands = x_desc, at(y), x_desc, at(dy), x_desc, at(x)
        api.LRNCrossChannelBackward(lrn, 0, one, *operands, zero, x_desc, at(dx))
    close(y, expected, 1e-5)
    (gradient,) = torch.autograd.grad(expected, exact, dy.double())
    close(dx, gradient, 1e-5)


def test_local_response_is_that_of_torch() -> None:
    x = normal(2, 7, 5, 6).double()
    close(local_response(x, 5, 0.7, 0.75, 1.5, (1,)), F.local_response_norm(x, 5, 0.7, 0.75, 1.5), 1e-12)


def test_divisive_normalization_refuses_means(api: Api) -> None:
    x = normal(2, 3, 4, 5)
    lrn, x_desc, one, zero = api.library.create("LRN"), api.tensor(x), number(1, x), number(0, x)
    with pytest.raises(CudnnError, match="means are not supported") as caught:
        api.DivisiveNormalizationForward(lrn, 0, one, x_desc, at(x), at(x), None, None, zero, x_desc, at(x))
    assert caught.value.status == 3000


# ---- Softmax, pooling, activations -------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("algorithm", "mode"), [(1, 1), (0, 0), (2, 1), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_softmax(api: Api, algorithm: int, mode: int, dtype: Any, last: bool) -> None:
    x, dy = (normal(3, 10, 4, 5, dtype=dtype, channels_last=last) for _ in range(2))
    y, dx, x_desc = torch.empty_like(x), torch.empty_like(x), api.tensor(x)
    exact = x.double().requires_grad_()
    function = F.log_softmax if algorithm == 2 else F.softmax
    expected = function(exact, 1) if mode else function(exact.flatten(1), 1).view(exact.shape)
    one, zero = number(1, x), number(0, x)
    api.SoftmaxForward(algorithm, mode, one, x_desc, at(x), zero, x_desc, at(y))
    close(y, expected, EPSILON[dtype])
    api.SoftmaxBackward(algorithm, mode, one, x_desc, at(y), x_desc, at(dy), zero, x_desc, at(dx))
    (gradient,) = torch.autograd.grad(expected, exact, dy.double())
    close(dx, gradient, 3 * EPSILON[dtype])


def test_softmax_of_instances_needs_one_layout(api: Api) -> None:
    x, y = normal(3, 10, 4, 5), normal(3, 10, 4, 5, channels_last=True)
    with pytest.raises(CudnnError, match="different layouts"):
        api.SoftmaxForward(1, 0, number(1, x), api.tensor(x), at(x), number(0, x), api.tensor(y), at(y))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", [MAX, AVERAGE_WITH_PADDING, AVERAGE_WITHOUT_PADDING, MAX_DETERMINISTIC])
def test_pooling(api: Api, mode: int, last: bool) -> None:
    x, pooling = normal(2, 6, 11, 9, channels_last=last), api.library.create("Pooling")
    api.library.SetPooling2dDescriptor(pooling, mode, 0, 3, 3, 1, 1, 2, 2)
    exact = x.double().requires_grad_()
    is_maximum = mode in (MAX, MAX_DETERMINISTIC)
    average = F.avg_pool2d(exact, 3, 2, 1, count_include_pad=mode == AVERAGE_WITH_PADDING)
    expected = F.max_pool2d(exact, 3, 2, 1) if is_maximum else average
    dims = [C.c_int() for _ in range(4)]
    api.library.GetPooling2dForwardOutputDim(pooling, api.tensor(x), *map(C.byref, dims))
    assert [dim.value for dim in dims] == [*expected.shape]
    y, dy = (normal(*expected.shape, channels_last=last) for _ in range(2))
    dx, one, zero = torch.empty_like(x), number(1, x), number(0, x)
    x_desc, y_desc = api.tensor(x), api.tensor(y)
    api.PoolingForward(pooling, one, x_desc, at(x), zero, y_desc, at(y))
    close(y, expected, 1e-5)
    operands = y_desc, at(y), y_desc, at(dy), x_desc, at(x)
    api.PoolingBackward(pooling, one, *operands, zero, x_desc, at(dx))
    (gradient,) = torch.autograd.grad(expected, exact, dy.double())
    close(dx, gradient, 1e-5)


ACTIVATIONS: dict[int, Callable[[Any], Any]] = {
    0: torch.sigmoid,
    1: F.relu,
    2: torch.tanh,
    3: lambda t: t.clamp(0, 1.5),
    4: lambda t: F.elu(t, 1.5),
    5: lambda t: t * 1,
    6: F.silu,
}


@pytest.mark.parametrize("mode", ACTIVATIONS)
def test_activation(api: Api, mode: int) -> None:
    x, dy = 2 * normal(2, 3, 4, 5), normal(2, 3, 4, 5)
    y, dx, x_desc, activation = (
        torch.empty_like(x),
        torch.empty_like(x),
        api.tensor(x),
        api.activation(mode, 1.5),
    )
    exact = x.double().requires_grad_()
    expected = ACTIVATIONS[mode](exact)
    one, zero = number(1, x), number(0, x)
    api.ActivationForward(activation, one, x_desc, at(x), zero, x_desc, at(y))
    close(y, expected, 1e-5)
    (gradient,) = torch.autograd.grad(expected, exact, dy.double())
    api.ActivationBackward(
        activation, one, x_desc, at(y), x_desc, at(dy), x_desc, at(x), zero, x_desc, at(dx)
    )
    close(dx, gradient, 1e-5)
    if mode == RELU:  # the mask of y is the same
        dx.fill_(7)
        api.ActivationBackward(
            activation, one, x_desc, at(y), x_desc, at(dy), None, None, zero, x_desc, at(dx)
        )
        close(dx, gradient, 1e-5)


# ---- Arithmetic --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_add_scale_fill(api: Api, dtype: Any) -> None:
    c, b = normal(2, 6, 4, 5, dtype=dtype), normal(1, 6, 1, 1, dtype=dtype)
    expected = 0.1 * b.double() + 0.3 * c.double()
    epsilon = {torch.float32: 1e-6, torch.float64: 1e-15}[dtype]
    c_desc = api.tensor(c)
    api.AddTensor(number(0.1, b), api.tensor(b), at(b), number(0.3, c), c_desc, at(c))
    close(c, expected, epsilon)
    api.ScaleTensor(c_desc, at(c), number(0.7, c))
    close(c, 0.7 * expected, epsilon)
    api.SetTensor(c_desc, at(c), number(7, c))
    assert (c == 7).all()


def test_transform_changes_type_and_layout(api: Api) -> None:
    x, y = normal(2, 6, 4, 5), normal(2, 6, 4, 5, dtype=torch.float16, channels_last=True)
    api.TransformTensor(number(1, x), api.tensor(x), at(x), number(0, x), api.tensor(y), at(y))
    close(y, x, 1e-3)


@pytest.mark.parametrize("nhwc", [0, 1])
def test_transform_pads(api: Api, nhwc: int) -> None:
    x, transform = normal(2, 3, 4, 5), api.library.create("TensorTransform")
    destination = api.library.create("Tensor")
    before, after = ints([0, 1, 2, 0]), ints([0, 0, 1, 3])
    api.library.SetTensorTransformDescriptor(transform, 4, nhwc, before, after, None, 0)
    size = api.library.size("InitTransformDest", transform, api.tensor(x), destination)
    expected = F.pad(x, (0, 3, 2, 1, 1, 0))
    assert size == 4 * expected.numel()
    y = normal(*expected.shape, channels_last=bool(nhwc))
    one, zero = number(1, x), number(0, x)
    api.TransformTensorEx(transform, one, api.tensor(x), at(x), zero, destination, at(y))
    assert torch.equal(y, expected)
    y.fill_(7)
    api.TransformFilter(transform, one, api.filter(x), at(x), zero, api.filter(y), at(y))
    assert torch.equal(y, expected)


def test_transform_refuses_folds(api: Api) -> None:
    x, transform = normal(2, 3, 4, 4), api.library.create("TensorTransform")
    destination = api.library.create("Tensor")
    api.library.SetTensorTransformDescriptor(transform, 4, 0, None, None, ints([2, 2]), 0)
    with pytest.raises(CudnnError, match="dimension 2 is folded by 2, which is not supported"):
        api.library.size("InitTransformDest", transform, api.tensor(x), destination)


OPERATIONS: dict[int, Callable[[Any, Any], Any]] = {
    0: lambda a, b: 2 * a + 3 * b,
    1: lambda a, b: 2 * a * 3 * b,
    2: lambda a, b: torch.minimum(2 * a, 3 * b),
    3: lambda a, b: torch.maximum(2 * a, 3 * b),
    4: lambda a, b: (2 * a).sqrt(),
    5: lambda a, b: 1 - 2 * a,
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_op_tensor(api: Api, op: int) -> None:
    a, b, c = torch.rand(2, 3, 4, 5), normal(1, 3, 1, 1), normal(2, 3, 4, 5)
    expected, descriptor = OPERATIONS[op](a.double(), b.double()) + 0.5 * c, api.library.create("OpTensor")
    api.library.SetOpTensorDescriptor(descriptor, op, 0, 0)
    a_desc, b_desc, c_desc = map(api.tensor, (a, b, c))
    factors = number(2, a), number(3, a), number(0.5, c)
    api.OpTensor(descriptor, factors[0], a_desc, at(a), factors[1], b_desc, at(b), factors[2], c_desc, at(c))
    close(c, expected, 1e-5)


AXES = (0, 2, 3)
REDUCTIONS: dict[int, Callable[[Any], Any]] = {
    0: lambda t: t.sum(AXES, True),
    1: lambda t: t.prod(3, True).prod(2, True).prod(0, True),
    2: lambda t: t.amin(AXES, True),
    3: lambda t: t.amax(AXES, True),
    4: lambda t: t.abs().amax(AXES, True),
    5: lambda t: t.mean(AXES, True),
    6: lambda t: t.abs().sum(AXES, True),
    7: lambda t: (t * t).sum(AXES, True).sqrt(),
    8: lambda t: torch.where(t == 0, 1, t).prod(3, True).prod(2, True).prod(0, True),
}


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduce_tensor(api: Api, op: int) -> None:
    x, c, descriptor = normal(3, 5, 2, 3), normal(1, 5, 1, 1), api.library.create("ReduceTensor")
    x[0, :, 0, 0] = 0 if op == 8 else x[0, :, 0, 0]
    expected = 2 * REDUCTIONS[op](x.double()) + 0.5 * c
    api.library.SetReduceTensorDescriptor(descriptor, op, 0, 0, 0, 0)
    x_desc, c_desc = api.tensor(x), api.tensor(c)
    api.ReduceTensor(
        *(descriptor, None, 0, None, 0, number(2, x), x_desc, at(x), number(0.5, c), c_desc, at(c)),
    )
    close(c, expected, 1e-5)


@pytest.mark.parametrize(("index_type", "dtype"), [(0, torch.int32), (1, torch.int64)])
@pytest.mark.parametrize("op", [2, 3, 4])
def test_reduce_tensor_with_indices(api: Api, op: int, index_type: int, dtype: Any) -> None:
    x, c, descriptor = normal(3, 5, 4, 6), torch.empty(1, 5, 1, 1), api.library.create("ReduceTensor")
    x[2, 1] = x[0, 1] = 9  # among equal elements, the first one
    api.library.SetReduceTensorDescriptor(descriptor, op, 0, 0, 1, index_type)
    x_desc, c_desc = api.tensor(x), api.tensor(c)
    size = api.library.size("GetReductionIndicesSize", api.handle, descriptor, x_desc, c_desc)
    indices = torch.full((5,), -1, dtype=dtype)
    assert size == indices.numel() * indices.element_size()
    api.ReduceTensor(
        *(descriptor, at(indices), size, None, 0, number(1, x), x_desc, at(x), number(0, c), c_desc, at(c)),
    )
    rows = x.movedim(1, 0).flatten(1)
    rows = rows.abs() if op == 4 else rows
    assert torch.equal(indices.long(), rows.argmin(1) if op == 2 else rows.argmax(1))
    assert torch.equal(c.flatten(), rows.amin(1) if op == 2 else rows.amax(1))
    with pytest.raises(CudnnError, match=r"the indices have 3 bytes: expected \d+\."):
        api.ReduceTensor(
            *(descriptor, at(indices), 3, None, 0, number(1, x), x_desc, at(x), number(0, c), c_desc, at(c)),
        )


# ---- Causal convolution ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("family", ["CausalConv1d", "CausalConv1dNwh"])
def test_causal_convolution(api: Api, family: str, activation: int, dtype: Any) -> None:
    batch, channels, steps, taps = sizes = (2, 6, 20, 4)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, dy = (normal(batch, channels, steps, dtype=dtype) for _ in range(2))
    w, bias = normal(channels, taps, dtype=dtype) / 2, normal(channels, dtype=dtype)
    exact, exact_w, exact_bias = (t.double().requires_grad_() for t in (x, w, bias))
    padded = F.pad(exact, (taps - 1, 0))
    expected = F.conv1d(padded, exact_w.unsqueeze(1), exact_bias, groups=channels)
    expected = F.silu(expected) if activation else expected
    gradients = torch.autograd.grad(expected, (exact, exact_w, exact_bias), dy.double(), retain_graph=True)
    is_last = family.endswith("Nwh")

    def stored(t: Any) -> Any:
        return t.transpose(-1, -2).contiguous() if is_last else t.clone()

    def read(t: Any) -> Any:
        return t.transpose(-1, -2) if is_last else t

    # Gradients of filters and bias are added to what is stored.
    y, dx, dw, db = (
        stored(x),
        stored(x),
        stored(torch.ones(channels, taps, dtype=wide)),
        torch.ones_like(bias, dtype=wide),
    )
    memory = stored(x), stored(w), bias, stored(dy)
    operands = [at(t) for t in memory]
    kinds = TYPES[dtype], TYPES[wide]
    library = api.library
    getattr(library, f"{family}Forward")(None, *operands[:3], at(y), *sizes, kinds[0], activation)
    close(read(y), expected, EPSILON[dtype])
    getattr(library, f"{family}Backward")(None, *operands, at(dx), at(dw), at(db), *sizes, *kinds, activation)
    close(read(dx), gradients[0], EPSILON[dtype])
    close(read(dw), gradients[1] + 1, EPSILON[dtype])
    close(db, gradients[2] + 1, EPSILON[dtype])


# ---- Spatial transformers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 0.5)])
def test_spatial_transformer(api: Api, alpha: float, beta: float, dtype: Any) -> None:
    """Grids whose ends are the centers of the first and last elements, and samples that are 0 outside."""
    x, theta = normal(2, 3, 5, 6, dtype=dtype), normal(2, 2, 3, dtype=dtype)
    y, dy, old = (normal(2, 3, 4, 7, dtype=dtype) for _ in range(3))
    grid, dgrid, old_grid = (normal(2, 4, 7, 2, dtype=dtype) for _ in range(3))
    dx, old_x, dtheta = (
        normal(2, 3, 5, 6, dtype=dtype),
        normal(2, 3, 5, 6, dtype=dtype),
        torch.zeros_like(theta),
    )
    y[:], dgrid[:], dx[:] = old, old_grid, old_x
    transformer = api.library.create("SpatialTransformer")
    api.library.SetSpatialTransformerNdDescriptor(transformer, 0, TYPES[dtype], 4, ints([2, 3, 4, 7]))
    api.SpatialTfGridGeneratorForward(transformer, at(theta), at(grid))
    leaf, exact_x = theta.double().requires_grad_(), x.double().requires_grad_()
    exact = F.affine_grid(leaf, [2, 3, 4, 7], align_corners=True)
    close(grid, exact, EPSILON[dtype])
    positions = grid.double().requires_grad_()
    expected = F.grid_sample(exact_x, positions, align_corners=True)
    of_x, of_grid = torch.autograd.grad(expected, (exact_x, positions), dy.double())
    x_desc, y_desc = api.tensor(x), api.tensor(y)
    factors = number(alpha, x), number(beta, x)
    api.SpatialTfSamplerForward(transformer, factors[0], x_desc, at(x), at(grid), factors[1], y_desc, at(y))
    close(y, alpha * expected + beta * old, EPSILON[dtype])
    api.SpatialTfSamplerBackward(
        *(transformer, factors[0], x_desc, at(x), factors[1], x_desc, at(dx)),
        *(factors[0], y_desc, at(dy), at(grid), factors[1], at(dgrid)),
    )
    close(dx, alpha * of_x + beta * old_x, EPSILON[dtype])
    close(dgrid, alpha * of_grid + beta * old_grid, 10 * EPSILON[dtype])
    api.SpatialTfGridGeneratorBackward(transformer, at(dgrid), at(dtheta))
    close(dtheta, torch.autograd.grad(exact, leaf, dgrid.double())[0], EPSILON[dtype])


def test_spatial_transformers_are_bilinear(api: Api) -> None:
    transformer = api.library.create("SpatialTransformer")
    with pytest.raises(CudnnError, match=r"sampler 1: expected 0\."):
        api.library.SetSpatialTransformerNdDescriptor(transformer, 1, 0, 4, ints([2, 3, 4, 7]))


# ---- CTC loss ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_softmax", [False, True])
@pytest.mark.parametrize("has_lengths_on_host", [False, True])
def test_ctc_loss(api: Api, has_lengths_on_host: bool, is_softmax: bool) -> None:
    """Probabilities or logits; gradients are by the logits in both cases."""
    steps, counts = [9, 7, 9], [3, 0, 4]
    logits = normal(9, 3, 6)
    given = logits if is_softmax else logits.softmax(-1)
    labels = torch.randint(1, 6, (sum(counts),), dtype=torch.int32)
    leaf = logits.double().requires_grad_()
    lengths = torch.tensor(steps), torch.tensor(counts)
    expected = F.ctc_loss(leaf.log_softmax(-1), labels.long(), *lengths, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    ctc, size = api.library.create("CTCLoss"), C.c_size_t()
    api.library.SetCTCLossDescriptor_v9(ctc, 0, int(is_softmax), 0, 4)
    probs_desc, costs, found = api.tensor(given), torch.zeros(3), torch.zeros_like(given)
    if has_lengths_on_host:
        host = ints(labels.tolist()), ints(counts), ints(steps)
        api.GetCTCLossWorkspaceSize(probs_desc, probs_desc, *host, 0, ctc, C.byref(size))
        workspace = torch.zeros(size.value, dtype=torch.uint8)
        api.CTCLoss(
            *(probs_desc, at(given), *host, at(costs), probs_desc, at(found)),
            *(0, ctc, at(workspace), C.c_size_t(size.value)),
        )
    else:
        on_device = [labels, *(torch.tensor(each, dtype=torch.int32) for each in (counts, steps))]
        api.GetCTCLossWorkspaceSize_v8(0, ctc, probs_desc, probs_desc, C.byref(size))
        api.CTCLoss_v8(
            *(0, ctc, probs_desc, at(given), *map(at, on_device), at(costs)),
            *(probs_desc, at(found), C.c_size_t(size.value), None),
        )
    close(costs, expected.detach(), 1e-5)
    close(found, gradient, 1e-5)


def test_ctc_descriptor(api: Api) -> None:
    ctc, type_, mode, gradients, longest = api.library.create("CTCLoss"), *(C.c_int() for _ in range(4))
    api.library.SetCTCLossDescriptor_v9(ctc, 0, 1, 1, 12)
    results = [C.byref(each) for each in (type_, mode, gradients, longest)]
    api.library.GetCTCLossDescriptor_v9(ctc, *results)
    assert [each.value for each in (type_, mode, gradients, longest)] == [0, 1, 1, 12]
    with pytest.raises(CudnnError, match=r"data type 1: expected 0 \(FLOAT\)\."):
        api.library.SetCTCLossDescriptor(ctc, 1)


# ---- Dropout -----------------------------------------------------------------------------------------------


def test_dropout(api: Api) -> None:
    bytes_ = api.library.size("DropoutGetStatesSize", api.handle)
    states, dropout = torch.zeros(bytes_, dtype=torch.uint8), api.library.create("Dropout")
    api.library.SetDropoutDescriptor(dropout, api.handle, 0.3, at(states), bytes_, 11)
    x = torch.rand(4, 8, 16, 16) + 0.5
    y, again, dx, x_desc = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), api.tensor(x)
    size = api.library.size("DropoutGetReserveSpaceSize", x_desc)
    reserve = torch.zeros(size, dtype=torch.uint8)
    api.DropoutForward(dropout, x_desc, at(x), x_desc, at(y), at(reserve), size)
    keep = y != 0
    assert abs(keep.float().mean().item() - 0.7) < 0.02
    close(y, x * keep / 0.7, 1e-5)
    api.DropoutBackward(dropout, x_desc, at(x), x_desc, at(dx), at(reserve), size)
    close(dx, y, 1e-6)
    api.DropoutForward(dropout, x_desc, at(x), x_desc, at(again), at(reserve), size)
    assert ((again != 0) != keep).float().mean() > 0.2  # another mask
    api.library.SetDropoutDescriptor(dropout, api.handle, 0.3, at(states), bytes_, 11)
    api.DropoutForward(dropout, x_desc, at(x), x_desc, at(again), at(reserve), size)
    assert torch.equal(y, again)  # the first mask of this seed
