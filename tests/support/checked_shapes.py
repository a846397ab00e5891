"""A plugin of pytest: ``-p checked_shapes`` checks every call of a function whose annotations name a shape.

The files that import ``dpkernels.shapes`` are rewritten as they are imported, so nothing of them may be imported
before. beartype checks the annotations that name a shape, and jaxtyping that dimensions of one name have one length.
Dataclasses are checked when they are made. At the end, the modules of which nothing was called are named.
"""

import functools
import re
from typing import Any

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype
from tracked import ROOT, tracked

from dpkernels import numerics, shapes
from dpkernels.jax_on_use import Array

_SHAPED = re.compile(rf"\b({'|'.join(shapes.__all__)})\[")
_BEARTYPE = beartype(conf=BeartypeConf(is_pep484_tower=True))  # Integers are numbers.
_called = set[str]()  # The modules of the functions that were called.


def checked(function):
    """Return a function that checks its arguments and its result, as far as their annotations name a shape."""
    hints = {name: hint if _SHAPED.search(str(hint)) else Any for name, hint in function.__annotations__.items()}
    if all(hint is Any for hint in hints.values()):
        return function
    function.__annotations__ = hints
    check = _BEARTYPE(function)

    @functools.wraps(function)
    def called(*arguments, **options):
        _called.add(function.__module__)
        return check(*arguments, **options)

    return called


def modules():
    """Return the names of the modules that name shapes."""
    paths = [path for path in tracked("dpkernels/*.py", "accountants/*.py") if "dpkernels.shapes" in path.read_text()]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.name != "shapes.py"]


def pytest_terminal_summary(terminalreporter):
    for name in sorted({*modules()} - _called):
        terminalreporter.write_line(f"never called: {name}")


for _name in shapes.__all__:
    setattr(shapes, _name, getattr(jaxtyping, _name))
# For a type checker NumPy's numbers are arrays of no dimension. They are no instances of its arrays.
numerics.RealArray = np.ndarray | np.generic | Array
numerics.Real = float | numerics.RealArray
jaxtyping.install_import_hook(modules(), "checked_shapes.checked")
