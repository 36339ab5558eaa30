"""Imitate other devices: see, refuse or change the operations of torch."""

from collections.abc import Callable, Mapping, Sequence

from torch.utils._python_dispatch import TorchDispatchMode

BeforeOperation = Callable[[object, Sequence[object], Mapping[str, object]], Sequence[object]]
"""A function of an operation and its arguments. It returns the positional ones, or raises."""


class BeforeEach(TorchDispatchMode):
    """Calls a function before each operation inside."""

    def __init__(self, change: BeforeOperation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._change = change

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = kwargs or {}
        return func(*self._change(func, args, options), **options)
