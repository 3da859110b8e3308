"""A compiled model: call it with arrays of any shape it allows, ask what it takes, export it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tvm
from tvm import relax

from ..errors import CallError, CompileError, InvalidLibraryError
from . import threads
from .groups import GROUPS_FUNCTION, TABLES_FUNCTION, Group
from .inputs import bind_arguments, make_taker
from .memory import note_new_shape
from .outputs import OutputPlan
from .selection import Selection
from .shape_profile import ShapeRecorder
from .shapes import ShapeChecker
from .signature import DimInfo, Signature, TensorInfo

if TYPE_CHECKING:
    from ..self_check import Summary
    from ..tuning.reuse import Reuse
    from .cost_model import CostModel
    from .refine import Refinement

SIGNATURE_FUNCTION = "tvm_dyn_signature"
# Distinct sets of input shapes remembered as checked; the memory of a few thousand tuples of ints.
_SEEN_SHAPES = 4096


class Library:
    """A compiled model. Calls are safe from several Python threads: each has a virtual machine of its own.

    num_threads: threads per call; by default TVM_NUM_THREADS, else all cores the process may use. Each
    *calling* thread has a worker pool of its own, so callers that run at once are best given one thread each.
    self_check: what the self-check looked at, if the library was compiled with it.
    reused: what each backbone took from the tuning database, if it was compiled with one.
    """

    self_check: Summary | None = None
    reused: tuple[Reuse, ...] = ()
    _recorder: ShapeRecorder | None = None
    _refinement: Refinement | None = None

    def __init__(self, module: tvm.runtime.Module, num_threads: int | None = None, file: Path | None = None) -> None:
        self._module = module
        self._file = file
        self._set_up(_read_signature(module), num_threads)

    def _set_up(self, signature: Signature, num_threads: int | None) -> None:
        self._num_threads = threads.resolve_num_threads(num_threads)
        self._signature = signature
        self._takers = [make_taker(info) for info in self._signature.inputs]
        self._outputs = OutputPlan(self._signature.outputs)
        self._checker = ShapeChecker(self._signature)
        self._seen: set[tuple[tuple[int, ...], ...]] = set()
        self._local = threading.local()

    def __call__(self, /, *args: Any, **named: Any) -> list[Any]:
        """Run the model on arrays given in graph order, by input name, or both; returns the list of outputs.

        Takes numpy, torch, TVM and other DLPack tensors on the CPU, and Python scalars for 0-d inputs. The
        outputs come in graph order, in the kind of the first array given. Inputs are not copied where they
        are C-contiguous, in native byte order, writable and 64-byte aligned; outputs of a page or more are
        not copied where nothing else owns their memory.

        Raises `InvalidInputError` where names, dtypes or shapes do not fit, `CallError` where the run fails.
        """
        if named or len(args) != len(self._takers):
            args = tuple(bind_arguments(self._signature.inputs, args, named))
        tensors = [take(value) for take, value in zip(self._takers, args, strict=True)]
        try:
            shapes = tuple([value.shape for value in args])  # they have them at hand; TVM makes them anew
        except AttributeError:  # Python scalars
            shapes = tuple([tensor.shape for tensor in tensors])
        if shapes not in self._seen:
            self._admit(shapes)
        if threads.current.count != self._num_threads:
            threads.use_threads(self._num_threads)
        if self._recorder is not None:
            self._recorder.note(shapes)
        try:
            if self._refinement is not None and self._refinement.wants():
                result = self._refinement.call(self._main(), tensors, self._checker.extents(shapes))
            else:
                result = self._main()(*tensors)
        except Exception as error:
            self._fail(error, shapes)
        return self._outputs.give(result, tensors, args)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, dtype and symbolic shape of each input, in graph order."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, dtype and symbolic shape of each output, in graph order."""
        return self._signature.outputs

    @property
    def dims(self) -> Mapping[str, DimInfo]:
        """Range, divisor, names in the model and reasons for each symbolic dim, by its canonical name."""
        return self._signature.dims

    @property
    def ops(self) -> Mapping[str, int]:
        """How often each Relax operator occurred in the model as imported."""
        return self._signature.ops

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the compiled functions, one per distinct fusion group."""
        return _group_names(str(self._module["stats"]()))

    @functools.cached_property
    def selection(self) -> Selection:
        """The fusion groups with their variants, and the tables by which calls choose; see `Selection`."""
        return Selection.of_machine(relax.VirtualMachine(self._module, tvm.cpu()))

    def report(self) -> dict[str, Any]:
        """What the library holds, ready for JSON: of each fusion group its name, operators, backbone and variants."""
        return {"groups": [_reported(group) for group in self.selection.groups]}

    def explain(self, model: CostModel | None = None, /, **dims: int) -> dict[str, Any]:
        """Which variant each fusion group takes where the dims have these extents, and why; see `explain.explain`.

        model: predicts times; by default the closed forms for this machine. dims: by their names here or in the
        model, all of them. Raises `InvalidInputError` for a dim that is missing, is not there or does not fit.
        """
        from .cost_model import CostModel  # its libraries take a second to load
        from .explain import explain, own_extents

        extents = own_extents(dims, self.dims)
        measured = self._refinement.measured if self._refinement else None
        return explain(self.selection, model or CostModel.of_this_machine(), extents, self._num_threads, measured)

    def record_shapes(self, every: int = 16) -> ShapeRecorder:
        """Count from now on which shapes calls have, looking at one call in ``every``; nothing does unless asked to.

        `save_shapes` writes what was seen for `tune` and `compile`; `stop_recording` ends it.
        """
        self._recorder = ShapeRecorder(every)
        return self._recorder

    def stop_recording(self) -> None:
        """Count shapes no longer, and forget those that were seen."""
        self._recorder = None

    def save_shapes(self, path: str | os.PathLike[str]) -> None:
        """Write the dims of the shapes seen and how often, as a profile that `tune` and `compile` read (.json).

        Raises `ValueError` where `record_shapes` was not called.
        """
        if self._recorder is None:
            raise ValueError("no shapes are recorded: call record_shapes() before the calls that are to count")
        self._recorder.save(path, self._checker.extents)

    def refine(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every: int = 64,
        budget_ms: float = 4.0,
        model: CostModel | None = None,
    ) -> Refinement:
        """Measure some calls from now on, and exchange decision tables that lose; see `refine.Refinement`.

        folder: keeps what was measured, such as the tuning database the library was compiled with; None: nothing does.
        every: one call in so many is measured; it may take ``budget_ms`` longer, so that
        kernels that take more than a sixth of that are left as they are. model: predicts at first; by default
        the closed forms for this machine. Results of calls are the same, but where variants add up in another order.
        """
        from .cost_model import CostModel
        from .refine import Budget, Refinement

        known = model or CostModel.of_this_machine()
        budget = Budget(every, budget_ms / 1e3)
        self._refinement = Refinement(self._module, self.selection, known, self._num_threads, budget, folder)
        return self._refinement

    def stop_refining(self) -> None:
        """Measure no more calls; tables stay as they are, and what was measured is kept."""
        if self._refinement is not None:
            refinement, self._refinement = self._refinement, None
            refinement.settle()

    @property
    def num_threads(self) -> int:
        """Threads that a call uses."""
        return self._num_threads

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the library to `path` (.so), complete or not at all; `tvm_dyn.load` needs nothing else.

        The file also runs on the bare TVM runtime: `tvm.runtime.load_module` and `relax.VirtualMachine`.
        Raises `CompileError` where no C++ compiler is there to link it, `OSError` where it cannot be written.
        """
        path = Path(path)
        if path.suffix != ".so":
            raise ValueError(f"{str(path)!r}: TVM tells a library by its suffix; name it *.so")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
            unfinished = Path(folder) / path.name
            if self._file is None:
                self._link(unfinished)
            else:
                shutil.copyfile(self._file, unfinished)
            os.replace(unfinished, path)

    def _link(self, path: Path) -> None:
        try:
            with _stderr_silenced():
                self._module.export_library(str(path))
        except (RuntimeError, ValueError) as error:
            raise CompileError(f"cannot link {path.name!r} (it takes g++ or clang++): {error}") from error

    def __repr__(self) -> str:
        lines = ["<tvm_dyn.Library"]
        lines += [f"  input   {info}" for info in self.inputs]
        lines += [f"  output  {info}" for info in self.outputs]
        return "\n".join([*lines, f"  {len(self.groups)} fusion groups, {self.num_threads} threads>"])

    def _main(self) -> Any:
        """This thread's entry point: machines share the weights, but threads cannot share a machine."""
        try:
            return self._local.main
        except AttributeError:
            machine = relax.VirtualMachine(self._module, tvm.cpu())
            self._local.main = machine["main"]
            return self._local.main

    def _admit(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self._checker.check(shapes)
        if len(self._seen) >= _SEEN_SHAPES:
            self._seen.clear()
        self._seen.add(shapes)
        note_new_shape()

    def _fail(self, error: Exception, shapes: tuple[tuple[int, ...], ...]) -> NoReturn:
        dims = ", ".join(f"{name} = {extent}" for name, extent in self._checker.extents(shapes).items())
        given = ", ".join(
            f"{info.name} {tuple(shape)}" for info, shape in zip(self._signature.inputs, shapes, strict=True)
        )
        where = f" (where {dims})" if dims else ""
        raise CallError(f"the model failed on inputs {given or 'none'}{where}: {error}") from error


def load_library(path: str | os.PathLike[str], num_threads: int | None = None) -> Library:
    """Load what `Library.export` wrote, running its code; raises `InvalidLibraryError` on any other file."""
    if not os.path.isfile(path):
        raise InvalidLibraryError(f"there is no file {str(path)!r}")
    try:
        with _stderr_silenced():
            module = tvm.runtime.load_module(os.path.abspath(path))
    except (RuntimeError, ValueError, AttributeError) as error:
        raise InvalidLibraryError(f"{str(path)!r} is no library that TVM can load: {error}") from error
    return Library(module, num_threads, Path(path).absolute())


@contextmanager
def _stderr_silenced() -> Iterator[None]:
    """TVM prints a warning ("Scope Loaded:", "Scope Saving:") per constant of a library; failures it raises."""
    try:
        kept = os.dup(2)
    except OSError:  # the process has no stderr
        yield
        return
    try:
        with open(os.devnull, "w") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _read_signature(module: tvm.runtime.Module) -> Signature:
    if not module.implements_function("vm_load_executable"):
        raise InvalidLibraryError("the library holds no compiled model")
    machine = relax.VirtualMachine(module, tvm.cpu())
    if not machine.module.implements_function(SIGNATURE_FUNCTION):
        raise InvalidLibraryError("the library was not compiled by tvm_dyn: it carries no signature")
    try:
        return Signature.from_json(str(machine[SIGNATURE_FUNCTION]()))
    except ValueError as error:
        raise InvalidLibraryError(f"the library's signature cannot be read: {error}") from error


def _reported(group: Group) -> dict[str, Any]:
    variants = [{"name": v.name, "tile": dict(v.decisions), "source": group.source} for v in group.variants]
    return {"name": group.name, "ops": list(group.ops), "backbone": group.backbone, "variants": variants}


def _group_names(stats: str) -> tuple[str, ...]:
    """The compiled functions among the executable's globals: neither TVM's builtins nor shape arithmetic."""
    names = re.findall(r"^  Globals \(#\d+\): \[(.*)\]$", stats, re.MULTILINE)[-1].split(", ")
    own = re.compile("|".join([r"main|vm\..*|shape_func\d*", SIGNATURE_FUNCTION, GROUPS_FUNCTION, TABLES_FUNCTION]))
    return tuple(name for name in names if name and not own.fullmatch(name))
