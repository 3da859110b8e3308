"""What users do: tiny Hugging Face models exported with torch.export."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.export import Dim  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvm_dyn  # noqa: E402

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SHAPES = [(1, 1), (1, 7), (2, 16), (3, 17), (1, 64), (5, 13), (7, 31), (2, 97)]


def ids(batch, seq):
    return torch.randint(0, 99, (batch, seq))


def bert():
    return transformers.BertModel(transformers.BertConfig(vocab_size=99, **SIZES))


def gpt2():
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=99, use_cache=False, **sizes))


def llama():
    config = transformers.LlamaConfig(vocab_size=99, num_key_value_heads=2, use_cache=False, **SIZES)
    return transformers.LlamaForCausalLM(config)


def vit():
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SIZES))


def bert_inputs(batch, seq):
    mask = (torch.arange(seq) <= torch.randint(0, seq, (batch, 1))).long()
    return {"input_ids": ids(batch, seq), "attention_mask": mask, "token_type_ids": ids(batch, seq) % 2}


def token_inputs(batch, seq):
    return {"input_ids": ids(batch, seq)}


def pixel_inputs(batch, _):
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "make"), [(bert, bert_inputs), (gpt2, token_inputs), (llama, token_inputs), (vit, pixel_inputs)]
)
def test_tiny_models(build, make):
    torch.manual_seed(0)
    model = build().eval().requires_grad_(False)
    example = make(2, 8)
    both, batch_only = {0: Dim("batch"), 1: Dim("seq", max=100)}, {0: Dim("batch")}
    spec = {name: both if t.ndim == 2 else batch_only for name, t in example.items()}
    library = tvm_dyn.compile(torch.export.export(model, (), example, dynamic_shapes=spec, strict=False))
    exact = copy.deepcopy(model).double()
    for extents in SHAPES:
        inputs = make(*extents)
        doubled = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
        expected = pytree.tree_leaves(exact(**doubled))
        for found, reference in zip(library(**inputs), expected, strict=True):
            torch.testing.assert_close(found.double(), reference, rtol=2e-5, atol=2e-5)
