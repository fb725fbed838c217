"""examples/: each runs at a small size and computes what torch or NumPy computes."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example. One thread is faster for such small sums."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)


def test_resnet_learns_digits_as_eager_torch_does(example, capsys) -> None:
    pytest.importorskip("sklearn")
    (_, right), (_, right_of_weft) = example("digits_resnet").main(DEVICE, width=4, epochs=10, count=512)
    assert right > 0.7, "a tenth would be chance"
    assert right_of_weft > right - 0.1
    assert re.search(r"'aten::convolution_backward': \{'served': \d+\}", capsys.readouterr().out)


def test_gpt_is_trained_to_the_same_loss(example, capsys) -> None:
    eager, under = example("gpt_block").main(steps=12, width=32, length=24)
    assert under[-1] < under[0] - 0.5
    assert under == pytest.approx(eager, rel=1e-3)
    assert "'aten::scaled_dot_product_attention': {'served': 24}" in capsys.readouterr().out


def test_lstm_is_trained_to_the_same_loss(example, capsys) -> None:
    (_, eager), (first, last) = example("lstm_language_model").main(DEVICE, width=16, steps=12)
    assert last < first - 0.3
    assert last == pytest.approx(eager, rel=1e-3)
    assert "Weft served 60 of 60 calls" in capsys.readouterr().out


def test_strings_are_read_from_signals_without_alignment(example, capsys) -> None:
    assert example("ctc_recognizer").main(steps=120, batch=16) > 0.7
    assert re.search(r"'aten::_ctc_loss': \{'served': 120\}", capsys.readouterr().out)


def test_decoding_over_pages_is_attention_over_whole_keys(example) -> None:
    assert example("decode_step").main(tokens=18, heads=4, size=16) < 1e-5


def test_weights_of_few_bits(example) -> None:
    errors = example("quantized_weights").main(rows=3, depth=256, columns=96)
    assert all(same < 1e-4 for same, _ in errors.values())
    assert errors[8][1] < 0.01 < errors[4][1] < 0.2


def test_graph_by_hand(example, capsys) -> None:
    assert example("graph").main("cpu", rows=8, width=64, hidden=96) < 1e-4
    assert "a plan of" in capsys.readouterr().out


def test_several_processes_learn_what_one_learns(example, tmp_path) -> None:
    """Several processes match a single one. On GPUs convolutions use TF32, and each process has its own batch
    norm statistics."""
    several, results = example("several_gpus"), tmp_path / "state.pt"
    several.main("ddp", "fsdp", results=str(results))
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpus else "cpu")
    torch.manual_seed(0)
    with torch.device("cpu"):  # where the processes draw their numbers
        alone = several.Model(synchronised=on_gpus).to(device)
        several.train(alone, 0, 1, device)
    wanted = {name: value.cpu() for name, value in alone.state_dict().items()}
    near = {"rtol": 5e-3, "atol": 1e-3} if on_gpus else {"rtol": 1e-4, "atol": 1e-5}
    for found in torch.load(results).values():
        served = {name: counts.get("served") for name, counts in found["report"].items()}
        assert several.STEPS in [count for name, count in served.items() if "scaled_dot_product" in name]
        torch.testing.assert_close(found["state"], wanted, **near)


def test_the_page_lists_every_example() -> None:
    named = set(re.findall(r"\[(\w+\.py)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}
