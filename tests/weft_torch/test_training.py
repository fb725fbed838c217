"""`python -m benchmarks models`: what it trains, and the table it writes, at the smallest size."""

import csv
import itertools
import sys

import pytest

torch = pytest.importorskip("torch")

from weft.errors import BadParameterError  # noqa: E402

from benchmarks import models, suite, training  # noqa: E402


def tiny():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 5))


def test_sides_train_to_one_loss(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(models, "MODELS", {"tiny": models.Model(tiny, (), (2, 3, 6, 6), 5, True)})
    table = tmp_path / "models.csv"
    options = suite.Options(groups=("models",), device="cpu", peer="eager", csv=table)
    assert suite.run(options) == 0
    (row,) = csv.DictReader(table.open())
    torch.manual_seed(5)
    network, x = tiny(), torch.randn(2, 3, 6, 6)
    optimiser = torch.optim.SGD(network.parameters(), lr=training.RATE, momentum=0.9)
    for _ in range(training.LOSSES):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), torch.arange(2))
        loss.backward()
        optimiser.step()
    for side in ("eager", "enabled"):
        assert abs(float(row[f"{side}_loss"]) - loss.item()) < 2e-5
        assert float(row[f"{side}_ms"]) > 0
    assert not row["weft_ms"]
    assert "models: time of eager / enabled is" in capsys.readouterr().out


def test_refusals_of_either_side_are_reported(monkeypatch):
    monkeypatch.setattr(models, "MODELS", {"broken": models.Model(tiny, (), (2, 3, 5, 5), 5)})
    found = training.measure("broken", "cpu", ("eager",))  # 5 x 5 pixels do not make 64 features
    assert not found.seconds
    assert found.notes[0].startswith("eager: RuntimeError: ")


def test_sides_are_timed_in_turn(monkeypatch):
    """A side that fails is left out and reported, and the others continue."""
    calls = []

    def fail():
        calls.append("inductor")
        if len(calls) > 6 * training.STEPS:
            raise RuntimeError("no memory")

    monkeypatch.setattr(training, "GROUP_SECONDS", 0)
    found = training.Trained("none")
    steps = {"eager": lambda: calls.append("eager"), "inductor": fail, "weft": lambda: calls.append("weft")}
    training._time_groups(training._Place(torch, "cpu"), steps, found)
    turns = [side for side, _ in itertools.groupby(calls)]
    assert turns[:6] == ["eager", "inductor", "weft"] * 2
    assert turns[-4:] == ["eager", "weft"] * 2
    assert turns.count("weft") == training.GROUPS + 1
    assert found.seconds.keys() == {"eager", "weft"}
    assert found.notes == ["inductor: RuntimeError: no memory"]


def test_options_that_models_do_not_take():
    with pytest.raises(BadParameterError, match="models take --only, --list, --device, --peer and --csv"):
        suite.run(suite.Options(groups=("models",), quick=True))
    with pytest.raises(BadParameterError, match=r"--only '\(' is not a valid regular expression"):
        suite.run(suite.Options(groups=("models",), only="("))
    with pytest.raises(BadParameterError, match="--peer cudnn cannot train models"):
        suite.run(suite.Options(groups=("models",), peer="cudnn"))


def test_models_have_names(capsys):
    assert suite.run(suite.Options(groups=("models",), list=True, only="unet|vit")) == 0
    assert capsys.readouterr().out.split() == ["diffusion_unet", "vit_b16", "unet_3d"]


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(suite.training.UnavailableError, match="training needs PyTorch"):
        training.names()
