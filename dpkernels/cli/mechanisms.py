"""Mechanisms by name: the constructors of the package, and the command-line options for their arguments.

A public constructor of ``dpkernels`` whose required arguments are options of the command is a mechanism of the command.
The exceptions are below: names for choices, and constructors with other arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from pkgutil import walk_packages
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args

import click

import dpkernels
from dpkernels import checks, mechanisms
from dpkernels.bounded_json import brief
from dpkernels.cli import categories
from dpkernels.cli.errors import error_text
from dpkernels.cli.options import OPTIONS, OptionValues, flag, flags, usage_errors
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.program import ProgramError
from dpkernels.mechanisms.optimal.search import has_grid, optimal

if TYPE_CHECKING:
    from dpkernels.numerics import Real

# A release must state these: they have no default.
_CLAIM = ("epsilon", "delta", "sensitivity")
# Where a constructor requires one of these and it is not given, ``accountants.calibrate`` finds it for the claim.
_SCALES = ("sigma", "scale")
# No other bounded mechanism has a lower worst-case variance than the best of these.
_CLOSED_FORMS = ("duchi", "hybrid", "piecewise")
# A choice selects a mechanism by the budget.
CHOICES = {"balanced": _CLOSED_FORMS, "closed-form": _CLOSED_FORMS, "auto": ("optimal", *_CLOSED_FORMS)}
DEFAULT = "balanced"
# Worst-case variance of ``balanced`` at most, over that of the best closed form.
ROOM = 1.1


def select_mechanism(name: str, options: OptionValues) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of the mechanism that a choice selects; another name selects itself.

    The objective ``variance`` selects the lowest worst-case variance. Up to eps = 0.61 that is Duchi's, whose two
    reports cannot estimate a distribution; ``balanced`` then takes a hybrid. The objective ``distribution`` selects
    piecewise: no family that ``tune --objective distribution`` compares has a smaller error, and its reports are
    unbiased. ``categorical`` selects the mechanism for categories with the least error.
    """
    if name in categories.NAMES:
        mechanism_for_categories: Any = named(name).make(options, release=True)
        return categories.name_and_options(mechanism_for_categories)
    if name not in CHOICES:
        return name, dict(options)
    arguments = {key: value for key, value in options.items() if key != "objective"}
    if options.get("objective") == "distribution":
        return "piecewise", {**arguments, "eta": _eta_for_distribution(**arguments)}
    best = _least_variance(CHOICES[name], **arguments)
    if name == "balanced" and best == "duchi":
        return "hybrid", {**arguments, "share": _balanced_share(**arguments)}
    return best, arguments


def _least_variance(names: Iterable[str], **options: float) -> str:
    feasible = [name for name in names if name != "optimal" or has_grid(options["epsilon"])]
    return min(feasible, key=lambda name: float(MECHANISMS[name](**options).worst_variance))


def best_variance(epsilon: float, lower: float, upper: float) -> float:
    """Return the lowest worst-case variance of a closed form."""
    options = {"epsilon": epsilon, "lower": lower, "upper": upper}
    return float(MECHANISMS[_least_variance(_CLOSED_FORMS, **options)](**options).worst_variance)


def _balanced_share(**options: float) -> float:
    """Return the largest share s of a hybrid whose worst-case variance is at most ``ROOM`` times Duchi's, W.

    At an end x of the interval s V_piecewise(x) + (1 - s) V_duchi(x) = ROOM W; elsewhere the variance is smaller.
    """
    points, piecewise = MECHANISMS["duchi"](**options), MECHANISMS["piecewise-wang2019"](**options)
    upper, at_end = options["upper"], float(points.variance(options["upper"]))
    fraction = (ROOM * float(points.worst_variance) - at_end) / (float(piecewise.variance(upper)) - at_end)
    return math.floor(1000 * fraction) / 1000


@lru_cache(maxsize=16)
def _eta_for_distribution(**options: float) -> float:
    """Return the eta of ``piecewise`` with which 10^5 reports estimate the distribution best."""
    from accountants import tune

    return float(tune.best(tune.piecewise(**options), tune.distribution()).parameters["eta"])


def _choice(name: str, /, *, epsilon: float, lower: float, upper: float, objective: str = "variance") -> Mechanism:
    options = {"epsilon": epsilon, "lower": lower, "upper": upper, "objective": objective}
    selected, options = select_mechanism(name, options)
    return MECHANISMS[selected](**options)


def _optimal_central(*, epsilon: float, sensitivity: float, lower: float, upper: float) -> Optimal:
    return optimal(epsilon=epsilon, lower=lower, upper=upper, sensitivity=sensitivity)


def _truncated_laplace(
    *, epsilon: float, delta: float, sensitivity: float, noise_upper: float | None = None
) -> Additive:
    """Name the upper end of the noise differently from that of an input interval."""
    try:
        return dpkernels.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=sensitivity, upper=noise_upper)
    except ValueError as error:
        name, colon, text = error_text(error).partition(":")
        raise ValueError(("noise-upper" if name == "upper" else name) + colon + text) from error


def _gaussian(
    *, sigma: float, sensitivity: float, epsilon: float | None = None, delta: float | None = None
) -> Additive:
    """Require sigma, which the command calibrates as it does every scale."""
    return dpkernels.gaussian(sigma=sigma, sensitivity=sensitivity, epsilon=epsilon, delta=delta)


def _recycled(
    family: Callable[[float], Distribution],
    width: str,
    /,
    *,
    sensitivity: float,
    theta: float,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    scale: float | None = None,
    q: float | None = None,
) -> Additive:
    """Recycle the budget of a kernel; its width, sigma or scale, and q are calibrated to the claim if not given."""
    kernel_width = sigma if scale is None else scale
    options: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity, "theta": theta}
    kernel: Any = family if kernel_width is None else family(kernel_width)
    if kernel_width is not None and q is not None:
        return dpkernels.budget_recycled(kernel, q=q, **options)
    from accountants import calibrate

    _check_claim(flag(width) if kernel_width is None else "--q", options)
    return calibrate.budget_recycled(kernel, q=q, **options)


def _check_claim(option: str, options: Mapping[str, object]) -> None:
    if any(options.get(name) is None for name in _CLAIM):
        raise ValueError(f"{option}: missing; give it, or --epsilon and --delta, to which it is calibrated")


class NamedConstructor:
    """A mechanism of the command: the arguments that are options, and for each option whether it may be left out."""

    def __init__(self, name: str, construct: Callable[..., Any], left_out: Collection[str] = ()) -> None:
        self.name, self.construct = name, construct
        parameters, by_name = inspect.signature(construct).parameters, inspect.Parameter.KEYWORD_ONLY
        settable = [option for option in OPTIONS if option in parameters and option not in left_out]
        required = {
            option: parameters[option].default is inspect.Parameter.empty
            for option in settable
            if parameters[option].kind == by_name
        }
        self.options = {option: option in _SCALES or not is_required for option, is_required in required.items()}
        # A scale that is not given is calibrated to the claim, where the constructor requires it.
        self.calibrated = [option for option in required if option in _SCALES and required[option]]

    @property
    def is_central(self) -> bool:
        """Return whether it is a bounded mechanism for inputs at most a sensitivity apart."""
        return {"lower", "sensitivity"} <= self.options.keys()

    def required(self, release: bool) -> list[str]:
        """Return the required options; a release needs the whole claim."""
        always = _CLAIM if release else ("sensitivity",)
        return [name for name, optional in self.options.items() if not optional or name in always]

    def make(self, options: Mapping[str, object], release: bool) -> Mechanism:
        """Return the mechanism of these options, for a release or for accounting."""
        required = self.required(release)
        for name in options:
            if name not in self.options:
                allowed = flags(self.options)
                raise click.UsageError(f"{flag(name)}: {_title(self.name)} has no such option; it has {allowed}")
        if missing := [name for name in required if name not in options]:
            lacking = ", ".join(map(flag, missing))
            categories = "; a column of categories needs --categories" if self.name == DEFAULT else ""
            raise click.UsageError(f"{lacking}: missing; {_title(self.name)} needs {flags(required)}{categories}")
        if "delta" in options:
            checks.within("delta", options["delta"], 0.0, 1.0, open_ends=True)
        if scales := [name for name in self.calibrated if name not in options]:
            from accountants import calibrate

            _check_claim(flag(scales[0]), options)
            return getattr(calibrate, self.name.replace("-", "_"))(**options)
        return self.construct(**options)


def _constructors() -> Iterator[NamedConstructor]:
    """Yield every mechanism: the exceptions, then the other constructors of the package."""
    # The ``objective`` of a constructor differs from that of a choice.
    special = [
        *(NamedConstructor(name, constructor, {"objective"}) for name, constructor in MECHANISMS.items()),
        *(NamedConstructor(name, partial(_choice, name)) for name in CHOICES),
        NamedConstructor("optimal-central", _optimal_central),
        NamedConstructor("truncated-laplace", _truncated_laplace),
        NamedConstructor("gaussian", _gaussian),
        NamedConstructor("recycled-laplace", partial(_recycled, Laplace, "scale"), {"sigma"}),
        NamedConstructor("recycled-gaussian", partial(_recycled, Gaussian, "sigma"), {"scale"}),
        *(
            NamedConstructor(name, partial(categories.construct, build), {"size", "blocks", "bits"} - {option})
            for name, (build, option) in categories.CONSTRUCTORS.items()
        ),
        NamedConstructor("prefix-response", categories.prefix_response),
    ]
    yield from special
    exceptions = {constructor.name for constructor in special}
    modules = [import_module(info.name) for info in walk_packages(mechanisms.__path__, f"{mechanisms.__name__}.")]
    functions = {name: item for module in modules for name, item in vars(module).items() if inspect.isfunction(item)}
    for name in sorted(functions.keys() & dpkernels.__all__):  # getattr of all public names would load SciPy and others
        if (word := name.replace("_", "-")) not in exceptions and _is_constructor(functions[name]):
            yield NamedConstructor(word, functions[name], {"objective"})


def _is_constructor(function: Callable[..., Real]) -> bool:
    """Return whether a function makes a mechanism, and all its required arguments are options of the command."""
    signature = inspect.signature(function, eval_str=True)
    returned, parameters = signature.return_annotation, signature.parameters.items()
    returned_types = get_args(returned) if isinstance(returned, UnionType) else (returned,)
    return all(
        isinstance(returned_type, type) and issubclass(returned_type, Mechanism) for returned_type in returned_types
    ) and all(p.kind == p.KEYWORD_ONLY and (name in OPTIONS or p.default is not p.empty) for name, p in parameters)


CONSTRUCTORS = {constructor.name: constructor for constructor in _constructors()}


def _title(name: str) -> str:
    return f"{name}, the default," if name == DEFAULT else name


def listing() -> list[str]:
    """Return every mechanism with the options that a release requires, and the others."""
    heading = ["mechanism", "required", "optional"]
    notes = [
        "closed-form, balanced and auto choose a mechanism by the budget:",
        "  closed-form  whichever of piecewise, hybrid and duchi has the lowest worst-case variance",
        "  balanced     the default: like closed-form, but where that is duchi, whose reports say nothing about",
        "               quantiles, a hybrid with at most 10 % more variance",
        "  auto         like closed-form, and also tries optimal",
        "With --objective distribution they choose the piecewise mechanism that estimates the distribution best.",
        "hybrid perturbs each value by piecewise or by duchi, chosen at random.",
        "categorical, subset-selection, randomised-response and block-response are for a column of --categories (or",
        "--categories-from FILE); categorical chooses whichever of the other three has the least error.",
        "prefix-response finds the most frequent texts among too many to list.",
        "An optional argument that is not given is chosen for the mechanism; `dpkernels perturb --help-all` explains",
        "each. Use square-wave for the distribution alone: the mean of its reports is biased.",
    ]
    rows = [[name, *map(" ".join, options.values())] for name, options in listing_dict().items()]
    return [*aligned([heading, *rows]), "", *notes]


def listing_dict() -> dict[str, dict[str, list[str]]]:
    """Return for every mechanism the options that a release requires, and the others."""
    documents = {}
    for name, constructor in CONSTRUCTORS.items():
        required = constructor.required(release=True)
        more = [flag(option) for option in constructor.options if option not in required]
        documents[name] = {"required": list(map(flag, required)), "optional": more}
    return documents


def named(name: str, where: str = "") -> NamedConstructor:
    """Return the constructor of a name; errors begin with ``where``."""
    if name not in CONSTRUCTORS:
        suggestions = get_close_matches(name, CONSTRUCTORS, 1)
        choices = f"the mechanisms; did you mean {suggestions[0]}?" if suggestions else ", ".join(CONSTRUCTORS)
        raise click.UsageError(f"{where}mechanism: {brief(name)} is not one of {choices}")
    return CONSTRUCTORS[name]


def mechanism(name: str, options: Mapping[str, object], where: str = "", *, release: bool = True) -> Mechanism:
    """Return the mechanism of a name with these options, for a release or for accounting, which needs no claim."""
    constructor = named(name, where)
    with usage_errors(where, (ValueError, ProgramError)):
        return constructor.make(options, release)


def build_exact_sampler(name: str, options: OptionValues, where: str = "") -> tuple[str, ExactSampler, dict[str, Any]]:
    """Return the name of the mechanism, which a choice selects, with its exact sampler and its options."""
    built: Any = mechanism(name, options, where)
    try:
        selected, arguments = select_mechanism(name, options)
        return selected, exact_sampler(built), arguments
    except CertificateError as error:
        instead = ""
        if error_text(error).startswith("delta:"):
            from accountants import epsilon

            with suppress(TypeError, ValueError):  # The epsilon that the noise has at its delta, where that is known.
                noise_epsilon = epsilon(built, built.delta)
                if noise_epsilon > built.epsilon * (1 + 1e-9):  # Else the noise has its claim, and its table does not.
                    instead = f"; at delta {shortest(built.delta)} this noise has epsilon {noise_epsilon:.6g}"
        raise CertificateError(f"{where}{error_text(error)}{instead}") from error


def options_by_column(names: Sequence[str], options: Mapping[str, Sequence[Any]]) -> list[dict[str, object]]:
    """Return the options of each column, given the columns' mechanisms by name.

    An option given once is for every column whose mechanism has it; given as often as there are such columns, for these
    in their order.
    """
    constructors = [named(name) for name in names]
    columns: list[dict[str, object]] = [{} for _ in constructors]
    for option, values in options.items():
        pairs = zip(columns, constructors, strict=True)
        having = [column for column, constructor in pairs if option in constructor.options]
        if not having:
            different = list(dict.fromkeys(names))
            if len(different) == 1:
                raise click.UsageError(f"{flag(option)}: {_title(different[0])} has no such option")
            raise click.UsageError(f"{flag(option)}: none of {', '.join(different)} has such an option")
        restriction = "" if len(having) == len(names) else " whose mechanism has it"
        check_count(option, len(values), len(having), restriction)
        spread = list(values) * (len(having) if len(values) == 1 else 1)
        for column, value in zip(having, spread, strict=True):
            column[option] = value
    return columns


def check_count(option: str, count: int, columns: int, restriction: str = "") -> None:
    """Refuse an option that is given neither once nor once a column."""
    if count not in (1, columns):
        allowed = "once" if columns == 1 else f"once, or once for each of the {columns} columns{restriction}"
        raise click.UsageError(f"{flag(option)}: given {count} times; give it {allowed}")
