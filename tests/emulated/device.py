"""The device `emu`: its tensors, its rules, and a log of launches, waits and copies."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import wmr_cli

NAME = "emu"
SOURCE = str(Path(wmr_cli.__file__).parent) + "/"
FLOATS_OF_64_BITS = (torch.float64, torch.complex128)
CPU = torch.device("cpu")
aten = torch.ops.aten


@dataclass
class Log:
    """Counts of events, by what happened and by file and line of `wmr_cli`."""

    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes_from_host: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, kind: str) -> int:
        """Return the total of `launches`, `waits` or `bytes_from_host`."""
        return sum(self.counter(kind).values())

    def counter(self, kind: str) -> Counter[tuple[str, str]]:
        """Return the counts of one kind."""
        counters = {
            "launches": self.launches,
            "waits": self.waits,
            "bytes_from_host": self.bytes_from_host,
        }
        return counters[kind]

    def places(self, kind: str) -> Counter[str]:
        """Return the counts of one kind by file and line."""
        counts: Counter[str] = Counter()
        for (_, place), number in self.counter(kind).items():
            counts[place] += number
        return counts

    def list_places(self, kind: str, most: int = 12) -> str:
        """Return the places with the highest counts, one per line."""
        counts = self.counter(kind).most_common(most)
        return "\n".join(f"{number:8,} {what:24} {place}" for (what, place), number in counts)


@dataclass
class State:
    """The state of the device, which is one per process."""

    log: Log = field(default_factory=Log)
    has_float64: bool = True
    is_asynchronous: bool = True
    launched: int = 0
    """Launches since the start of the process."""
    queue: list[Callable[[], None]] = field(default_factory=list)
    """Copies to the host that have not arrived."""
    pinned: dict[int, StorageWeakRef] = field(default_factory=dict)
    """Storages of pinned memory by their address."""


STATE = State()


@contextmanager
def recorded() -> Iterator[Log]:
    """Record events inside."""
    before = STATE.log
    STATE.log = Log()
    try:
        yield STATE.log
    finally:
        STATE.log = before


def find_place() -> str:
    """Return file and line of the innermost function of `wmr_cli` that is running."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            return f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside wmr_cli"


def note_launches(what: str, number: int) -> None:
    STATE.launched += number
    STATE.log.launches[what, find_place()] += number


def wait_for_device(what: str) -> None:
    """Record that the host waits; all copies in the queue arrive."""
    STATE.log.waits[what, find_place()] += 1
    finish(STATE.queue)


def finish(copies: list[Callable[[], None]]) -> None:
    """Complete these copies to the host, each once."""
    for copy in tuple(copies):
        if copy in STATE.queue:
            STATE.queue.remove(copy)
            copy()


class Event:
    """A position in the queue of the device."""

    def __init__(self, **options: object) -> None:
        self._before: list[Callable[[], None]] = []
        self._launched = 0

    def record(self, stream: object = None) -> None:
        self._before = list(STATE.queue)
        self._launched = STATE.launched

    def query(self) -> bool:
        return not any(copy in STATE.queue for copy in self._before)

    def synchronize(self) -> None:
        # the device stays busy with what was launched after the event, if anything was
        if not self.query() and STATE.launched == self._launched:
            wait_for_device("event")
        finish(self._before)


class DeviceModule:
    """What `torch.get_device_module` returns for the device."""

    Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def synchronize(self, device: object = None) -> None:
        wait_for_device("synchronize")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def set_device(self, device: object) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


@cache
def register_device() -> torch.device:
    """Register the device with torch (2.9 or newer), once per process, and return it."""
    from torch.utils import _foreach_utils, backend_registration

    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=DeviceModule()
    )
    # parameters stay the same objects when a module moves, as they do on CUDA
    torch.__future__.set_swap_module_params_on_conversion(True)
    # a tensor with a type of its own: torch would update one parameter at a time
    sys.modules["torch.optim.optimizer"]._foreach_supported_types.append(EmulatedTensor)
    _foreach_utils._foreach_supported_types.append(EmulatedTensor)  # type: ignore[arg-type]
    # a thread of the autograd engine has no frames of `wmr_cli`
    torch.autograd.set_multithreading_enabled(False)
    return torch.device(NAME, 0)


class EmulatedTensor(Tensor):
    """A tensor of the device. `held` has its values, in memory of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "EmulatedTensor":
        made: EmulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=register_device(),
        )
        return made

    def __init__(self, values: Tensor) -> None:
        self.held = values

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"EmulatedTensor({self.held!r})"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        raise TypeError(f"{find_place()}: can't convert a tensor of {NAME} to numpy, use .cpu()")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __array__(self, dtype: object = None) -> NDArray[Any]:
        return self.numpy()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, new: Tensor) -> None:
        if isinstance(new, EmulatedTensor):
            torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
            self.held = new.held
        else:
            # back to the CPU: the object stays, and its contents are exchanged
            torch.utils.swap_tensors(self, nn.Parameter(new, self.requires_grad))

    def __deepcopy__(self, memo: dict[int, object]) -> "EmulatedTensor":
        if id(self) not in memo:
            copied = EmulatedTensor(self.held.detach().clone())
            if isinstance(self, nn.Parameter):
                copied = nn.Parameter(copied, self.requires_grad)  # type: ignore[assignment]
            else:
                copied.requires_grad_(self.requires_grad)
            memo[id(self)] = copied
        found = memo[id(self)]
        assert isinstance(found, EmulatedTensor)
        return found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # not static
        cls, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})


class DeviceMode(TorchDispatchMode):
    """Catches operations without an operand of the device, such as `torch.zeros(device=…)`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # the wrapper that it would add costs more than most operations here
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_emulated(kwargs.get("device")) or any(
            isinstance(tensor, EmulatedTensor) for tensor in list_tensors(args, kwargs)
        ):
            return dispatch(func, args, kwargs)
        if kwargs.get("pin_memory"):
            return pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)


def is_emulated(device: object) -> bool:
    """Whether this argument names the device."""
    return device is not None and torch.device(device).type == NAME  # type: ignore[call-overload]


def pin(tensor: Tensor, device: object = None) -> Tensor:
    """Return a copy in pinned memory."""
    copied = tensor.clone()
    storage = copied.untyped_storage()
    STATE.pinned[storage.data_ptr()] = StorageWeakRef(storage)
    return copied


def is_pinned(tensor: Tensor, device: object = None) -> bool:
    """Whether a tensor of the CPU is in pinned memory."""
    if isinstance(tensor, EmulatedTensor):
        return False
    storage = STATE.pinned.get(tensor.untyped_storage().data_ptr())
    return storage is not None and not storage.expired()


COPIES = (aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default)
INDEXED = (
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
)
# the size of the output, or the result on the host, depends on values
WAITING = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.equal.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten._local_scalar_dense.default,
}
WITHOUT_LAUNCH = {
    aten._local_scalar_dense.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten.is_same_size.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.resize_.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
}
# `multi_tensor_apply` of torch: tensors and blocks that one launch takes, by the number of lists
TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_PER_LAUNCH = 320
BLOCK_SIZE = 65536


def count_multi_tensor_launches(tensors: Sequence[Tensor], lists: int) -> int:
    """Return the launches of a foreach operation on these tensors and `lists` lists in all."""
    tensor_limit = TENSORS_PER_LAUNCH.get(lists, TENSORS_PER_LAUNCH[5])
    launches = held_tensors = held_blocks = 0
    for tensor in tensors:
        held_tensors += 1
        for block in range(-(-tensor.numel() // BLOCK_SIZE)):
            held_blocks += 1
            is_last = (block + 1) * BLOCK_SIZE >= tensor.numel()
            if held_blocks == BLOCKS_PER_LAUNCH or (held_tensors == tensor_limit and is_last):
                launches += 1
                held_blocks = 0
                # a tensor that was cut continues in the next launch
                held_tensors = 0 if is_last else 1
    return launches + bool(held_blocks)


def count_launches(func: OpOverload, args: Sequence[Any]) -> int:
    """Return the number of kernels that CUDA would launch."""
    name = func.overloadpacket.__name__
    if func in WITHOUT_LAUNCH or func.is_view:
        return 0
    if func is aten.convolution_backward.default:
        return sum(args[-1])
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg]
        of_tensors = [each for each in lists if isinstance(each[0], Tensor)]
        # numbers of steps are passed beside the lists
        wide = [each for each in of_tensors if each[0].numel() > 1] or of_tensors
        has_outputs = not name.endswith("_")
        return count_multi_tensor_launches(of_tensors[0], len(wide) + has_outputs)
    return 1


@cache
def decomposes(func: OpOverload) -> bool:
    """Whether torch defines an operation by others; inference mode does not decompose it."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@cache
def written_arguments(func: OpOverload) -> tuple[int | str, ...] | None:
    """Return position or name of the argument that each output is, or None for new outputs."""
    found: list[int | str] = []
    for output in func._schema.returns:
        if output.alias_info is None or not output.alias_info.is_write:
            return None
        for position, argument in enumerate(func._schema.arguments):
            info = argument.alias_info
            if info is not None and info.before_set == output.alias_info.before_set:
                found.append(argument.name if argument.kwarg_only else position)
    return tuple(found)


def dispatch(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run an operation that has an operand or a result on the device."""
    if decomposes(func):
        return func.decompose(*args, **kwargs)
    tensors = list_tensors(args, kwargs)
    on_device = [tensor for tensor in tensors if isinstance(tensor, EmulatedTensor)]
    on_host = [tensor for tensor in tensors if not isinstance(tensor, EmulatedTensor)]
    check_devices(func, args, on_device, on_host)
    if func in WAITING:
        wait_for_device("item" if func is aten._local_scalar_dense.default else str(func))
    if func in INDEXED:
        note_index(args)
    device = kwargs.get("device")
    to_device = bool(on_device) if device is None else is_emulated(device)
    if device is not None:
        kwargs = {**kwargs, "device": CPU if is_emulated(device) else device}
    if func in COPIES and transfers(func, args, on_host, to_device=to_device):
        return copy_between(func, args, kwargs, to_device=to_device)
    launches = count_launches(func, args)
    if launches:
        note_launches(func.overloadpacket.__name__, launches)
    result = func(*unwrap(args), **unwrap(kwargs))
    written = written_arguments(func)
    if written is None:
        return wrap(result) if to_device else result
    if not written:
        return None
    outputs = [args[key] if isinstance(key, int) else kwargs[key] for key in written]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def list_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return all tensors among the arguments of an operation."""
    # torch.utils._pytree does the same for any structure, at twice the time of the operation
    tensors = []
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, (list, tuple)):
            tensors += [each for each in arg if isinstance(each, Tensor)]
    return tensors


def unwrap(value: Any) -> Any:
    """Return the values of tensors of the device."""
    if isinstance(value, EmulatedTensor):
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)(map(unwrap, value))
    if isinstance(value, dict):
        return {name: unwrap(each) for name, each in value.items()}
    return value


def wrap(value: Any) -> Any:
    """Return the tensors of a result as tensors of the device."""
    if isinstance(value, Tensor):
        return _wrap_tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(wrap, value))
    return value


def _wrap_tensor(tensor: Tensor) -> Tensor:
    if isinstance(tensor, EmulatedTensor):
        return tensor
    if tensor.dtype in FLOATS_OF_64_BITS and not STATE.has_float64:
        raise TypeError(f"{find_place()}: the device has no float64")
    return EmulatedTensor(tensor)


def check_devices(
    func: OpOverload, args: Any, on_device: list[EmulatedTensor], on_host: list[Tensor]
) -> None:
    """Raise for operands of two devices, except where CUDA accepts them."""
    if not on_device or not on_host or func in COPIES:
        return
    if func in INDEXED:
        if isinstance(args[0], EmulatedTensor):
            return
        raise RuntimeError(f"{find_place()}: a tensor of the CPU is indexed by one of the device")
    # numbers are passed to a kernel by value
    takes_scalars = func.overloadpacket.__name__ not in ("cat", "gather", "scatter")
    if takes_scalars and all(tensor.dim() == 0 for tensor in on_host):
        return
    raise RuntimeError(
        f"{find_place()}: Expected all tensors to be on the same device, but found at least two"
        f" devices, {NAME}:0 and cpu! ({func})"
    )


def note_index(args: Any) -> None:
    """Record what an index by tensors makes the host do."""
    for index in args[1]:
        if index is None:
            continue
        if not isinstance(index, EmulatedTensor):
            note_copy_from_host("index from the host", index, is_blocking=True)
        elif index.dtype in (torch.bool, torch.uint8):
            wait_for_device("boolean index")


def note_copy_from_host(what: str, tensor: Tensor, *, is_blocking: bool) -> None:
    """Record a copy to the device."""
    STATE.log.bytes_from_host[what, find_place()] += tensor.numel() * tensor.element_size()
    if is_blocking:
        wait_for_device(what)


def transfers(func: OpOverload, args: Any, on_host: list[Tensor], *, to_device: bool) -> bool:
    """Whether a copy is one between the devices."""
    if func is aten._to_copy.default:
        return isinstance(args[0], EmulatedTensor) != to_device
    return bool(on_host)


def copy_between(func: OpOverload, args: Any, kwargs: Any, *, to_device: bool) -> Any:
    """Copy from or to the host."""
    if func is aten._to_copy.default:
        return _to_copy(args[0], kwargs, to_device=to_device)
    if func is aten._foreach_copy_.default:
        for target, source in zip(args[0], args[1], strict=True):
            target.copy_(source, *args[2:])
        return args[0]
    target, source = args[0], args[1]
    does_not_block = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if isinstance(target, EmulatedTensor):
        is_blocking = not (does_not_block and is_pinned(source) and STATE.is_asynchronous)
        note_copy_from_host("copy from the host", source, is_blocking=is_blocking)
        target.held.copy_(source)
    elif does_not_block and is_pinned(target) and STATE.is_asynchronous:
        copy_later(target, source)
    else:
        wait_for_device("copy to the host")
        target.copy_(source.held)
    return target


def _to_copy(source: Tensor, kwargs: Any, *, to_device: bool) -> Tensor:
    options = {**kwargs}
    does_not_block = bool(options.pop("non_blocking", False))
    if to_device:
        is_blocking = not (does_not_block and is_pinned(source) and STATE.is_asynchronous)
        note_copy_from_host("copy from the host", source, is_blocking=is_blocking)
        return _wrap_tensor(aten._to_copy.default(source, **options))
    assert isinstance(source, EmulatedTensor)
    copied: Tensor = aten._to_copy.default(source.held, **options)
    if does_not_block and STATE.is_asynchronous:
        # torch allocates pinned memory for such a copy
        target = pin(copied)
        copy_later(target, EmulatedTensor(copied))
        return target
    wait_for_device("copy to the host")
    return copied


def copy_later(target: Tensor, source: EmulatedTensor) -> None:
    """Queue a copy to pinned memory; until it arrives, the target has no valid values."""
    values = source.held.detach().clone()
    if target.is_floating_point():
        target.fill_(torch.nan)
    elif target.dtype == torch.bool:
        target.logical_not_()
    else:
        target.fill_(torch.iinfo(target.dtype).max)

    def arrive() -> None:
        target.copy_(values)

    STATE.queue.append(arrive)
