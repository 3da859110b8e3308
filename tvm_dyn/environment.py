"""The TVM pair that works, checked from package metadata before anything that would crash is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from .errors import EnvironmentMismatchError

# apache-tvm 0.27 asks for any newer apache-tvm-ffi, but from 0.1.15 on `tvm.ir.save_json`, `copy.deepcopy` of
# an IRModule and every MetaSchedule database end in a segmentation fault.
REQUIRED = {"apache-tvm": ">=0.27.0.post1,<0.28", "apache-tvm-ffi": ">=0.1.14.post0,<0.1.15"}


def check_environment() -> None:
    """Raise `EnvironmentMismatchError` unless the installed apache-tvm and apache-tvm-ffi work together."""
    found = {package: _installed(package) for package in REQUIRED}
    if all(v and SpecifierSet(REQUIRED[p]).contains(v, prereleases=True) for p, v in found.items()):
        return
    have = " and ".join(f"{p} {v}" if v else f"no {p}" for p, v in found.items())
    need = " ".join(f"'{p}{spec}'" for p, spec in REQUIRED.items())
    raise EnvironmentMismatchError(
        f"found {have}, which tvm_dyn cannot run on; install the pair that works: pip install {need}"
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
