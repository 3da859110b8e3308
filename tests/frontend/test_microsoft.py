"""Operators of the domain com.microsoft, against onnxruntime, whose own they are."""

import numpy as np
import onnx
import pytest
from graphs import normal, reference
from onnx import numpy_helper

import tvm_dyn
from tvm_dyn.errors import UnsupportedOperatorError

TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}


def graph(op_type: str, inputs: list, outputs: int = 1, **attrs) -> onnx.ModelProto:
    """A model of one node. Inputs: arrays are constants, ("dtype", shape) come in, None is left out."""
    names, infos, constants = [], [], []
    for k, given in enumerate(inputs):
        names.append("" if given is None else f"i{k}")
        if isinstance(given, np.ndarray | np.generic):
            constants.append(numpy_helper.from_array(np.asarray(given), f"i{k}"))
        elif given is not None:
            infos.append(onnx.helper.make_tensor_value_info(f"i{k}", TYPES[given[0]], given[1]))
    results = [f"o{k}" for k in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, domain="com.microsoft", **attrs)
    body = onnx.helper.make_graph(
        [node], "g", infos, [onnx.helper.make_empty_tensor_value_info(r) for r in results], constants
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(body, opset_imports=opsets, ir_version=8)


def check(model: onnx.ModelProto, *calls: list[np.ndarray], rounding: int = 0) -> None:
    """Every call gives onnxruntime's results; codes may differ by `rounding` (it sums in another order)."""
    library = tvm_dyn.compile(model)
    for arrays in calls:
        for got, want in zip(library(*arrays), reference(model, arrays), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            if want.dtype.kind in "iu":
                assert np.abs(got.astype("int64") - want.astype("int64")).max(initial=0) <= rounding
            else:
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def codes(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("op_type", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_activations(op_type):
    bias = [normal(8)] if op_type in ("BiasGelu", "FastGelu") else []
    check(graph(op_type, [("float32", ["n", "m", 8]), *bias]), *[[normal(n, m, 8)] for n, m in [(1, 1), (3, 7)]])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_norms_of_sums(op_type, bias):
    beta = [normal(32, seed=3)] if op_type == "SkipLayerNormalization" else []
    tensors = [("float32", ["n", "m", 32])] * 2
    rest = [normal(32, seed=2), *beta, *([normal(32, seed=4)] if bias else [])]
    model = graph(op_type, [*tensors, *rest], outputs=1, epsilon=1e-5)
    check(model, *[[normal(n, m, 32), normal(n, m, 32, seed=1)] for n, m in [(1, 1), (2, 7)]])


def test_the_sum_of_a_norm_is_a_result_too():
    model = graph("SkipLayerNormalization", [*[("float32", ["n", "m", 32])] * 2, normal(32), normal(32)], outputs=4)
    for k in (2, 1):
        model.graph.node[0].output[k] = ""
        del model.graph.output[k]
    check(model, [normal(2, 5, 32), normal(2, 5, 32, seed=1)])


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings(segments):
    ids = [("int32", ["b", "s"])]
    inputs = [*ids, *(ids if segments else [None]), normal(50, 32), normal(20, 32), normal(2, 32) if segments else None]
    model = graph("EmbedLayerNormalization", [*inputs, normal(32, seed=5), normal(32, seed=6), *ids], outputs=2)

    def call(b: int, s: int) -> list[np.ndarray]:
        generator = np.random.default_rng(s)
        kinds = [generator.integers(0, 2, (b, s)).astype("int32")] if segments else []
        return [generator.integers(0, 50, (b, s)).astype("int32"), *kinds, np.ones((b, s), "int32")]

    check(model, call(1, 1), call(3, 7))


@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}])
def test_fused_matmul(attrs):
    shape = ["b", "k", "n"] if attrs.get("transA") else ["b", "n", "k"]
    other = ["b", "m", "k"] if attrs.get("transB") else ["b", "k", "m"]
    model = graph("FusedMatMul", [("float32", shape), ("float32", other)], **attrs)
    sizes = [{"b": 1, "n": 1, "k": 1, "m": 1}, {"b": 2, "n": 5, "k": 7, "m": 3}]
    check(model, *[_operands(model, s) for s in sizes])


def _operands(model: onnx.ModelProto, extents: dict[str, int]) -> list[np.ndarray]:
    shapes = [[d.dim_param for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    return [normal(*(extents[d] for d in shape), seed=k) for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_of_packed_weights(bits, zeros):
    depth, columns, block = 80, 24, 32
    blocks = 3
    packed = codes("uint8", columns, blocks, block * bits // 8)
    scales = np.abs(normal(columns * blocks)) / 8
    points = [codes("uint8", columns * -(-blocks * bits // 8))] if zeros else []
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    model = graph("MatMulNBits", [("float32", ["n", depth]), packed, scales, *points], **attrs)
    check(model, *[[normal(n, depth) / 16] for n in (1, 7)])


# -- quantized -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("op_type", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_integer_products_in_floats(op_type, per_column):
    count = (24,) if per_column else (1,)
    scales, zeros, bias = np.full(count, 0.01, "float32"), codes("int8", *count) // 32, normal(24)
    weights = codes("int8", 48, 24)
    if op_type == "DynamicQuantizeMatMul":
        model = graph(op_type, [("float32", ["b", "n", 48]), weights, scales, zeros, bias])
        check(model, *[[normal(b, n, 48)] for b, n in [(1, 1), (2, 7)]])
    else:
        a = [np.array([0.02], "float32"), scales, np.array([120], "uint8"), zeros, bias]
        model = graph(op_type, [("uint8", ["b", "n", 48]), weights, *a])
        check(model, *[[codes("uint8", b, n, 48)] for b, n in [(1, 1), (2, 7)]])


@pytest.mark.parametrize("quantized", [False, True])
def test_qgemm(quantized):
    tail = [np.array(3.0, "float32"), np.array(7, "uint8")] if quantized else []
    inputs = [("uint8", ["n", 48]), np.array(0.02, "float32"), np.array(120, "uint8"), codes("int8", 24, 48)]
    inputs += [np.array(0.05, "float32"), np.array(0, "int8"), codes("int32", 24) >> 16]
    model = graph("QGemm", [*inputs, *tail], transB=1)
    check(model, *[[codes("uint8", n, 48)] for n in (1, 7)], rounding=1)


S = [np.array(v, "float32") for v in (0.05, 0.03, 0.06)]
Z = [np.array(v, "uint8") for v in (120, 128, 100)]


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_quantized_binary(op_type):
    model = graph(op_type, [("uint8", ["n", "m"]), S[0], Z[0], ("uint8", ["n", "m"]), S[1], Z[1], S[2], Z[2]])
    check(model, *[[codes("uint8", n, m), codes("uint8", n, m, seed=1)] for n, m in [(1, 1), (7, 33)]], rounding=1)


@pytest.mark.parametrize(("op_type", "attrs"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})])
def test_quantized_unary(op_type, attrs):
    model = graph(op_type, [("uint8", ["n"]), S[0], Z[0], S[1], Z[1]], **attrs)
    check(model, [codes("uint8", 1)], [codes("uint8", 257)], rounding=1)


def test_quantized_softmax():
    scale, zero = np.array(1 / 256, "float32"), np.array(0, "uint8")
    model = graph("QLinearSoftmax", [("uint8", ["n", "m"]), S[0], Z[0], scale, zero], axis=-1, opset=13)
    check(model, *[[codes("uint8", n, m)] for n, m in [(1, 1), (7, 33)]], rounding=1)


def test_a_softmax_that_flattens_is_refused():
    model = graph("QLinearSoftmax", [("uint8", ["n", "m", 3]), S[0], Z[0], S[1], Z[1]], axis=1, opset=11)
    with pytest.raises(UnsupportedOperatorError, match="opset 11"):
        tvm_dyn.compile(model)


def test_codes_without_a_zero_point_stay_of_their_type():
    """onnxruntime aborts on this one: numpy tells what is right."""
    library = tvm_dyn.compile(graph("QLinearSigmoid", [("int8", ["n"]), S[0], np.array(3, "int8"), S[1]]))
    for x in (codes("int8", 1), codes("int8", 257)):
        value = 1 / (1 + np.exp(-(x.astype("float64") - 3) * float(S[0])))
        (found,) = library(x)
        assert found.dtype == np.int8
        np.testing.assert_allclose(found, np.clip(np.rint(value / float(S[1])), -128, 127), atol=1)


@pytest.mark.parametrize("op_type", ["QLinearGlobalAveragePool", "QLinearAveragePool"])
def test_quantized_pools(op_type):
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]} if op_type == "QLinearAveragePool" else {}
    model = graph(op_type, [("uint8", ["n", 3, "h", "w"]), S[0], Z[0], S[1], Z[1]], **attrs)
    check(model, *[[codes("uint8", n, 3, h, w)] for n, h, w in [(1, 2, 2), (2, 7, 9)]], rounding=1)


def test_quantized_concat_and_where():
    parts = [("uint8", ["n", 3]), S[0], Z[0], ("uint8", ["n", 5]), S[1], Z[1]]
    model = graph("QLinearConcat", [S[2], Z[2], *parts], axis=1)
    check(model, [codes("uint8", 7, 3), codes("uint8", 7, 5)], rounding=1)
    sides = [("uint8", ["n", 3]), S[0], Z[0], ("uint8", ["n", 3]), S[1], Z[1], S[2], Z[2]]
    model = graph("QLinearWhere", [("bool", ["n", 3]), *sides])
    check(model, [codes("uint8", 7, 3) > 99, codes("uint8", 7, 3), codes("uint8", 7, 3, seed=1)], rounding=1)


# -- attention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, "lengths", "keys", "pairs"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_packed_projections(mask, causal):
    shapes = {None: None, "lengths": ["b"], "keys": ["b", "s"], "pairs": ["b", "s", "s"]}[mask]
    masks = [] if shapes is None else [("int32", shapes)]
    weights = [normal(32, 96) / 6, normal(96, seed=1)]
    model = graph("Attention", [("float32", ["b", "s", 32]), *weights, *masks], num_heads=4, unidirectional=causal)

    def call(b: int, s: int) -> list[np.ndarray]:
        given = {
            "lengths": np.arange(b, dtype="int32") % s + 1,
            "keys": (np.arange(s) <= np.arange(b)[:, None]).astype("int32"),
            "pairs": np.tril(np.ones((b, s, s), "int32")),
        }
        return [normal(b, s, 32), *([given[mask]] if mask else [])]

    check(model, call(1, 1), call(2, 7), call(3, 19))


def test_attention_with_a_cache():
    cache = [None, ("float32", [2, "b", 4, "p", 8])]
    inputs = [("float32", ["b", "s", 32]), normal(32, 96) / 6, normal(96), *cache]
    model = graph("Attention", inputs, 2, num_heads=4, unidirectional=1)
    check(model, *[[normal(b, s, 32), normal(2, b, 4, p, 8)] for b, s, p in [(1, 1, 5), (2, 3, 4), (2, 3, 0)]])


@pytest.mark.parametrize("kind", ["plain", "bias", "mask", "added"])
def test_multi_head_attention(kind):
    tensors = [("float32", ["b", "s", 32]), *[("float32", ["b", "t", 32])] * 2]
    extra = {
        "plain": [],
        "bias": [normal(96)],
        "mask": [None, ("int32", ["b", "t"])],
        "added": [None, None, ("float32", [1, 4, "s", "t"])],
    }[kind]
    model = graph("MultiHeadAttention", [*tensors, *extra], num_heads=4)

    def call(b: int, s: int, t: int) -> list[np.ndarray]:
        tail = {"mask": [(np.arange(t) <= np.arange(b)[:, None]).astype("int32")], "added": [normal(1, 4, s, t)]}
        return [normal(b, s, 32), normal(b, t, 32, seed=1), normal(b, t, 32, seed=2), *tail.get(kind, [])]

    check(model, call(1, 1, 1), call(2, 7, 5))


def test_multi_head_attention_with_a_cache():
    past = ("float32", ["b", 4, "p", 8])
    tensors = [("float32", ["b", "s", 32])] * 3
    model = graph("MultiHeadAttention", [*tensors, None, None, None, past, past], 3, num_heads=4, unidirectional=1)
    calls = [
        [*(normal(b, s, 32, seed=k) for k in range(3)), normal(b, 4, p, 8), normal(b, 4, p, 8, seed=1)]
        for b, s, p in [(1, 1, 5), (2, 3, 4)]
    ]
    check(model, *calls)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    angles = np.arange(40)[:, None] / 10 ** np.arange(4)
    tables = [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")]
    inputs = [("float32", ["b", "s", 32]), ("int64", ["b", "s"]), *tables]
    model = graph("RotaryEmbedding", inputs, interleaved=interleaved)
    calls = [[normal(b, s, 32), (np.arange(b * s).reshape(b, s) % 40).astype("int64")] for b, s in [(1, 1), (2, 7)]]
    check(model, *calls)


@pytest.mark.parametrize("rotary", [0, 1])
def test_grouped_query_attention(rotary):
    angles = np.arange(40)[:, None] / 10 ** np.arange(8)
    tables = [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")] if rotary else []
    past = ("float32", ["b", 2, "p", 16])
    new = [("float32", ["b", "s", 64]), *[("float32", ["b", "s", 32])] * 2]
    inputs = [*new, past, past, ("int32", ["b"]), ("int32", []), *tables]
    model = graph("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2, do_rotary=rotary)

    def call(b: int, s: int, p: int) -> list[np.ndarray]:
        cache = [normal(b, 2, p, 16, seed=k) for k in range(2)]
        tokens = [normal(b, s, 64), normal(b, s, 32, seed=1), normal(b, s, 32, seed=2)]
        return [*tokens, *cache, np.full(b, p + s - 1, "int32"), np.array(p + s, "int32")]

    check(model, call(1, 1, 0), call(2, 7, 0), call(2, 1, 5))
