"""The five loops of docs/gradients.md beside ``tune.best`` and enumeration; draws the picture of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

_DOCS = Path(__file__).parents[1] / "docs"
_EXAMPLES = {
    "eta": "eta of `piecewise`",
    "shape": "m, k and y of `composite`",
    "recycled": "q of `budget_recycled`",
    "rate": "sampling rate",
    "split": "split of a budget",
}


def page() -> dict[str, Any]:
    """Run the examples of the page; return their names."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", (_DOCS / "gradients.md").read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/gradients.md", "exec"), names)
    return names


def rows(names: dict[str, Any]) -> dict[str, tuple[str, float, float, float]]:
    """Return parameters, value of the loop, of ``tune.best`` and of the enumeration, by example."""
    tune, z = names["tune"], {key: names[f"{key}_path"][-1] for key in _EXAMPLES}
    rate = 1e-3 ** np.sin(z["rate"][0]) ** 2
    fractions = np.exp(z["split"][:3]) / np.exp(z["split"][:3]).sum()
    grid = np.stack(np.meshgrid(*[np.linspace(0.05, 0.9, 171)] * 2), -1).reshape(-1, 2)
    thirds = np.column_stack([grid, 1 - grid.sum(1)])[grid.sum(1) < 0.99]
    split = (names["weights"] * float(names["sigma"]) ** 2 / thirds).sum(1).min()
    rates = [names["on_samples"](np.array([offsets])) for offsets in np.linspace(0.0, 0.6, 7)]
    q = 1 / (1 + np.exp(-z["recycled"][0]))
    together, alike = (tune.best(names[name], tune.worst_variance).value for name in ("together", "alike"))
    return {
        "eta": (f"eta = {1 + np.exp(z['eta'][0]):.4f}", z["eta"][-1], names["eta_best"].value, names["eta_grid"]),
        "shape": (
            f"m = {names['m']:.4f}, k = {names['k']:.4f}, y = {names['y']:.5f}",
            z["shape"][-1],
            names["shape_best"].value,
            names["shape_grid"],
        ),
        "recycled": (f"q = {q:.4f}", z["recycled"][-1], 1 - names["recycled_best"].value, names["recycled_grid"]),
        "rate": (f"p = {rate:.6f}", z["rate"][-1], together, float(min(rates))),
        "split": (f"shares {', '.join(f'{fraction:.4f}' for fraction in fractions)}", z["split"][-1], 6 * alike, split),
    }


def parameters_along(names: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Return every parameter over the steps of the loop, by example and by name."""
    jax, z = names["jax"], {key: names[f"{key}_path"][:, :-1] for key in _EXAMPLES}
    shapes = jax.jit(jax.vmap(names["shape"]))(z["shape"])
    fractions = np.asarray(jax.nn.softmax(z["split"]))
    return {
        "eta": {"eta": 1 + np.exp(z["eta"][:, 0])},
        "shape": {"width m": shapes.width, "height k": shapes.height, "level y": shapes.level},
        "recycled": {"q": 1 / (1 + np.exp(-z["recycled"][:, 0]))},
        "rate": {"rate p": 1e-3 ** np.sin(z["rate"][:, 0]) ** 2},
        "split": {f"share {i + 1}": fraction for i, fraction in enumerate(fractions.T)},
    }


def main() -> None:
    """Print the table and draw the picture."""
    import matplotlib.pyplot as plt

    names = page()
    for key, (parameters, *values) in rows(names).items():
        steps = len(names[f"{key}_path"])
        print(f"| {_EXAMPLES[key]} | {parameters} | {steps} | {' | '.join(f'{value:.8g}' for value in values)} |")
    figure, axes = plt.subplots(2, 5, figsize=(15, 5), sharex="col", layout="constrained")
    for (upper, lower), (key, moved) in zip(axes.T, parameters_along(names).items(), strict=True):
        for name, along in moved.items():
            upper.plot(along)
            end = len(along) - 1, float(along[-1])
            upper.annotate(name, end, (0, 4), textcoords="offset points", ha="right", va="bottom")
        upper.set_title(_EXAMPLES[key].replace("`", ""))
        upper.margins(y=0.15)
        lower.plot(names[f"{key}_path"][:, -1], color="black")
        lower.set_xlabel("step")
    axes[0, 0].set_ylabel("parameters")
    axes[1, 0].set_ylabel("objective")
    figure.savefig(_DOCS / "_static" / "gradients.png", dpi=100)


if __name__ == "__main__":
    main()
