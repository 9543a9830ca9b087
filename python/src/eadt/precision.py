"""The precision that a model really computes in, whatever was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .events import event_precision


def current_precision(model: nn.Module) -> str:
    """Returns the precision of matrix products at this point of a forward pass."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return "fp32"
    device = parameter.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype
    name = event_precision(dtype)
    if name == "fp32" and device == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return name


class PrecisionProbe:
    """Looks at the precision inside a forward pass: flags of frameworks promise what a device may not do.

    PyTorch calls a module with a hook in a slower way, so the hook goes when it has looked.
    """

    def __init__(self, model: nn.Module, block: nn.Module | None) -> None:
        self.effective: str | None = None
        self._watched = block if block is not None else model
        self._hook: Any = None
        self.look_again()

    @property
    def is_looking(self) -> bool:
        """Whether it waits for a forward pass: the precision may be another one since the last."""
        return self._hook is not None

    def look_again(self) -> None:
        """Looks at the next forward pass."""
        if self._hook is None:
            self._hook = self._watched.register_forward_pre_hook(self._on_forward)

    def close(self) -> None:
        """Removes the hook, if it is there."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _on_forward(self, module: nn.Module, _: Any) -> None:
        if not module.training or torch.compiler.is_compiling():
            return
        self.effective = current_precision(module)
        self.close()


class AutocastControl:
    """Precision of a plain loop's ``with job.autocast()``, changed between steps. FP16 only where ``has_scaler`` returns true."""

    def __init__(self, device_type: str, initial: str | None, has_scaler: Callable[[], bool]) -> None:
        self.device_type = device_type
        self.initial = initial
        self.asked = initial
        self.is_used = False
        self._has_scaler = has_scaler

    def refusal(self, precision: str) -> str | None:
        """Returns why this precision cannot be computed in from the next step on."""
        if not self.is_used:
            return "the training loop does not use job.autocast(): precision is fixed at the start"
        if precision in ("fp32", "bf16"):
            return None
        if precision == "fp16":
            if not self._has_scaler():
                return "FP16 needs a gradient scaler that is enabled: give the job scaler=torch.amp.GradScaler()"
            if self.device_type == "cpu":
                return "FP16 on a CPU is not faster and overflows: not done"
            return None
        return f"{precision} cannot be changed to while training: restart with it"

    def is_set(self, precision: str | None, probe: PrecisionProbe) -> bool:
        """Returns whether this precision (``None``: the one of the start) is computed in without a change."""
        wanted = precision or self.initial
        if self.asked == wanted:
            return True
        # Nothing was asked for yet: the weights' own precision is computed in.
        return self.asked is None and not probe.is_looking and wanted == probe.effective

    def context(self) -> Any:
        self.is_used = True
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.asked or "")
        return torch.autocast(self.device_type, dtype=dtype, enabled=dtype is not None)
