"""The exact form of an optimal mechanism: its linear program's rows as integers."""

from __future__ import annotations

from functools import lru_cache

from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.rows.certificate import RowCertificate, certify_rows
from dpkernels.exact.rows.form import ExactRows, row_form
from dpkernels.exact.rows.lattice import row_table
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.search import solved_again


@lru_cache(maxsize=64)
def optimal_form(mechanism: Optimal) -> ExactRows:
    """The form, from its program solved again where a solution from the cache folder cannot be certified."""
    try:
        return row_form(mechanism, _narrowest(mechanism))
    except CertificateError:
        again = solved_again(mechanism)
        if again is None:
            raise
        return row_form(again, _narrowest(again))


def _narrowest(mechanism: Optimal) -> RowCertificate:
    """The certificate with words of 32 bits, or of 64 where weights out of 2^32 would be too coarse."""
    try:
        return _certified(mechanism, 32)
    except CertificateError:
        return _certified(mechanism, 64)


def _certified(mechanism: Optimal, bits: int) -> RowCertificate:
    sensitivity = None if mechanism.sensitivity is None else float(mechanism.sensitivity)
    return certify_rows(row_table(mechanism, bits), float(mechanism.epsilon), sensitivity)
