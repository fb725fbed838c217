"""Trains ResNet-18 on the handwritten digits that scikit-learn ships: once with eager PyTorch, once with
Weft's operators, from the same weights and in the same order.

    python examples/digits_resnet.py [cuda]

Needs torch and scikit-learn.
"""

from __future__ import annotations

import sys

import torch
import weft.torch
from torch import nn

SEED, BATCH, RATE, HELD_OUT = 7, 64, 0.05, 597
F = nn.functional


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        changes = stride > 1 or before != after
        shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
        self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(after)) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(width: int) -> nn.Module:
    """ResNet-18 with a stem for small images."""
    stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width << stage
        layers += [Block(before, after, 2 if stage else 1), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def digits(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images, [N, 1, 8, 8], and their labels."""
    from sklearn.datasets import load_digits

    results = load_digits()
    images = torch.from_numpy(results.images).float()[:, None] / 16
    order = torch.randperm(len(images), generator=torch.Generator("cpu").manual_seed(SEED), device="cpu")
    return images[order].to(device), torch.from_numpy(results.target)[order].to(device)


def train(
    images: torch.Tensor, labels: torch.Tensor, width: int, epochs: int, count: int
) -> tuple[float, float]:
    """Returns the last loss and the accuracy on the test set."""
    torch.manual_seed(SEED)
    with torch.device("cpu"):  # so that the initial weights are the same on every device
        model = resnet18(width)
    model.to(images.device)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    loss = torch.zeros(())
    order = torch.arange(HELD_OUT, HELD_OUT + count, device=images.device)
    for _ in range(epochs):
        for batch in order.split(BATCH):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        right = (model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]).float().mean()
    return loss.item(), right.item()


def main(
    device: str = "cpu", width: int = 16, epochs: int = 5, count: int = 1200
) -> list[tuple[float, float]]:
    """Loss and accuracy with eager torch and with Weft."""
    images, labels = digits(device)
    eager = train(images, labels, width, epochs, count)
    with weft.torch.enable() as weft_under:
        under = train(images, labels, width, epochs, count)
    for name, (loss, right) in (("eager torch", eager), ("with Weft", under)):
        print(f"{name:12} loss {loss:.3f}, {right:.1%} of {HELD_OUT} held-out digits")
    print(weft_under.report(), dict(weft_under.report()), sep="\n")
    return [eager, under]


if __name__ == "__main__":
    main(*sys.argv[1:])
