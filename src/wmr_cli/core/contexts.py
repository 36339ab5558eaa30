"""Context managers: modes and outputs of models, autograd, arithmetic, progress."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the name of a task, the amount done, and the total if it is known."""
PartCallback = Callable[[str, int, int], None]
"""Called with the name of a part of an attack, the images that it attacks, and all images."""
AttackStep = Callable[..., tuple[Tensor, ...]]
"""A function of a network and further arguments; numbers among them may become tensors."""


class StepCompiler(Protocol):
    """Compiles the steps of attacks."""

    def compile_step(self, step: AttackStep, like: Tensor) -> AttackStep:
        """Return the step for images like these, compiled."""
        ...


# a context variable: component code reports progress without passing a callback through
_progress_callback: ContextVar[ProgressCallback | None] = ContextVar(
    "progress_callback", default=None
)
_part_callback: ContextVar[PartCallback | None] = ContextVar("part_callback", default=None)
_step_compiler: ContextVar[StepCompiler | None] = ContextVar("step_compiler", default=None)
_batch_limit: ContextVar[int | None] = ContextVar("batch_limit", default=None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set eval mode inside, and restore the mode of every module on exit."""
    # per module: a model may keep some of its layers in eval mode while it trains
    were_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in were_training:
            module.training = was_training


def find_logits(output: object) -> object:
    """Return the member `logits` of an object, a named tuple or a mapping, or None."""
    if isinstance(output, Mapping):
        return output.get("logits")
    return getattr(output, "logits", None)


def take_logits(module: nn.Module, args: object, output: object) -> Tensor | None:
    """Replace an output that holds logits by these; the forward hook of `return_logits`.

    All callers, such as attacks, then get one tensor. Any other output stays as it is.
    """
    if isinstance(output, Tensor):
        return None
    logits = find_logits(output)
    return logits if isinstance(logits, Tensor) else None


def return_logits(model: nn.Module) -> RemovableHandle | None:
    """Let a model return its logits from now on, also one that returns an object with them."""
    # TorchScript does not support hooks
    if isinstance(model, torch.jit.ScriptModule):
        return None
    return model.register_forward_hook(take_logits)


@contextmanager
def returning_logits(model: nn.Module) -> Iterator[None]:
    """Let a model return its logits inside, also one that returns an object with them."""
    handle = return_logits(model)
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a model to a device inside; restore every parameter, gradient and buffer on exit.

    Nothing is copied back: the original tensors are kept and put in place again.
    """
    parameters = [(module, dict(module._parameters)) for module in model.modules()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    contents = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    # the usual case: nothing has to move or be restored
    if all(tensor.device == device for tensor in (*model.parameters(), *model.buffers())):
        yield
        return
    try:
        model.to(device)
        yield
    finally:
        for parameter, data, grad in contents:
            # torch requires a gradient to be on the device of its parameter at every moment
            parameter.grad = None
            parameter.data = data
            parameter.grad = grad
        for module, original_parameters in parameters:
            module._parameters.update(original_parameters)
        for module, original_buffers in buffers:
            module._buffers.update(original_buffers)


@contextmanager
def plain_autograd(device: torch.device) -> Iterator[None]:
    """Allow gradients and disable autocast inside, in any mode of the caller."""
    no_autocast: AbstractContextManager[None] = nullcontext()
    if torch.is_autocast_enabled(device.type):
        no_autocast = torch.autocast(device.type, enabled=False)
    # tensors of inference mode can never take part in autograd
    with torch.inference_mode(False), no_autocast:
        yield


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in float32 without TF32, by deterministic algorithms."""
    exact = _exact_operations if _has_precision_per_operation() else _exact_products
    with exact():
        yield


@contextmanager
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _has_precision_per_operation() -> bool:
    """Whether the caller has chosen precisions by `fp32_precision`, which torch 2.9 introduced.

    The older settings then raise as soon as they are read.
    """
    try:
        torch.get_float32_matmul_precision()
        _ = torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return True
    return False


@contextmanager
def _exact_operations() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    onednn: Any = torch.backends.mkldnn
    operations: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    operations += [onednn.matmul, onednn.conv, onednn.rnn]
    flags = {"enabled": True, "benchmark": False, "deterministic": True}
    flags_before = {name: getattr(cudnn, name) for name in flags}
    precisions = [each.fp32_precision for each in operations]
    try:
        for name, value in flags.items():
            setattr(cudnn, name, value)
        for each in operations:
            each.fp32_precision = "ieee"
        yield
    finally:
        for name, value in flags_before.items():
            setattr(cudnn, name, value)
        for each, precision in zip(operations, precisions, strict=True):
            # "none" inherits the precision of the backend, which may be where it came from
            each.fp32_precision = "none"
            if each.fp32_precision != precision:
                each.fp32_precision = precision


@contextmanager
def prefer_determinism(exceptions: set[str]) -> Iterator[None]:
    """Use deterministic algorithms inside, and collect the warnings of operations without one."""
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        # every operation, also if an earlier batch has already warned
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # a kernel per allocation, to find code that reads memory before it writes it
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_enabled, warn_only=was_warning)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    for warning in caught:
        text = str(warning.message)
        if "use_deterministic_algorithms" in text:
            exceptions.add(text)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextmanager
def seeding_generators(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators inside, and restore those of the CPU and of a device on exit."""
    if is_accelerator(device):
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(seed)
            yield
        return
    state = torch.get_rng_state()
    # not `torch.manual_seed`: it also seeds accelerators, whose states are not restored
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms for every shape of a convolution, and use the fastest.

    Two runs may then differ in rounding. It has no effect on other devices.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def compiling_steps(compiler: StepCompiler | None) -> Iterator[None]:
    """Compile the steps of attacks inside, if there is a compiler."""
    token = _step_compiler.set(compiler)
    try:
        yield
    finally:
        _step_compiler.reset(token)


def compile_if_enabled(step: AttackStep, like: Tensor) -> AttackStep:
    """Return a step for images like these, compiled inside `compiling_steps`."""
    compiler = _step_compiler.get()
    return step if compiler is None else compiler.compile_step(step, like)


@contextmanager
def limiting_batches(size: int) -> Iterator[None]:
    """Let attacks that gather images form batches of at most this size inside."""
    token = _batch_limit.set(size)
    try:
        yield
    finally:
        _batch_limit.reset(token)


def batch_limit(images: int) -> int:
    """Return the largest batch that an attack on this number of images may form."""
    # without a limit, the batch that the caller has passed is known to fit in memory
    return _batch_limit.get() or images


def compute_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Compute logits without gradients, in batches of at most `batch_limit`."""
    parts = images.split(batch_limit(len(images)))
    with torch.no_grad():
        if len(parts) == 1:
            logits: Tensor = model(images)
            return logits
        return torch.cat([model(part) for part in parts])


def is_accelerator(device: torch.device) -> bool:
    """Whether a device works beside the host, which has to wait for its results."""
    return device.type != "cpu"


def model_device(model: nn.Module) -> torch.device:
    """Return the device of a model; torch's default device for a model without tensors."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.get_default_device() if first is None else first.device


@contextmanager
def watch_progress(callback: ProgressCallback) -> Iterator[None]:
    """Send the progress that is reported inside to a callback."""
    token = _progress_callback.set(callback)
    try:
        yield
    finally:
        _progress_callback.reset(token)


def report_progress(task: str, done: int, total: int | None) -> None:
    """Report the progress of a long task, such as a download, to the callback if there is one."""
    callback = _progress_callback.get()
    if callback is not None:
        callback(task, done, total)


@contextmanager
def watch_parts(callback: PartCallback) -> Iterator[None]:
    """Send the parts of attacks that start inside to a callback."""
    token = _part_callback.set(callback)
    try:
        yield
    finally:
        _part_callback.reset(token)


def report_part(name: str, images: int, total: int) -> None:
    """Report that a part of an attack starts on `images` of `total` images."""
    callback = _part_callback.get()
    if callback is not None:
        callback(name, images, total)
