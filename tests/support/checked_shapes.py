"""A plugin of pytest: ``-p checked_shapes`` checks every call of a function whose annotations name a shape.

The files that import ``dpkernels.shapes`` are rewritten as they are imported, so nothing of them may be imported
before. beartype checks all annotations of such a function, and jaxtyping that dimensions of one name have one length.
"""

import re

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype
from tracked import ROOT, tracked

from dpkernels import numerics, shapes
from dpkernels.jax_on_use import Array

_SHAPED = re.compile(rf"\b({'|'.join(shapes.__all__)})\[")
_BEARTYPE = beartype(conf=BeartypeConf(is_pep484_tower=True))  # Integers are numbers.


def checked(function):
    """Return a function that checks its arguments and its result, if it names a shape of any."""
    names_shape = any(_SHAPED.search(str(hint)) for hint in function.__annotations__.values())
    return _BEARTYPE(function) if names_shape else function


def modules():
    """Return the names of the modules that name shapes."""
    paths = [path for path in tracked("dpkernels/*.py", "accountants/*.py") if "dpkernels.shapes" in path.read_text()]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.name != "shapes.py"]


for _name in shapes.__all__:
    setattr(shapes, _name, getattr(jaxtyping, _name))
# For a type checker NumPy's numbers are arrays of no dimension. They are no instances of its arrays.
numerics.RealArray = np.ndarray | np.generic | Array
numerics.Real = float | numerics.RealArray
jaxtyping.install_import_hook(modules(), "checked_shapes.checked")
