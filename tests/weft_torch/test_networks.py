"""Networks of transformers and timm at tiny sizes: results, gradients and updated buffers against float64,
under `enable()` and compiled with `backend="weft"`, and generation with a cache. A network whose package is
not installed is skipped by its name."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from weft.torch import compile as weft_compile  # noqa: E402
from weft.torch.regions import Cover  # noqa: E402

BATCH, TOKENS, WORDS = 2, 7, 61
Made = tuple[Any, dict[str, Any]]
"""A network and its arguments."""

NETWORKS: dict[str, Callable[[], Made]] = {}


def package(name: str) -> Any:
    """Imports the package of a network, or skips its test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:  # also of what the package imports, such as torchvision for another torch
        return pytest.skip(f"{name} is not installed: {error}")


def network(make: Callable[[], Made]) -> Callable[[], Made]:
    NETWORKS[make.__name__] = make
    return make


def words(tokens: int = TOKENS) -> Any:
    return torch.randint(3, WORDS, (BATCH, tokens))


def images(extent: int) -> Any:
    return torch.randn(BATCH, 3, extent, extent)


# ---- Language models of transformers ----

SIZES = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def decoder(name: str, **how: Any) -> None:
    def make() -> Made:
        transformers = package("transformers")
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **how}, **ENDS)
        x = words()
        return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": x, "labels": x}

    NETWORKS[name.lower()] = make


decoder("Llama", num_key_value_heads=1, num_hidden_layers=2)
decoder("Mistral", num_key_value_heads=1, sliding_window=4)
decoder("Gemma2", num_key_value_heads=1, head_dim=8, sliding_window=4)
decoder("OPT", ffn_dim=24, word_embed_proj_dim=16, dropout=0.0)


@network
def mixtral() -> Made:
    """Products of all experts in one batch, as torch groups products in bfloat16 only."""
    transformers = package("transformers")
    how = {"num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(**SIZES, **ENDS, **how, output_router_logits=True)
    config._experts_implementation = "batched_mm"
    x = words()
    return transformers.MixtralForCausalLM(config), {"input_ids": x, "labels": x}


@network
def gpt2() -> Made:
    transformers = package("transformers")
    sizes = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    x = words()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, **ENDS))
    return model, {"input_ids": x, "labels": x}


@network
def bert() -> Made:
    transformers = package("transformers")
    config = transformers.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[1, 5:] = 0
    labels = torch.where(torch.rand(BATCH, TOKENS) < 0.5, words(), -100)
    given = {"input_ids": words(), "attention_mask": mask, "labels": labels}
    return transformers.BertForMaskedLM(config), given


@network
def t5() -> Made:
    transformers = package("transformers")
    sizes = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": words(), "labels": words(5)}


@network
def whisper() -> Made:
    """Its vocabulary and its number of frames are odd."""
    transformers = package("transformers")
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    widths = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 4}
    lengths = {"vocab_size": WORDS, "max_source_positions": 9, "max_target_positions": 12}
    config = transformers.WhisperConfig(
        **heads, **layers, **widths, **lengths, **ENDS, dropout=0.0, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    given = {"input_features": torch.randn(BATCH, 4, 18), "labels": words(5)}
    return transformers.WhisperForConditionalGeneration(config), given


# ---- Images ----


def classifier(name: str, extent: int = 16, **how: Any) -> None:
    def make() -> Made:
        return package("timm").create_model(name, num_classes=5, **how), {"x": images(extent)}

    NETWORKS[name.partition("_")[0]] = make


classifier("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 8, 8, 12))
classifier("densenet121", 32, growth_rate=4, block_config=(1, 2))
classifier("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
classifier(
    "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=16, depths=(2,),
    num_heads=(2,), drop_path_rate=0.0,
)  # fmt: skip


@network
def resnet() -> Made:
    resnet = package("timm.models.resnet")
    stem = {"stem_type": "deep", "stem_width": 4, "avg_down": True}
    sizes = {"layers": (1, 1, 1, 1), "channels": (8, 8, 8, 16)}
    return resnet.ResNet(resnet.BasicBlock, num_classes=5, **sizes, **stem), {"x": images(32)}


@network
def mixer() -> Made:
    mixer = package("timm.models.mlp_mixer")
    how = {"img_size": 16, "patch_size": 8, "num_blocks": 1, "embed_dim": 16}
    return mixer.MlpMixer(num_classes=5, **how), {"x": images(16)}


@network
def mobilenetv3() -> Made:
    builder, model = package("timm.models._efficientnet_builder"), package("timm.models.mobilenetv3")
    blocks = builder.decode_arch_def([["ds_r1_k3_s2_e1_c8_se0.25_nre"], ["ir_r1_k5_s1_e3_c8_se0.25"]])
    how = {"num_features": 16, "stem_size": 8, "act_layer": torch.nn.Hardswish}
    return model.MobileNetV3(blocks, num_classes=5, **how), {"x": images(32)}


@network
def segformer() -> Made:
    transformers = package("transformers")
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )  # fmt: skip
    given = {"pixel_values": images(16), "labels": torch.randint(0, 4, (BATCH, 16, 16))}
    return transformers.SegformerForSemanticSegmentation(config), given


# ---- Comparison ----


def floats(value: Any) -> list[Any]:
    """The tensors of floats in what a network returns, without its cache."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = [each for name, each in value.items() if name != "past_key_values"]
    return [each for part in value for each in floats(part)] if isinstance(value, (list, tuple)) else []


def doubled(given: dict[str, Any]) -> dict[str, Any]:
    return {name: each.double() if each.is_floating_point() else each for name, each in given.items()}


def everything(run: Any, model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The results, the gradients of the loss and the buffers, by name."""
    model.zero_grad()
    results = run(**given)
    found = {f"result {i}": each for i, each in enumerate(floats(results))}
    if isinstance(results, dict):
        results["loss"].backward()
    else:
        results.backward(torch.linspace(-1, 1, results.numel()).view(results.shape).to(results.dtype))
    found |= {f"gradient of {name}": each.grad for name, each in model.named_parameters()}
    buffers = {f"buffer {name}": each.clone() for name, each in model.named_buffers()}
    return {name: each.detach() for name, each in (found | buffers).items() if each is not None}


def assert_near(found: dict[str, Any], eager: dict[str, Any], exact: dict[str, Any]) -> None:
    """At most three times as far from the exact values as eager torch, or a few roundings of their norm."""
    assert found.keys() == eager.keys() == exact.keys()
    for name, truth in exact.items():
        if truth.is_floating_point():
            assert found[name].dtype == eager[name].dtype, name
            error, torchs = ((each[name].double() - truth.double()).norm() for each in (found, eager))
            bound = 3 * torchs + 2e-6 * truth.double().norm() + 1e-7
            assert error <= bound, f"{name}: error {error:.3g}, eager torch's {torchs:.3g}"
        else:
            assert torch.equal(found[name], truth), name


def made(name: str) -> Made:
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, given = NETWORKS[name]()
    return model.train(), given


def compiled(model: Any, cover: Cover, **how: Any) -> Any:
    """Operators that Weft does not support run eagerly in torch: Inductor would take seconds."""
    torch._dynamo.reset()
    options = {"inductor": False}
    return torch.compile(model, backend=lambda m, e: weft_compile.backend(m, e, cover, options), **how)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    model, given = made(name)
    networks = [copy.deepcopy(model) for _ in range(3)]
    exact = networks[0].double()
    truth, eager = everything(exact, exact, doubled(given)), everything(networks[1], networks[1], given)
    with weft_torch.enable() as enabled:
        found = everything(networks[2], networks[2], given)
    assert_near(found, eager, truth)
    assert any("served" in outcomes for outcomes in enabled.report().values())
    cover = Cover()
    assert_near(everything(compiled(model, cover), model, given), eager, truth)
    assert not cover.refused
    assert len(cover.graphs) >= 2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_a_cache(name: str) -> None:
    """Every step's logits, of the words that float64 chooses."""
    model, given = made(name)
    exact = copy.deepcopy(model.eval()).double()
    how = {
        "max_new_tokens": 4, "do_sample": False, "use_cache": True, "output_logits": True,
        "return_dict_in_generate": True, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    truth = exact.generate(given["input_ids"], **how)
    with weft_torch.enable():
        enabled = model.generate(given["input_ids"], **how)
    cover = Cover()
    model.forward = compiled(model.forward, cover, dynamic=True)
    for found in (enabled, model.generate(given["input_ids"], **how)):
        assert torch.equal(found.sequences, truth.sequences)
        for own, other in zip(found.logits, truth.logits, strict=True):
            torch.testing.assert_close(own.double(), other.double(), rtol=1e-4, atol=1e-5)
    assert not cover.refused
    assert len(cover.graphs) >= 2
