"""What tuning returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Many(NamedTuple):
    """Tuned parameters at many budgets.

    Attributes:
        parameters: every parameter by the source's symbols, arrays of the budgets' shape.
        values: the objective, in its natural direction.
        evaluations: of the objective, over all budgets and starts.
    """

    parameters: dict[str, np.ndarray]
    values: np.ndarray
    evaluations: int


@dataclass(frozen=True)
class Result:
    """A tuned mechanism, certified.

    Attributes:
        family: its family's name.
        objective: the objective's name.
        mechanism: a mechanism of dpkernels.
        value: its objective, in its natural direction.
        parameters: every parameter, by the source's symbols.
        path: the free parameters and ``"objective"`` along the steps of the winning start, arrays of one length.
        steps: how many steps it took.
        evaluations: of the objective, over all starts; each with its gradient where the method is "gradient".
        epsilon: with delta the budget that the mechanism meets, but for rounding of at most 1e-9 of it.
        delta: as the exact accountant finds it at epsilon.
    """

    family: str
    objective: str
    mechanism: Any
    value: float
    parameters: dict[str, Any]
    path: dict[str, np.ndarray]
    steps: int
    evaluations: int
    epsilon: float
    delta: float

    def plot(self, path: Path | str) -> None:
        """Draw the objective and the free parameters along the path into a .png.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 2.2 * len(self.path)), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(self.path), 1, sharex=True))
        for axis, (name, values) in zip(axes, reversed(self.path.items()), strict=True):
            axis.plot(values, marker="o", markersize=3)
            axis.set_ylabel(self.objective if name == "objective" else name)
        axes[0].set_title(f"{self.family}: {self.value:.6g}")
        axes[-1].set_xlabel("step")
        figure.savefig(Path(path), dpi=120)
