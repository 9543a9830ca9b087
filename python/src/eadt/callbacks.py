"""What the callbacks of frameworks share: their options, and which logged figure is the validation loss."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from .client import Client, default_rank
from .training import Job, autocast_precision, check_layers

logger = logging.getLogger("eadt")

#: Options that a callback gives to its job itself.
GIVEN: Final = frozenset({"self", "model", "optimizer", "layers", "freezer", "data_ranks", "client_options"})
#: Options of ``Client`` that its job gives itself.
GIVEN_TO_CLIENTS: Final = frozenset({"self", "rank"})
#: Names of figures that a warning lists, at most.
NAMES_LISTED: Final = 8


def check_options(layers: Any, options: Mapping[str, Any], own: Callable[..., Any]) -> None:
    """Refuses options that a callback's job would refuse: raises ``TypeError`` or ``ValueError`` before the training begins.

    ``own``: the callback's ``__init__``, whose parameters are named, too, where an option is misspelt.
    """
    check_layers(layers)
    of_client = _parameters(Client.__init__) - GIVEN_TO_CLIENTS
    known = (_parameters(Job.__init__) - GIVEN) | of_client
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known | (_parameters(own) - {"self"}), 1)
            raise TypeError(f"there is no option {name!r}" + (f": {nearest[0]!r} is meant?" if nearest else ""))
    for name in ("agree_every", "plasticity_every"):
        if not isinstance(options.get(name, 0), int):
            raise TypeError(f"{name} is {options[name]!r}: give a number of steps")
    autocast_precision(options.get("precision"))
    if options.get("client") is None:
        # It reports nothing, and refuses values that are none.
        Client(**{name: value for name, value in options.items() if name in of_client})


def _parameters(function: Callable[..., Any]) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds}


class ValidationLoss:
    """Chooses the validation loss among the figures of evaluations, once: a series has one data set and one unit.

    ``wanted``: its name; ``None``: the first one that ``usual`` finds among the names.
    """

    def __init__(self, wanted: str | None, usual: Callable[[Iterable[str]], str | None]) -> None:
        if wanted is not None and not isinstance(wanted, str):
            raise TypeError(f"validation_loss is {wanted!r}: give the name by which it is logged")
        self._wanted, self._usual = wanted, usual
        #: Names of the figures of evaluations without the loss since the last round; ``None``: there was no such evaluation.
        self._others: list[str] | None = None
        self._is_found = self._is_warned = False

    def of(self, figures: Mapping[str, Any]) -> Any:
        """Returns the loss among the figures of an evaluation; ``None`` if there is none, as for another data set."""
        if self._wanted is None:
            self._wanted = self._usual(figures)
            if self._wanted is not None and default_rank() == 0:
                logger.info("EADT: the validation loss is %s: EadtCallback(validation_loss=NAME) takes another", self._wanted)
        if self._wanted is not None and self._wanted in figures:
            self._is_found = True
            return figures[self._wanted]
        others = self._others or []
        self._others = [*others, *(name for name in figures if name not in others)]
        return None

    def warn_if_missing(self) -> None:
        """Logs once that evaluations ended without a loss. Call it when all of a round are over: data sets may be evaluated in turns."""
        others, self._others = self._others, None
        if others is None or self._is_found or self._is_warned or default_rank() != 0:
            return
        self._is_warned = True
        listed = (", ".join(others[:NAMES_LISTED]) or "none") + (", ..." if len(others) > NAMES_LISTED else "")
        what = "without a known loss" if self._wanted is None else f"without {self._wanted}"
        logger.warning(
            "EADT: an evaluation ended %s, and no validation loss is reported: EadtCallback(validation_loss=NAME) names it (figures: %s)",
            what,
            listed,
        )
