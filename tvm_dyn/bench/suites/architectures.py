"""The models by name, from transformers with random weights; takes torch, so it is imported when one is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


class Outputs(nn.Module):
    """A model's tensors as a tuple."""

    def __init__(self, model: nn.Module, **options: Any):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.model(*inputs, return_dict=False, **self.options)


class Decoder(nn.Module):
    """A causal model over tokens and the keys and values of each layer; returns logits and the longer ones."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        input_ids, *past = inputs
        cache = transformers.DynamicCache()
        for layer, state in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(*state, layer)
        result = self.model(input_ids, past_key_values=cache, use_cache=True)
        present = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return (result.logits, *present)


def bert_base() -> nn.Module:
    return Outputs(transformers.BertModel(transformers.BertConfig()))


def minilm() -> nn.Module:
    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    return Outputs(transformers.BertModel(config))


def gpt2_decode() -> nn.Module:
    return Decoder(transformers.GPT2LMHeadModel(transformers.GPT2Config()))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1408,
        vocab_size=8000,
        use_cache=False,
    )
    return Outputs(transformers.LlamaForCausalLM(config))


def resnet50() -> nn.Module:
    return Outputs(transformers.ResNetForImageClassification(transformers.ResNetConfig()))


def vit_base() -> nn.Module:
    model = transformers.ViTForImageClassification(transformers.ViTConfig())
    return Outputs(model, interpolate_pos_encoding=True)


def build(name: str) -> nn.Module:
    """The model, the same at every call, ready for inference."""
    torch.manual_seed(0)
    return globals()[name]().eval().requires_grad_(False)


def count_flops(module: nn.Module, inputs: Sequence[Tensor]) -> int:
    """Multiplications and additions of the matrix products and convolutions of one call."""

    def attention(query: Any, key: Any, value: Any, *_rest: Any, **_options: Any) -> int:
        return sdpa_flop_count(query, key, value)

    mapping = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter, torch.no_grad():
        module(*inputs)
    return counter.get_total_flops()
