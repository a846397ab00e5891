"""The channel of reports, from a mechanism, an exact sampler, a certificate or a sidecar."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, singledispatch
from pathlib import Path
from typing import Any

from dpkernels import checks
from dpkernels.bounded_json import parse_json, read_text
from dpkernels.estimation.channel import Channel, NoiseChannel, TableChannel
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.combined import Certificate, ExactMultivariate, MixtureCertificate, MultivariateCertificate
from dpkernels.exact.noise import NoiseCertificate, VectorNoiseCertificate
from dpkernels.exact.registry import exact_sampler
from dpkernels.exact.rows import RowCertificate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.exact.windows import PlacedCertificate, WindowCertificate

# Decimals to which reports can have been rounded.
_MOST_DECIMALS = 15


def channel_of(
    source: Any,
    *,
    column: str | None = None,
    bounds: tuple[float, float] | None = None,
    decimals: int | None = None,
) -> Channel:
    """Return the channel of the reports of a source.

    Args:
        source: a channel (returned unchanged), a mechanism, an exact sampler, a certificate, or a sidecar (a path or
            its JSON content).
        column: the column of a sidecar; required if it has several.
        bounds: smallest and largest input; required for additive noise, and only there.
        decimals: the number of decimals to which the reports were rounded; a sidecar contains it.

    Raises:
        CertificateError: the integers of a sidecar do not satisfy its claims.
        ValueError: the sidecar does not have the column; bounds or decimals are missing, invalid or superfluous.
        TypeError: the source has no channel, or is for vectors.
    """
    if isinstance(source, Channel):
        return source
    if isinstance(source, str | Path):
        source = _read(Path(source))
    if isinstance(source, Mapping):
        source, decimals = _of_sidecar(source, column, decimals)
    elif column is not None:
        raise ValueError(f"column: {column!r} is for a sidecar; {type(source).__name__} is of one column")
    certificate = source if isinstance(source, Certificate) else _certificate(source)
    if decimals is not None:
        checks.whole("decimals", decimals, 0, _MOST_DECIMALS)
    if bounds is not None:
        bounds = (checks.number("bounds", bounds[0]), checks.number("bounds", bounds[1]))
        if not -math.inf < bounds[0] < bounds[1] < math.inf:
            raise ValueError(f"bounds: {bounds} must be two finite numbers, the smaller first")
    return _channel_once(_Same(certificate), bounds, decimals)


class _Same:
    """A certificate as a cache key that is compared by identity, since tables are large."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def __hash__(self) -> int:
        return id(self.certificate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.certificate is other.certificate


@lru_cache(maxsize=16)
def _channel_once(of: _Same, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    channel = _channel(of.certificate, bounds, decimals)
    channel.epsilon = float(of.certificate.epsilon)  # type: ignore[attr-defined]  # of every kind
    return channel


def _certificate(source: Any) -> Certificate:
    if isinstance(source, ExactSampler | ExactMultivariate):
        return source.certificate
    return exact_sampler(source).certificate


def _read(path: Path) -> Any:
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path}: is not the sidecar of a release; {error}") from error


def _of_sidecar(form: Mapping[str, Any], column: str | None, decimals: int | None) -> tuple[Certificate, int | None]:
    """Return a column's certificate, verified, and the decimals that its release rounded to."""
    try:
        columns = {one["column"]: one["certificate"] for one in form["columns"]}
    except (KeyError, TypeError) as error:
        raise ValueError("mechanism: is not the sidecar of a release; it has no columns with certificates") from error
    if column is None and len(columns) == 1:
        column = next(iter(columns))
    if column not in columns:
        raise ValueError(f"column: {column!r} is not one of the perturbed columns {sorted(map(str, columns))}")
    if "replacing" in form:
        raise CertificateError("mechanism: a run to the sidecar's output was killed; run it again")
    stated = form.get("decimals")
    if stated is not None and decimals not in (None, stated):
        raise ValueError(f"decimals: {decimals}, but the sidecar says {stated}")
    return Certificate.from_dict(columns[column]), decimals if stated is None else stated


@singledispatch
def _channel(certificate: Any, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    raise TypeError(f"mechanism: {type(certificate).__name__} is not of a column of numbers")


@_channel.register(VectorNoiseCertificate)
@_channel.register(MultivariateCertificate)
def _(certificate: Any, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    raise TypeError("mechanism: is for vectors; estimate columns perturbed one by one (estimate_mean takes vectors)")


@_channel.register(WindowCertificate)
@_channel.register(PlacedCertificate)
@_channel.register(RowCertificate)
def _(
    certificate: WindowCertificate | PlacedCertificate | RowCertificate,
    bounds: tuple[float, float] | None,
    decimals: int | None,
) -> Channel:
    _refuse_bounds(bounds)
    return TableChannel([(1.0, certificate.table)], decimals)


@_channel.register
def _(certificate: MixtureCertificate, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    _refuse_bounds(bounds)
    first = float(certificate.weight)
    return TableChannel([(first, certificate.first.table), (1 - first, certificate.second.table)], decimals)


@_channel.register
def _(certificate: NoiseCertificate, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    if bounds is None:
        raise ValueError("bounds: None; additive noise needs the smallest and the largest value that inputs can have")
    return NoiseChannel(certificate, *bounds, decimals)


def _refuse_bounds(bounds: tuple[float, float] | None) -> None:
    if bounds is not None:
        raise ValueError(f"bounds: {bounds} are for additive noise; a bounded mechanism has its own interval")
