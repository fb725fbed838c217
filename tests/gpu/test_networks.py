# SPDX-License-Identifier: Apache-2.0
"""Ten training steps of networks of transformers and timm in bfloat16 on a GPU: the losses are eager torch's
under `enable()` and compiled with `backend="weft"`. Vocabularies are those of the published models."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import checks
import pytest

torch = checks.need_gpu()
transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")
import weft.torch as weft_torch  # noqa: E402

BATCH, TOKENS, STEPS = 4, 77, 10
Network = tuple[Any, dict[str, Any]]


def words(vocabulary: int, tokens: int = TOKENS) -> Any:
    return torch.randint(3, vocabulary, (BATCH, tokens), device="cuda")


def decoder(name: str, vocabulary: int, **how: Any) -> Network:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{name}Config")(vocab_size=vocabulary, **sizes, **how)
    x = words(vocabulary)
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": x, "labels": x}


def bert() -> Network:
    config = transformers.BertConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64, device="cuda")
    mask[1, 50:] = 0
    labels = torch.where(torch.rand(BATCH, TOKENS, device="cuda") < 0.5, words(30522), -100)
    given = {"input_ids": words(30522), "attention_mask": mask, "labels": labels}
    return transformers.BertForMaskedLM(config), given


def whisper() -> Network:
    config = transformers.WhisperConfig(
        vocab_size=51865, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=150,
        dropout=0.0,
    )  # fmt: skip
    given = {"input_features": torch.randn(BATCH, 80, 300, device="cuda"), "labels": words(51865, 33)}
    return transformers.WhisperForConditionalGeneration(config), given


def t5() -> Network:
    config = transformers.T5Config(
        d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": words(32128),
        "labels": words(32128, 31),
    }


def classifier(name: str) -> Network:
    class WithLoss(torch.nn.Module):  # type: ignore[misc]
        """A classifier that returns its loss as transformers' models do."""

        def __init__(self) -> None:
            super().__init__()
            self.model = timm.create_model(name, num_classes=1000, drop_path_rate=0.0)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": torch.nn.functional.cross_entropy(self.model(x), labels)}

    x = torch.randn(BATCH, 3, 224, 224, device="cuda")
    return WithLoss(), {"x": x, "labels": torch.randint(0, 1000, (BATCH,), device="cuda")}


NETWORKS: dict[str, Callable[[], Network]] = {
    "bert": bert,
    "whisper": whisper,
    "llama": lambda: decoder("Llama", 32000, num_key_value_heads=2),
    "mixtral": lambda: decoder("Mixtral", 32000, num_key_value_heads=2, num_local_experts=4),
    "t5": t5,
    "swin": lambda: classifier("swin_tiny_patch4_window7_224"),
    "mobilenet_v3": lambda: classifier("mobilenetv3_large_100"),
    "regnet": lambda: classifier("regnety_032"),
}


def losses(model: Any, given: dict[str, Any], run: Callable[..., Any]) -> list[float]:
    """The loss before each of the steps."""
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(**given)["loss"]
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    return found


@pytest.mark.parametrize("face", ["enable", "backend"])
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_those_of_eager_torch(name: str, face: str) -> None:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, given = NETWORKS[name]()
    model = model.to("cuda", torch.bfloat16).train()
    given = {key: each.bfloat16() if each.is_floating_point() else each for key, each in given.items()}
    eager, own = model, copy.deepcopy(model)
    expected = losses(eager, given, eager)
    if face == "enable":
        with weft_torch.enable():
            found = losses(own, given, own)
    else:
        torch._dynamo.reset()
        found = losses(own, given, torch.compile(own, backend=weft_torch.backend))
    for step, (a, b) in enumerate(zip(found, expected, strict=True)):
        # Rounding in bfloat16 grows from step to step.
        assert math.isclose(a, b, rel_tol=0.03, abs_tol=0.02), f"step {step}: {found}, eager {expected}"
