"""A moving average of a network's weights, which is often the better network (Izmailov et al. 2018, arXiv:1803.05407)."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average of parameters and buffers. Early on it forgets faster, as it has little to remember."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).requires_grad_(False)
        self._decay = decay
        self._updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self._updates += 1
        keep = min(self._decay, (1 + self._updates) / (10 + self._updates))
        pairs = zip(self.model.state_dict().values(), model.state_dict().values(), strict=True)
        for mean, new in {
            mean.data_ptr(): (mean, new) for mean, new in pairs
        }.values():  # tied weights once
            if mean.is_floating_point():
                mean.lerp_(new, 1 - keep)
            else:
                mean.copy_(new)

    def state(self) -> dict[str, Tensor]:
        """What the next update depends on."""
        return {
            "updates": torch.tensor(self._updates),
            **{f"model/{key}": value for key, value in self.model.state_dict().items()},
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        self._updates = int(state["updates"])
        self.model.load_state_dict(
            {key.removeprefix("model/"): value for key, value in state.items() if key != "updates"}
        )
