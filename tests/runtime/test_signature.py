"""A signature survives its JSON form; other JSON is refused."""

import pytest

from tvm_dyn.runtime.signature import DimInfo, Signature, TensorInfo


def test_round_trip():
    signature = Signature(
        (TensorInfo('a "quoted"\0 név', "float32", ("n", 3, "2*n + 1")), TensorInfo("b", "int64", None)),
        (TensorInfo("c", "bool", (), shared=True),),
        {"n": DimInfo(1, None, 2, ("N", "-1"), ("because",))},
        {"add": 2},
    )
    assert Signature.from_json(signature.to_json()) == signature


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"inputs": 3, "outputs": []}', '{"inputs": [{}], "outputs": []}']
)
def test_other_json_is_refused(text):
    with pytest.raises(ValueError):
        Signature.from_json(text)
