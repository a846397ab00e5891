"""JAX is imported when it is used: a release of the command needs none, and what begins without it goes on with it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import dpkernels as dpk
from dpkernels import pytrees
from dpkernels.cli import main
from dpkernels.distributions.laplace import Laplace

RUN = """
import sys
from dpkernels.jax_on_use import defer
defer()
"""


def printed(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", RUN + code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


RELEASE = """
import dpkernels.cli, dpkernels.cli.perturb.plan as plan
plan.os.urandom = lambda count: bytes(range(count))
codes = [dpkernels.cli.main(["perturb", "in.csv", f"{name}.deferred.csv", *options.split(), "--quiet"])
         for name, options in zip(sys.argv[1::2], sys.argv[2::2])]
codes += [dpkernels.cli.main(["estimate", "balanced.deferred.csv", "--json"]),
          dpkernels.cli.main(["estimate", "prefixes.deferred.csv", "--json"]),
          dpkernels.cli.main(["certify", "--verify", "laplace.deferred.csv.json", "--json"])]
assert "jax" not in sys.modules and codes == [0] * len(codes), codes
"""
RELEASES = {
    "balanced": "--column x --lower 0 --upper 120 --epsilon 1",
    "laplace": "--column x --mechanism laplace --sensitivity 1 --epsilon 1",
    "categories": "--column c --categories a,b,c --epsilon 1",
    "prefixes": "--column c --length 2 --alphabet abc --epsilon 1",
}


@pytest.mark.lengthy
def test_a_release_without_jax_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("x,c\n" + "".join(f"{i % 100},{'abc'[i % 3]}\n" for i in range(20_000)))
    printed(RELEASE, *(text for release in RELEASES.items() for text in release))
    monkeypatch.setattr("dpkernels.cli.perturb.plan.os.urandom", lambda count: bytes(range(count)))
    for name, options in RELEASES.items():
        assert main(["perturb", "in.csv", f"{name}.csv", *options.split(), "--quiet"]) == 0
        for end in ("", ".json"):
            texts = [Path(f"{name}{suffix}.csv{end}").read_bytes() for suffix in ("", ".deferred")]
            assert len({hashlib.sha256(text).hexdigest() for text in texts}) == 1


LATER = """
import dpkernels as dpk, numpy as np
from dpkernels import numerics
m = dpk.laplace(epsilon=1, sensitivity=2)
before = m.pdf(0.5, 0.0), "jax" in sys.modules
stand_in = numerics.jnp
gradient = dpk.jax_on_use.jax.grad(lambda x: numerics.ndtri(numerics.sin_pi(x)))(0.1)
import jax, jax.numpy as jnp
leaves = jax.tree.leaves(m)  # It is registered.
assert numerics.jnp is jnp is not stand_in and numerics.namespace(jnp.ones(2)) is jnp
assert isinstance(jnp.ones(2), numerics.RealArray) and not isinstance("text", numerics.RealArray)
assert numerics.floating(jnp.ones(2, int)).dtype == jnp.float32
import accountants
print(before[1], len(leaves), float(gradient), float(jax.jit(lambda m: m.pdf(0.5, 0.0))(m)) - before[0],
      accountants.epsilon(m, 0.0), dpk.perturb(jnp.zeros(3), m).shape)
"""


@pytest.mark.lengthy
def test_jax_is_imported_when_it_is_used() -> None:
    was_there, leaves, gradient, difference, epsilon, *shape = printed(LATER).split(maxsplit=5)
    assert (was_there, leaves, epsilon, shape) == ("False", "4", "1.0", ["(3,)"])
    expected = jax.grad(lambda x: dpk.numerics.ndtri(dpk.numerics.sin_pi(x)))(0.1)
    assert float(gradient) == pytest.approx(float(expected), rel=1e-6)
    assert abs(float(difference)) < 1e-6


@pytest.mark.parametrize(
    "tree",
    [
        dpk.hybrid(epsilon=1.0, lower=0.0, upper=2.0),
        dpk.gaussian(epsilon=1.0, delta=1e-6, sensitivity=2.0),
        Laplace(2.0),
        dpk.randomised_response(epsilon=1.0, categories=("b", "a")),
        (1.0, None, {"b": [2.0], "a": 3.0}),
    ],
    ids=["mixture", "noise", "distribution", "categories", "containers"],
)
def test_trees_without_jax_are_those_of_jax(tree: object, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = jax.tree.leaves(tree)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, tree)
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    monkeypatch.setattr(pytrees, "is_deferred", lambda: True)
    assert pytrees.tree_leaves(tree) == leaves
    assert pytrees.tree_map(lambda leaf: 2 * leaf, tree) == doubled
    assert [name for name, _ in pytrees.named_leaves(tree)] == [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths
    ]


def test_functions_are_wrapped_as_jax_wraps_them() -> None:
    sine = dpk.jax_on_use.custom_jvp(lambda dx, _, x: 3 * dx)(lambda x: jnp.sin(x))
    assert float(jax.grad(sine)(0.2)) == 3
    assert dpk.jax_on_use.jit(static_argnums=1)(lambda x, n: x * n)(2.0, 3) == 6
