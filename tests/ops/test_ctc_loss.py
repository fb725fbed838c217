"""CTC losses and their gradients: against the sum over all paths, and against PyTorch in double precision."""

import itertools

import checks
import numpy as np
import pytest
import weft

torch = pytest.importorskip("torch")


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def log_probs_of(steps, batch, classes, dtype="f32", seed=0):
    made = log_softmax(
        np.random.default_rng([seed, steps, batch, classes]).normal(size=(steps, batch, classes))
    )
    return checks.narrow(made, dtype)


def labels_of(counts, most, classes, blank, seed=0):
    """[N, most]: labels that are not blank, followed by numbers that are no labels of the sequence."""
    made = np.random.default_rng([seed, *counts]).integers(0, max(classes - 1, 1), (len(counts), most))
    return (made + (made >= blank) * (classes > 1)).astype(np.int32)


def read(path, blank):
    """What a path reads: without repetitions, then without blanks."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def test_loss_is_the_sum_over_all_paths():
    steps, classes = 4, 3
    for blank, labels in itertools.product((0, 2), ([], [1], [1, 1], [0, 1], [2, 1, 0])):
        labels = [(blank + 1) % 3 if label == blank else label for label in labels]
        log_probs = log_probs_of(steps, 1, classes, "f64", seed=blank)
        total = sum(
            np.exp(sum(log_probs[t, 0, c] for t, c in enumerate(path)))
            for path in itertools.product(range(classes), repeat=steps)
            if read(path, blank) == labels
        )
        g = weft.Graph(handle=checks.handle())
        g.ctc_loss(log_probs, np.int32([labels or [9]]), np.int32([steps]), np.int32([len(labels)]), blank)
        found = g()[0]
        assert np.asarray(found)[0] == pytest.approx(-np.log(total) if total else np.inf)


# ---- PyTorch -----------------------------------------------------------------------------------------------


def torchs(log_probs, labels, steps, counts, blank, zero, type_="f64"):
    """The loss; log_alpha with -inf in what a sequence does not have; and the gradient by logits of loss
    gradients 1, 2, 3.., from log_alpha as a type stores it."""
    given, weights = torch.tensor(checks.exact(log_probs)), torch.arange(1, len(steps) + 1).double()
    operands = torch.tensor(labels).long(), torch.tensor(steps), torch.tensor(counts)
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(given, *operands, blank, zero)
    loss, known = loss.numpy(), alpha.numpy()
    alpha = np.full((*known.shape[:2], 2 * labels.shape[1] + 1), -np.inf)
    alpha[:, :, : known.shape[2]] = known
    for n, (t, s) in enumerate(zip(steps, counts, strict=True)):
        alpha[n, t:], alpha[n, :, 2 * s + 1 :] = -np.inf, -np.inf
    stored = checks.exact(checks.narrow(alpha, type_))
    ends = [(stored[n, t - 1, 2 * s], stored[n, t - 1, 2 * s - 1] if s else -np.inf)
            for n, (t, s) in enumerate(zip(steps, counts, strict=True))]  # fmt: skip
    again = torch.tensor([-np.logaddexp(*each) for each in ends])
    shown = torch.tensor(stored[:, :, : known.shape[2]].copy())
    gradient = torch.ops.aten._ctc_loss_backward.Tensor(weights, given, *operands, again, shown, blank, zero)
    return np.where(zero & np.isinf(loss), 0, loss), alpha, gradient.numpy()


def check(
    steps,
    counts,
    classes,
    dtype="f32",
    blank=0,
    zero=False,
    most=None,
    longest=None,
    joined=False,
    index="i4",
):
    most, longest = most or max([*counts, 1]), longest or max([*steps, 1])
    batch = len(steps)
    log_probs = log_probs_of(longest, batch, classes, dtype)
    labels = labels_of(counts, most, classes, blank)
    out = "f64" if dtype == "f64" else "f32"
    loss, alpha, gradient = torchs(log_probs, labels, steps, counts, blank, zero, out)
    targets = (
        np.concatenate([row[:count] for row, count in zip(labels, counts, strict=True)]) if joined else labels
    )
    how = {"blank": blank, "zero_infinity": zero} | ({"max_target_length": most} if joined else {})
    given = {
        "log_probs": log_probs,
        "targets": targets.astype(index),
        "input_lengths": np.array(steps, index),
        "target_lengths": np.array(counts, index),
    }
    # Sums of up to `longest` steps, each rounded.
    largest = float(np.abs(alpha[np.isfinite(alpha)]).max(initial=1)) * (1 + longest / 8)
    checks.check(
        lambda g, **t: g.ctc_loss(*t.values(), **how), given, (loss, alpha), out=out, magnitude=largest
    )
    weights = np.arange(1, batch + 1).astype("f8" if dtype == "f64" else "f4")
    checks.check(
        lambda g, dloss, log_alpha, **t: g.ctc_loss_backward(dloss, *t.values(), log_alpha, **how),
        {**given, "dloss": weights, "log_alpha": checks.narrow(alpha, out)},
        gradient,
        magnitude=largest * batch,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("joined", [False, True])
def test_types(dtype, joined):
    check([12, 9, 12], [4, 2, 5], 6, dtype, joined=joined)


@pytest.mark.parametrize("index", ["i4", "i8"])
def test_integers(index):
    check([7, 5], [2, 3], 4, index=index, joined=index == "i8")


@pytest.mark.parametrize("blank", [0, 2, 5])
def test_blanks(blank):
    check([12, 9], [4, 2], 6, blank=blank)


def test_repeated_labels():
    """Paths must go through the blank between equal labels."""
    check([14, 20], [6, 5], 2)


def test_no_labels():
    check([6, 6, 1], [0, 2, 0], 4)
    check([3], [0], 4, most=1, joined=True)


@pytest.mark.parametrize("zero", [False, True])
def test_sequences_that_are_too_short(zero):
    """The second one has fewer steps than labels."""
    check([8, 3, 8], [2, 4, 3], 5, zero=zero)


def test_padding_of_steps_and_labels():
    check([5, 3], [2, 1], 4, most=7, longest=11)


def test_many_states_and_classes():
    """More states than a block has threads, and than shared memory holds; more classes than threads."""
    check([150], [70], 200)


def test_states_in_scratch_memory():
    check([1030], [1025], 2, dtype="f64")


def test_one_sequence_of_many():
    check([5] * 70, [i % 4 for i in range(70)], 3, joined=True)


@pytest.mark.parametrize(("count", "want"), [(0, 0.0), (1, np.inf)])
def test_no_steps(count, want):
    g = weft.Graph(handle=checks.handle())
    g.ctc_loss(log_probs_of(3, 1, 4), np.int32([[1]]), np.int32([0]), np.int32([count]))
    loss, alpha = map(np.asarray, g())
    assert loss.tolist() == [want]
    assert (alpha == -np.inf).all()


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
def test_strides(order):
    """Batch first, and steps innermost."""
    log_probs, counts = log_probs_of(6, 3, 5), [2, 1, 3]
    labels = labels_of(counts, 3, 5, 0)
    loss, alpha, gradient = torchs(log_probs, labels, [6, 5, 6], counts, 0, False, "f32")
    strides, step = [0, 0, 0], 1
    for d in reversed(order):
        strides[d], step = step, step * log_probs.shape[d]
    given = {
        "log_probs": (log_probs, tuple(strides)),
        "targets": labels,
        "input_lengths": np.int32([6, 5, 6]),
        "target_lengths": np.int32(counts),
    }
    checks.check(lambda g, **t: g.ctc_loss(*t.values()), given, (loss, alpha), magnitude=32)
    given |= {"dloss": np.float32([1, 2, 3]), "log_alpha": alpha.astype("f4")}
    checks.check(
        lambda g, dloss, log_alpha, **t: g.ctc_loss_backward(dloss, *t.values(), log_alpha),
        given,
        gradient,
        magnitude=64,
    )


def test_probabilities_of_zero():
    """log_probs of -inf: paths avoid the class, and its gradient is 0."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.float64([[[0.5, 0.5, 0]], [[0.25, 0.75, 0]], [[0.5, 0, 0.5]]]))
    g = weft.Graph(handle=checks.handle())
    operands = np.int32([[1]]), np.int32([3]), np.int32([1])
    loss, alpha = g.ctc_loss(log_probs, *operands)
    g.ctc_loss_backward(np.float64([1]), log_probs, *operands, alpha)
    loss, gradient = np.asarray(g()[0]), np.asarray(g()[-1])
    # 1 - -, 1 1 -, - 1 -: 0.5 * 0.25 * 0.5 + 0.5 * 0.75 * 0.5 + 0.5 * 0.75 * 0.5
    assert loss[0] == pytest.approx(-np.log(0.4375))
    assert gradient[0, 0].tolist() == pytest.approx([0.5 - 0.1875 / 0.4375, 0.5 - 0.25 / 0.4375, 0])
    assert gradient[2, 0].tolist() == pytest.approx([0.5 - 1, 0, 0.5])


def test_gradient_is_that_of_differences():
    """Central differences by the logits."""
    logits = np.random.default_rng(5).normal(size=(5, 2, 4))
    operands = np.int32([[1, 1], [3, 2]]), np.int32([5, 4]), np.int32([2, 2])

    def losses(logits):
        g = weft.Graph(handle=checks.handle())
        g.ctc_loss(log_softmax(logits), *operands)
        return np.asarray(g()[0]) @ [1.0, 2.0]

    g = weft.Graph(handle=checks.handle())
    log_probs = log_softmax(logits)
    _, alpha = g.ctc_loss(log_probs, *operands)
    g.ctc_loss_backward(np.float64([1, 2]), log_probs, *operands, alpha)
    got, step = np.asarray(g()[-1]), 1e-6
    for at in np.ndindex(logits.shape):
        more, less = logits.copy(), logits.copy()
        more[at] += step
        less[at] -= step
        assert got[at] == pytest.approx((losses(more) - losses(less)) / (2 * step), abs=1e-7)


# ---- Refusals ----------------------------------------------------------------------------------------------


def message(build):
    g = weft.Graph(io_data_type="f32", handle=checks.handle())

    def attempt():
        build(g, g.tensor, lambda *dims: g.tensor(dims, data_type="i32"))
        g.validate()

    with pytest.raises(weft.WeftError) as refused:
        attempt()
    return str(refused.value)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda g, t, i: g.ctc_loss(t([5, 2]), i(2, 3), i(2), i(2)),
            "log_probs has 2 dims [5,2], expected 3.",
        ),
        (
            lambda g, t, i: g.ctc_loss(t([5, 2, 4]), i(3, 3), i(2), i(2)),
            "log_probs is [5,2,4], of 2 sequences, targets is [3,3]. Give it one row per sequence, or one "
            "dimension with all labels.",
        ),
        (
            lambda g, t, i: g.ctc_loss(t([5, 2, 4]), i(2, 3), i(2), i(2), 4),
            "blank is 4, log_probs is [5,2,4], of 4 classes. Choose one of them.",
        ),
        (
            lambda g, t, i: g.ctc_loss(t([5, 2, 4]), t([2, 3]), i(2), i(2)),
            "targets has data type f32. Use INT32 or INT64.",
        ),
        (
            lambda g, t, i: g.ctc_loss(i(5, 2, 4), i(2, 3), i(2), i(2)),
            "log_probs has data type i32. Use DOUBLE, FLOAT, HALF or BFLOAT16.",
        ),
    ],
)
def test_refusals(build, sentence):
    assert sentence in message(build)


@pytest.mark.skipif(checks.DEVICE != "cpu", reason="a GPU clamps lengths")
@pytest.mark.parametrize(
    ("labels", "steps", "counts", "sentence"),
    [
        (
            [[1, 2], [1, 3]],
            [4, 5],
            [2, 2],
            "entry 1 of input_lengths, .* is out of range: expected 0..4, got 5.",
        ),
        (
            [[1, 2], [1, 3]],
            [4, 4],
            [3, 2],
            "entry 0 of target_lengths, .* is out of range: expected 0..2, got 3.",
        ),
        ([[1, 2], [1, 4]], [4, 4], [2, 2], "entry 3 of targets, .* is out of range: expected 0..3, got 4."),
        ([1, 2, 3], [4, 4], [2, 2], "entry 1 of target_lengths, .* is out of range: expected 0..1, got 2."),
    ],
)
def test_numbers_out_of_range(labels, steps, counts, sentence):
    g = weft.Graph(handle=checks.handle())
    g.ctc_loss(log_probs_of(4, 2, 4), np.int32(labels), np.int32(steps), np.int32(counts))
    with pytest.raises(weft.WeftError, match=sentence):
        g()
