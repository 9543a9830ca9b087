"""The precision that a model really computes in, whatever was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .events import event_precision
from .forward import Hook, is_compiled, is_exported, when_compiling


def current_precision(model: nn.Module) -> str:
    """Returns the precision of matrix products at this point of a forward pass."""
    parameter = _first_weight(model)
    if parameter is None:
        return "fp32"
    device = parameter.device.type
    return _name_of(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype, device)


def _first_weight(model: nn.Module) -> nn.Parameter | None:
    return next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)


def _name_of(dtype: torch.dtype, device: str) -> str:
    name = event_precision(dtype)
    if name == "fp32" and device == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return name


class PrecisionProbe:
    """Looks at the precision inside a forward pass: flags of frameworks promise what a device may not do.

    PyTorch calls a module with a hook in a slower way, so the hook goes when it has looked. In compiled code no hook runs: there the
    precision is that which torch.compile found when it compiled the pass; of a model that was compiled before, that at its call.
    Without hooks (``has_hooks``) it is the one that ``job.autocast()`` asks for, and unknown if the loop does not use that.
    """

    def __init__(
        self, model: nn.Module, block: nn.Module | None, control: AutocastControl | None = None, *, has_hooks: bool = True
    ) -> None:
        self.effective: str | None = None
        self.is_looking = False
        self._model, self._watched = model, block if block is not None else model
        self._control, self._has_hooks = control, has_hooks
        self._hook: Any = None
        #: The compiled model, if the job was given it: its own call is not compiled.
        self._outer = model if type(model).__name__ == "OptimizedModule" else None
        self._outer_hook: Any = None
        #: What passes were compiled in, by what ``job.autocast()`` asked for then, and what the last compiled model was called in.
        self._compiled: dict[str | None, str] = {}
        self._called_in: str | None = None
        self._note = when_compiling(self._on_compiling)
        self.look_again()

    def look_again(self) -> None:
        """Looks at the next forward pass: the precision may be another one since the last."""
        self.is_looking = True
        if not self._has_hooks:
            return
        if self._hook is None:
            self._hook = self._watched.register_forward_pre_hook(Hook(self._on_forward))
        if self._outer is not None and self._outer_hook is None:
            self._outer_hook = self._outer.register_forward_pre_hook(Hook(self._on_call))

    def settle(self) -> None:
        """Ends a look at passes that were compiled, so that no hook saw them. Call it after a step."""
        if not self.is_looking:
            return
        if self._asked() in self._compiled:
            self._found(self._compiled[self._asked()])
        elif self._called_in is not None:
            self._found(self._called_in)
        elif self._control is not None and self._control.is_used and (not self._has_hooks or is_compiled(self._model)):
            weight = _first_weight(self._watched)
            if weight is not None:
                self._found(_name_of(self._control.dtype() or weight.dtype, weight.device.type))

    def now(self) -> str | None:
        """Returns the precision of what is asked for now; ``None``: it is unknown until a pass was looked at."""
        if not self._has_hooks:
            # No pass will be looked at.
            self.settle()
        return None if self.is_looking else self.effective

    def close(self) -> None:
        """Removes the hooks, if they are there; but not from code that was compiled with them, which would be compiled anew."""
        self.is_looking = False
        if not self._compiled:
            hook, self._hook = self._hook, None
            if hook is not None:
                hook.remove()
        outer, self._outer_hook = self._outer_hook, None
        if outer is not None:
            outer.remove()

    def _asked(self) -> str | None:
        return self._control.asked if self._control is not None and self._control.is_used else None

    def _found(self, precision: str) -> None:
        self.effective = precision
        self.close()

    def _on_compiling(self) -> None:
        self.effective = self._compiled[self._asked()] = current_precision(self._watched)

    def _on_forward(self, module: nn.Module, _: Any) -> None:
        if is_exported():
            return
        if torch.compiler.is_compiling():
            self._note()
        elif module.training and self.is_looking:
            self._found(current_precision(module))

    def _on_call(self, module: nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling() and module.training:
            self._called_in = current_precision(module)


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
        return self.asked is None and wanted == probe.now()

    def dtype(self) -> torch.dtype | None:
        """Returns what ``context`` casts to; ``None``: the weights' own type is computed in."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.asked or "")

    def context(self) -> Any:
        self.is_used = True
        dtype = self.dtype()
        return torch.autocast(self.device_type, dtype=dtype, enabled=dtype is not None)
