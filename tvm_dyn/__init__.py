"""tvm_dyn compiles a dynamic-shape model once with Apache TVM; every shape then runs at library speed."""

from .environment import check_environment

check_environment()

from . import errors  # noqa: E402
from .api import compile, load, tune  # noqa: E402
from .dims import Dim  # noqa: E402
from .runtime.executable import Library  # noqa: E402

__version__ = "0.1.0"

__all__ = ["Dim", "Library", "compile", "errors", "load", "tune"]
