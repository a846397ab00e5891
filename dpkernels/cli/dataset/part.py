"""What an engine runs: a part to a file, by a plain function that may be run again, anywhere, and makes the same bytes.

The noise of a row is a function of the release's key and of the row's index, which the plan knows; so is the name that
the file gets, by a rename or an atomic put. A second run of a part, after or beside the first, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import click

from dpkernels.cli.dataset.folder import Folder
from dpkernels.cli.dataset.plan import Part
from dpkernels.cli.failures import independent_of_reports, is_independent, mark_independent
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.release.sidecar import WrittenPart, versions
from dpkernels.cli.release.treatment import Treatment, perturbed
from dpkernels.cli.release.values import check_values
from dpkernels.staging import naming


class Secret:
    """The release's key, 32 bytes: in memory, and in what an engine sends to its workers. Nothing prints it."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self.value,)


@dataclass(frozen=True)
class Job:
    """What is done to every part; the same for all, and without a secret.

    Attributes:
        treatment: of the rows.
        form: how the files are written.
        suffix: of their names.
        parts: how many there are.
        folder: where the parts go; None where none is made.
        versions: of the driver.
    """

    treatment: Treatment
    form: Layout
    suffix: str
    parts: int
    folder: Folder | None
    versions: dict[str, str]


@dataclass(frozen=True)
class Refused:
    """A part whose data are unfit. An answer, not an exception: engines write exceptions to logs that many can read.

    Attributes:
        message: what is wrong, with the value that is.
        usage: whether it is the options that are wrong.
        independent: whether that does not depend on the reports.
    """

    message: str
    usage: bool = False
    independent: bool = False


@dataclass(frozen=True)
class Done:
    """A part that is made.

    Attributes:
        number: of the part.
        rows: how many rows (of an array: values) are left.
        written: its file; None where none was made.
        not_kept: what of the input it does not have.
    """

    number: int
    rows: int
    written: WrittenPart | None = None
    not_kept: tuple[str, ...] = ()


class Versioned(Protocol):
    """What all parts have in common, of a driver of some versions: a ``Job``, or what else a work takes."""

    @property
    def versions(self) -> dict[str, str]:
        """Of the driver."""


# What engines run, and for which parts: work, job, secret, part.
Work = Callable[[Any, Secret | None, Any], Any]


def attempt(work: Work, job: Versioned, secret: Secret | None, part: Part) -> Any:
    """Run a work; unfit data are an answer.

    Raises:
        OSError: reading or writing failed; it may be tried again.
    """
    if job.versions != (own := versions()):
        problem = f"a machine of the cluster has {own}, the driver {job.versions}; a release is of one version"
        return Refused(problem, independent=True)
    try:
        return work(job, secret, part)
    except click.UsageError as error:
        return Refused(error.message, usage=True)
    except ValueError as error:
        name = str(part.file)
        message = str(error) if name in str(error) else f"{name}: {error}"
        return Refused(message, independent=is_independent(error))


def perturb_part(job: Job, secret: Secret | None, part: Part) -> Done:
    """Read, check, perturb, write.

    Raises:
        ValueError: a value that cannot be perturbed, or a file that is damaged or not the one that was planned.
        OSError: reading or writing failed.
    """
    if job.folder is None or secret is None:
        raise TypeError("job: has no folder or no secret")
    name = job.folder.named(part.number, job.parts, job.suffix)
    with (
        naming(f"{part.file} to {name}"),
        _opened(part, job.form) as source,
        job.folder.part(name, part.file.local) as made,
    ):
        read = rows = 0
        pieces = perturbed(job.treatment, source, secret.value, _nothing, row=part.row, first=part.first)
        with source.sink(made.path) as sink, closing(pieces):
            for piece, before, left in pieces:
                sink.write(piece)
                read, rows = read + before, rows + left
        not_kept = tuple(source.not_kept(made.path))
        _check_whole(part, read)
    return Done(part.number, rows, WrittenPart(name, rows // source.values_per_row, made.size, made.sha256), not_kept)


def check_part(job: Job, secret: Secret | None, part: Part) -> Done:
    """Read and check alone.

    Raises:
        ValueError: as ``perturb_part``.
    """
    treatment = job.treatment
    with naming(part.file), part.opened(job.form) as source:
        wanted = treatment.columns, treatment.clip, treatment.handling.missing
        read, rows = check_values(source, *wanted, _nothing, part.row)
        _check_whole(part, read)
    return Done(part.number, rows)


@contextmanager
def _opened(part: Part, form: Layout) -> Iterator[Source]:
    with ExitStack() as held:
        with independent_of_reports():
            source = held.enter_context(part.opened(form))
        yield source


def _check_whole(part: Part, read: int) -> None:
    with independent_of_reports():
        if read != part.rows:
            raise ValueError(f"{part.file}: has {read} rows in a part that was planned with {part.rows}")
        part.check_unchanged()


def _nothing() -> None:
    """Progress is shown by parts."""


def answers(
    engine: Any, work: Work, job: Versioned, secret: Secret | None, parts: Sequence[Part], show: Callable[[], Any]
) -> Generator[Any, None, None]:
    """What an engine answers for parts, as they come.

    Raises:
        click.UsageError, ValueError: the first refusal that comes.
        OSError: a part failed.
    """
    with closing(engine.each(work, job, secret, parts)) as found:
        for one in found:
            if isinstance(one, Refused):
                error = click.UsageError(one.message) if one.usage else ValueError(one.message)
                if one.independent:
                    mark_independent(error)
                raise error
            show()
            yield one
