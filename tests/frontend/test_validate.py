"""Hostile and broken ONNX files are refused with words, quickly; odd but valid ones load."""

import os
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.validate import load_model


def value(name, shape=("n",), elem_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(nodes, inputs=("x",), outputs=("y",), initializers=(), functions=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name) if isinstance(name, str) else name for name in inputs],
        list(map(value, outputs)),
    )
    graph.initializer.extend(initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions)


def relu(source, target, name=""):
    return helper.make_node("Relu", [source], [target], name=name)


def initializer(name="w", dims=(2, 3), data=None):
    tensor = numpy_helper.from_array(np.zeros(dims, "float32") if data is None else data, name)
    return tensor


def claiming(dims):
    tensor = initializer()
    tensor.dims[:] = dims
    return tensor


def with_tensor(tensor):
    return model([helper.make_node("Identity", ["w"], ["y"])], initializers=[tensor])


def nested(depth):
    node = relu("x", "y")
    for level in range(depth):
        branch = helper.make_graph([node], f"g{level}", [], [value("y")])
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return node


def function(name, callees):
    nodes = [
        helper.make_node(callee, ["a"], ["b"] if i == 0 else [f"b{i}"], domain="local")
        for i, callee in enumerate(callees)
    ]
    return helper.make_function(
        "local", name, ["a"], ["b"], nodes or [relu("a", "b")], [helper.make_opsetid("", 17)]
    )


def sparse(dims):
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [0])
    result = model([helper.make_node("Identity", ["s"], ["y"])])
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    return result


def in_constant(tensor):
    return model([helper.make_node("Constant", [], ["y"], value=tensor)])


BROKEN = {
    "cycle": (
        lambda: model([relu("b", "a", "first"), relu("a", "b", "second"), relu("b", "y")]),
        r"cycle: node '(first|second)' \(Relu\) -> node '(first|second)' \(Relu\) -> node",
    ),
    "node of itself": (lambda: model([relu("y", "y", "loop")]), "cycle: node 'loop' .Relu. -> node 'loop'"),
    "missing value": (
        lambda: model([relu("z", "y", "n")]),
        "node 'n' .Relu. uses 'z', which nothing in graph 'g'",
    ),
    "missing output": (lambda: model([relu("x", "z")]), "graph output 'y' is produced by no node"),
    "missing in a branch": (lambda: model([nested(2)]), "uses 'c', which nothing"),
    "two producers": (lambda: model([relu("x", "y"), relu("x", "y")]), "node output 'y' appears 2 times"),
    "output is input": (
        lambda: model([relu("x", "x")], outputs=["x"]),
        "'x' is a node output and a graph input",
    ),
    "input twice": (lambda: model([relu("x", "y")], ["x", "x"]), "graph input 'x' appears 2 times"),
    "initializer twice": (
        lambda: model([relu("w", "y")], initializers=[initializer(), initializer()]),
        "initializer 'w' appears 2 times",
    ),
    "input without type": (
        lambda: model([relu("x", "y")], [helper.make_empty_tensor_value_info("x")]),
        "input 'x' has no type",
    ),
    "negative dim": (lambda: model([relu("x", "y")], [value("x", (3, -5))]), "'x', axis 1: negative dim -5"),
    "negative initializer dim": (
        lambda: with_tensor(claiming([-2, -3])),
        r"'w' has a negative dim: \[-2, -3\]",
    ),
    "huge claim": (
        lambda: with_tensor(claiming([1 << 40])),
        "'w', dims .*, needs 4398046511104 bytes, but has 24",
    ),
    "overflowing claim": (lambda: with_tensor(claiming([1 << 62, 1 << 62])), "needs .* bytes, but has 24"),
    "short claim": (lambda: with_tensor(claiming([1])), "needs 4 bytes, but has 24"),
    "short typed data": (
        lambda: with_tensor(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[5], float_data=[1, 2])),
        "needs 5 entries, but has 2",
    ),
    "unknown element type": (
        lambda: with_tensor(TensorProto(name="w", data_type=99, dims=[0])),
        "element type 99",
    ),
    "huge claim in Constant": (lambda: in_constant(claiming([1 << 40])), "needs 4398046511104 bytes"),
    "huge sparse claim": (lambda: sparse([1 << 40]), "claims 4398046511104 bytes"),
    "negative sparse dim": (lambda: sparse([-1]), "negative dim"),
    "recursive functions": (
        lambda: model(
            [helper.make_node("f", ["x"], ["y"], domain="local")],
            functions=[function("f", ["h"]), function("h", ["f"])],
        ),
        "functions call each other in a ring: f -> h -> f",
    ),
    "exploding functions": (
        lambda: model(
            [helper.make_node("f40", ["x"], ["y"], domain="local")],
            functions=[function("f0", []), *(function(f"f{i + 1}", [f"f{i}"] * 2) for i in range(40))],
        ),
        "more than 1000000 nodes once functions are inlined",
    ),
    "no operator set": (
        lambda: onnx.ModelProto(graph=model([relu("x", "y")]).graph),
        "imports no operator set",
    ),
    "empty": (onnx.ModelProto, "holds no graph"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_is_refused(case):
    build, message = BROKEN[case]
    proto = build()
    start = time.perf_counter()
    with pytest.raises(InvalidModelError, match=message) as caught:
        load_model(proto)
    assert caught.value.stage == "import"
    assert time.perf_counter() - start < 2


def test_files_that_are_no_models(tmp_path):
    whole = model([relu("w", "y")], initializers=[initializer(dims=(100, 100))]).SerializeToString()
    contents = {
        "cut.onnx": whole[: len(whole) // 2],
        "text.onnx": b"hello world",
        "empty.onnx": b"",
        "cut1.onnx": whole[:-1],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidModelError):
            load_model(tmp_path / name)
    for path in (tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(InvalidModelError, match="cannot read"):
            load_model(path)


def wire_field(number: int, content: bytes) -> bytes:
    """A length-delimited field of the protobuf wire format."""
    size, length = b"", len(content)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def test_graphs_nested_deeper_than_any_model(tmp_path):
    graph = model([relu("x", "y")]).graph.SerializeToString()
    for _ in range(2000):
        attribute = wire_field(6, graph)
        graph = wire_field(1, wire_field(5, attribute))
    (tmp_path / "deep.onnx").write_bytes(wire_field(7, graph))
    with pytest.raises(InvalidModelError):
        load_model(tmp_path / "deep.onnx")


def test_nodes_are_put_in_order_and_the_argument_stays():
    proto = model([relu("b", "y"), relu("a", "b"), relu("x", "a")])
    before = proto.SerializeToString()
    assert [node.output[0] for node in load_model(proto).graph.node] == ["a", "b", "y"]
    assert proto.SerializeToString() == before


def test_nodes_in_branches_see_outer_values_and_are_put_in_order():
    branch = helper.make_graph([relu("inner", "y1"), relu("late", "inner")], "b", [], [value("y1")])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    proto = model([choose, relu("x", "late")], ["x", value("c", (), TensorProto.BOOL)])
    nodes = load_model(proto).graph.node
    assert [node.op_type for node in nodes] == ["Relu", "If"]
    assert [node.output[0] for node in nodes[1].attribute[0].g.node] == ["inner", "y1"]


def test_minus_one_is_an_unnamed_dim():
    loaded = load_model(model([relu("x", "y")], [value("x", (-1, 3))]))
    first, second = loaded.graph.input[0].type.tensor_type.shape.dim
    assert not first.HasField("dim_value") and second.dim_value == 3


def test_initializers_that_are_inputs_too_and_untyped_outputs():
    proto = model([relu("w", "y")], ["x", value("w", (2, 3))], initializers=[initializer()])
    proto.graph.output[0].ClearField("type")
    assert load_model(proto).graph.node[0].op_type == "Relu"


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("raw", [True, False])
def test_stored_data_of_every_type(dtype, raw):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = helper.make_tensor(
        "w", elem_type, array.shape, array.tobytes() if raw else array.ravel(), raw=raw
    )
    np.testing.assert_array_equal(
        numpy_helper.to_array(load_model(with_tensor(tensor)).graph.initializer[0]), array
    )


@pytest.mark.parametrize(
    "elem_type", [TensorProto.INT4, TensorProto.UINT4, TensorProto.BFLOAT16, TensorProto.STRING]
)
def test_stored_data_of_packed_types(elem_type):
    content = [b"a", b"b", b"c"] if elem_type == TensorProto.STRING else [1, 2, 3]
    load_model(with_tensor(helper.make_tensor("w", elem_type, [3], content)))


def external(folder, location, *, offset=None, length=None, dims=(2, 3)):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        if entry is not None:
            tensor.external_data.add(key=key, value=str(entry))
    path = folder / "model.onnx"
    onnx.save(with_tensor(tensor), path)
    return path


def test_external_data_beside_the_model(tmp_path):
    data = np.arange(10, dtype="float32")
    (tmp_path / "weights").mkdir()
    data.tofile(tmp_path / "weights/w.bin")
    loaded = load_model(external(tmp_path, "weights/w.bin", offset=8, length=24)).graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(loaded), data[2:8].reshape(2, 3))


def test_external_data_elsewhere_is_refused(tmp_path):
    outside = tmp_path / "secret.bin"
    outside.write_bytes(bytes(24))
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.bin").symlink_to(outside)
    (folder / "linked").symlink_to(tmp_path)
    for location in ("../secret.bin", str(outside), "link.bin", "linked/secret.bin", "sub/../../secret.bin"):
        with pytest.raises(InvalidModelError, match="outside the model's folder"):
            load_model(external(folder, location))


def test_external_data_that_does_not_fit(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(24))
    os.mkfifo(tmp_path / "pipe")
    for options, message in (
        ({"location": "missing.bin"}, "no file 'missing.bin'"),
        ({"location": "pipe"}, "no file 'pipe'"),
        ({"location": ""}, "names no external file"),
        ({"location": "."}, "no file"),
        ({"location": "w.bin", "offset": 4}, "needs bytes 4..28 of 'w.bin', which has 24"),
        ({"location": "w.bin", "offset": -4}, "offset '-4' is not a number"),
        ({"location": "w.bin", "length": 12}, "needs 24 bytes, but has 12"),
        ({"location": "w.bin", "dims": (1 << 40,)}, "needs bytes 0..4398046511104"),
    ):
        with pytest.raises(InvalidModelError, match=message):
            load_model(external(tmp_path, **options))


def test_external_data_of_a_model_without_a_folder(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(24))
    proto = onnx.load(external(tmp_path, "w.bin"), load_external_data=False)
    with pytest.raises(InvalidModelError, match="pass the model by its path"):
        load_model(proto)


def test_a_sparse_file_that_claims_more_than_memory(tmp_path):
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(InvalidModelError, match="more than this machine has"):
        load_model(external(tmp_path, "w.bin", dims=(1 << 40,)))


def test_time_is_linear_in_the_number_of_nodes():
    count = 20_000
    nodes = [relu("x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(count)]
    nodes.reverse()
    start = time.perf_counter()
    load_model(model(nodes, outputs=[f"v{count}"]))
    assert time.perf_counter() - start < 5
