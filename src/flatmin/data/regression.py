"""The regression problem behind a network: data, and the few numbers the theory needs of it.

For data X (n x d) and y (n), or Y (n x m):

    Sigma = X'X / n                     not centred; eigenvalues lambda_1 <= ... <= lambda_d
    w*    = X^+ y                       the least-norm least-squares solution
    R(w)  = |y - Xw|^2 / n              the risk, so R(w) = R_min + (w - w*)' Sigma (w - w*)
    a     = w*' Sigma w* / |w*|^2       between the smallest and the largest eigenvalue

`Regression` holds these and nothing of size n; `Samples` keeps the rows. Neither forms X'X: a
triangular factor of [X Y] is carried over blocks of rows,

    [X Y] = Q [R_X  R_XY]      R_X = U diag(s) V'      lambda_i = s_i^2 / n
              [ 0   R_Y ]      w* = V diag(1/s) U' R_XY over the s_i above rounding
                               n R_min = |R_Y|^2 + |the part of R_XY outside the range of U|^2

so that s_i keeps its digits where its square would lose them, in memory O((d + m)^2). A
`Preparation` changes the columns on the way: see `flatmin.data.preparation`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import check_kind
from flatmin.core.errors import DataError, NothingToLearn, SettingError
from flatmin.core.memory import check_memory
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.shown import Shown
from flatmin.data.columns import ColumnSummary, Tally
from flatmin.data.preparation import NOTHING, Preparation, Prepared, Scaled, scale_factor
from flatmin.data.tables import Source, table_of
from flatmin.data.tables.table import LARGEST, ROWS, Names, Table

EPS = float(np.finfo(np.float64).eps)


class Regression(Shown):
    """A least-squares problem, reduced to Sigma, w* and R_min.

    `w_star` has shape (d,) for one target and (d, m) for several; `eigenvalues` are ascending,
    exactly zero below the rank, and `eigenvectors` are the matching columns. `preparation` says
    what was done to the table, and `columns` what is known of its columns.

    >>> problem = Regression.from_arrays([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0])
    >>> problem.eigenvalues.round(12), problem.w_star.round(12), round(problem.a, 12)
    (array([0.5, 2. ]), array([1., 2.]), 1.7)
    """

    n: int
    d: int
    rank: int
    risk_min: float
    sigma: Float
    w_star: Float
    eigenvalues: Float
    eigenvectors: Float
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    preparation: tuple[str, ...] = ()
    columns: ColumnSummary | None = None

    def __post_init__(self) -> None:
        for array in (self.sigma, self.w_star, self.eigenvalues, self.eigenvectors):
            array.flags.writeable = False

    def __repr__(self) -> str:
        sizes = f"n={self.n}, d={self.d}, rank={self.rank}, targets={self.targets}"
        return f"Regression({sizes}, risk_min={self.risk_min:.4g})"

    def contents(self) -> dict[str, Any]:
        """Its size, and the numbers that the theory needs of it."""
        size = {name: getattr(self, name) for name in ("n", "d", "targets", "rank", "w_star_norm")}
        ends = ("smallest_eigenvalue", "largest_eigenvalue", "condition_number")
        rest = {name: getattr(self, name) for name in (*ends, "risk_min", "preparation")}
        return {**size, "a": self.a if self.targets == 1 else None, **rest}

    def rows(self) -> list[tuple[str, str]]:
        """The table of `page`."""
        eigenvalues = f"{number(self.smallest_eigenvalue)} to {number(self.largest_eigenvalue)}"
        return [
            ("Data", f"{self.n} rows, {self.d} features, rank {self.rank}"),
            ("Eigenvalues of Sigma", f"{eigenvalues}, ratio {number(self.condition_number)}"),
            ("|w*|, norm of the best regressor", number(self.w_star_norm)),
            ("Smallest risk R_min", number(self.risk_min)),
        ]

    def page(self) -> Page:
        """The numbers, and what a reader of them should know."""
        names = ", ".join(self.target_names)
        heads = (f"Regression of {names}", "")
        return [Listing(heads, self.rows()), Remarks("", [*self.preparation, *self.notes()])]

    @classmethod
    def from_arrays(
        cls,
        X: Source,
        y: Names | npt.ArrayLike,
        features: Names | None = None,
        target: Names | None = None,
        preparation: Preparation = NOTHING,
    ) -> Regression:
        """The regression of y (n,) or (n, m) on X (n, d), whose columns `features` and `target`
        name; or whatever else `read_regression` takes."""
        check_kind("preparation", preparation, Preparation)
        return _reduce(table_of(X, preparation.reading(y, features), target), preparation)

    def regression(self) -> Regression:
        """Itself: what `Samples` reduce to."""
        return self

    @property
    def targets(self) -> int:
        """The number m of targets."""
        return len(self.target_names)

    @property
    def smallest_eigenvalue(self) -> float:
        """The smallest non-zero eigenvalue of Sigma."""
        return float(self.eigenvalues[self.d - self.rank])

    @property
    def largest_eigenvalue(self) -> float:
        """The largest eigenvalue of Sigma."""
        return float(self.eigenvalues[-1])

    @property
    def condition_number(self) -> float:
        """The largest over the smallest non-zero eigenvalue of Sigma."""
        return self.largest_eigenvalue / self.smallest_eigenvalue

    @property
    def full_rank(self) -> bool:
        """Whether Sigma is invertible, so that the data determine w*."""
        return self.rank == self.d

    @property
    def w_star_norm(self) -> float:
        """|w*|, the Frobenius norm for several targets."""
        return float(np.linalg.norm(self.w_star))

    @property
    def a(self) -> float:
        """w*' Sigma w* / |w*|^2, for one target."""
        if self.targets > 1:
            raise SettingError(f"a is defined for one target, and there are {self.targets}")
        return self._quadratic(self.w_star / self.w_star_norm)

    @property
    def excess_at_zero(self) -> float:
        """R(0) - R_min = w*' Sigma w*, what there is to learn."""
        return self._quadratic(self.w_star)

    @cached_property
    def sigma_root(self) -> Float:
        """Sigma^{1/2}, symmetric."""
        kept = slice(self.d - self.rank, None)
        root = self.eigenvectors[:, kept] * np.sqrt(self.eigenvalues[kept])
        root = root @ self.eigenvectors[:, kept].T
        return _frozen((root + root.T) / 2)

    @cached_property
    def q(self) -> Float:
        """Sigma^{1/2} w*."""
        return _frozen(self.sigma_root @ self.w_star)

    def risk(self, w: npt.ArrayLike) -> float:
        """R(w) = R_min + (w - w*)' Sigma (w - w*)."""
        weights = numbers("w", w)
        if weights.shape != self.w_star.shape:
            raise SettingError(f"w has shape {weights.shape}; expected {self.w_star.shape}")
        return self.risk_min + self._quadratic(weights - self.w_star)

    def _quadratic(self, v: Float) -> float:
        """v' Sigma v, summed over targets, as a sum of terms that are not negative."""
        return float(np.sum(self.eigenvalues * np.square(self.eigenvectors.T @ v).T))

    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know about the data, one sentence each."""
        found = []
        if not self.full_rank:
            found.append(
                f"the features do not determine the regressor: rank {self.rank} of {self.d}, "
                "so flatmin uses the least-norm solution"
            )
        if self.rank == self.n - self.centred:
            found.append(f"the {self.d} features fit all {self.n} rows exactly, so R_min is zero")
        if self.condition_number > 1e12:
            found.append(
                f"Sigma is ill-conditioned ({self.condition_number:.1e}): its smallest "
                f"eigenvalue is known to about {EPS * math.sqrt(self.condition_number):.0e} of "
                "its value"
            )
        if self.columns is not None:
            found.extend(self.columns.notes(self.feature_names, self.target_names))
        return tuple(found)

    @property
    def centred(self) -> bool:
        """Whether features and targets were centred, which takes one row's worth of freedom."""
        return self.columns is not None and not any(self.columns.means)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays, for a file."""
        content = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        del content["columns"]
        if self.columns is not None:
            for f in fields(self.columns):
                content[f"columns_{f.name}"] = np.asarray(getattr(self.columns, f.name))
        return content

    @classmethod
    def from_saved(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Regression:
        """The regression whose `arrays` these are."""

        def value(name: str, several: bool) -> Any:
            array = arrays[name]
            return tuple(array.tolist()) if several else array if array.ndim else array.item()

        tuples = ("feature_names", "target_names", "preparation")
        names = [f.name for f in fields(cls) if f.default is MISSING or f.name in arrays]
        content = {name: value(name, name in tuples) for name in names}
        if "columns_means" in arrays:
            parts = {f.name: value(f"columns_{f.name}", True) for f in fields(ColumnSummary)}
            content["columns"] = ColumnSummary(**parts)
        d, sizes = content["d"], [content[name] for name in ("n", "d", "rank")]
        shapes = [(d, d), (d, *np.shape(content["w_star"])[1:2]), np.shape(content["eigenvalues"])]
        wanted = dict(zip(("sigma", "w_star", "eigenvalues"), shapes, strict=True))
        wanted["eigenvectors"] = (d, *shapes[2][:1])
        for name, shape in wanted.items():
            array = np.asarray(content[name])
            fits = array.ndim and array.shape == shape and array.dtype == np.float64
            if not fits or not np.isfinite(array).all():
                raise ValueError(f"its {name} is not that of a regression")
        values, vectors = content["eigenvalues"], content["eigenvectors"]
        off = np.abs(vectors * values @ vectors.T - content["sigma"])
        room = 1e-6 * np.max(values, initial=0.0)
        if not (np.all(values >= -room) and np.max(off) <= room):
            raise ValueError("its eigenvalues are not those of sigma")
        if any(type(size) is not int for size in sizes) or type(content["risk_min"]) is not float:
            raise ValueError("its sizes are not those of a regression")
        return cls(**content)


def read_regression(
    source: Source,
    target: Names | npt.ArrayLike,
    features: Names | None = None,
    preparation: Preparation = NOTHING,
) -> Regression:
    """The regression in a file (.csv, .tsv, .tab, .parquet, .pq or .npz), frame, or arrays.

    `target` is the name of a column or a sequence of names, `features` the columns to use (all
    the others if None). In an NPZ archive or a dictionary, an array X of shape (n, k) gives columns
    X0 ... X{k-1} and its own name stands for all of them. Text and Parquet files are read as a
    stream, in one pass. Of arrays, source and target are X and y themselves, and `features` names
    the columns of X unless that is a frame. `preparation` says what is done to the
    columns first, such as centring them.

    >>> read_regression({"a": [1, 0], "b": [0, 2], "y": [1, 4]}, "y")
    Regression(n=2, d=2, rank=2, targets=1, risk_min=0)
    >>> read_regression([[1, 0], [0, 2]], [1, 4])
    Regression(n=2, d=2, rank=2, targets=1, risk_min=0)
    """
    return Regression.from_arrays(source, target, features, preparation=preparation)


def needed_bytes(columns: int) -> float:
    """Of Sigma and its eigenvectors, with what it takes to compute them."""
    return 5.0 * 8.0 * columns**2


def _frozen(array: Float) -> Float:
    array.flags.writeable = False
    return array


def _regroup(blocks: Iterable[Float], columns: int) -> Iterator[Float]:
    """The same rows in blocks of a size that depends on the number of columns only."""
    rows = max(columns, min(ROWS, (1 << 20) // columns))
    parts: list[Float] = []
    held = 0
    for block in blocks:
        start = 0
        while held + len(block) - start >= rows:
            stop = start + rows - held
            yield np.concatenate([*parts, block[start:stop]])
            parts, held, start = [], 0, stop
        if start < len(block):
            parts.append(block[start:])
            held += len(block) - start
    if held:
        yield np.concatenate(parts)


def _reduce(table: Table, preparation: Preparation) -> Regression:
    """The regression of a table, by a running QR factorisation of [X Y], or of [1 X Y] about a
    shift if columns are to be centred."""
    ready = Prepared(table, preparation)
    columns = len(ready.features) + len(ready.targets)
    tally = Tally()
    check_memory(f"{ready.source}: a regression of {columns} columns", needed_bytes(columns))
    shift: Float = np.zeros(columns)
    factor: Float = np.empty((0, columns + preparation.centres))
    for block in _regroup(ready.blocks(), columns):
        tally.add(block)
        if preparation.centres:
            shift = shift if len(factor) else tally.means
            block = np.column_stack((np.ones(len(block)), block - shift))
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
    ready.check_rows(tally.n, 2)
    return _solve(ready, tally.n, scale_factor(ready, factor, shift, tally))


def _check_digits(
    source: str, features: Sequence[str], r_x: Float, rounding: float, rank: int
) -> None:
    """Refuse columns that say something which vanishes next to others: the rank of the data is that
    of the columns over their sizes, and rounding of the largest has swallowed what small ones say,
    alone or by their differences."""
    sizes = np.abs(r_x).max(axis=0)
    if rank == min(r_x.shape) or not sizes.any():
        return
    smallest = int(np.argmin(np.where(sizes > 0.0, sizes, np.inf)))
    ratio = float(sizes[smallest] / sizes.max())
    # Columns that are seen themselves, but not what tells them from others: ten times rounding, or
    # columns of one size that are equal up to rounding would be on both sides of the line.
    floor = rounding if ratio <= rounding else 10 * rounding
    alone = np.linalg.svd(r_x / np.where(sizes > 0.0, sizes, 1.0), compute_uv=False)
    if np.count_nonzero(alone > floor * alone[0]) > rank:
        small, large = features[smallest], features[int(np.argmax(sizes))]
        what = "" if ratio <= rounding else "and what sets the small columns apart is "
        raise DataError(
            f"{source}: the column {small!r} is {ratio:.0e} of {large!r} in size, {what}beyond the "
            "digits of numbers; standardise the columns or rescale them"
        )


def _solve(table: Prepared, n: int, scaled: Scaled) -> Regression:
    """Sigma, w* and R_min from the triangular factor of [X Y]; the formulas head this module."""
    factor, d, m = scaled.content, len(scaled.features), len(table.targets)
    k = min(d, len(factor))
    r_x, r_xy, r_y = factor[:k, :d], factor[:k, d:], factor[k:, d:]
    y_size = float(np.abs(factor[:, d:]).max())
    u, s, vt = np.linalg.svd(r_x, full_matrices=True)
    scale = s / math.sqrt(n)
    wanted = ", ".join(map(repr, table.targets[:4])) + (", ..." if m > 4 else "")
    if not s[0] > 0:
        raise NothingToLearn(f"{table.source}: every feature is zero in every row")
    if not y_size > 0:
        raise NothingToLearn(f"{table.source}: the target {wanted} is zero in every row (w* = 0)")
    rounding = max(n, d) * EPS
    rank = int(np.count_nonzero(s > rounding * s[0]))
    _check_digits(table.source, scaled.features, r_x, rounding, rank)
    if scale[rank - 1] < 1 / LARGEST:
        raise DataError(f"{table.source}: the features are too small to square; rescale them")

    onto = u[:, :rank].T @ (r_xy / y_size)
    v = vt[:rank].T
    # x_j'y of each feature and target, against what rounding alone would leave of it.
    inner = np.abs(v @ (onto * (s[:rank, None] / s[0])))
    floor = 10 * rounding * np.linalg.norm(r_x / s[0], axis=0)[:, None]
    if not np.any(inner > floor * np.linalg.norm(factor[:, d:] / y_size, axis=0)):
        raise NothingToLearn(
            f"{table.source}: the features do not explain the target {wanted} at all (w* = 0); "
            "no linear network has a minimiser to describe"
        )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        w_star = (v @ (onto / s[:rank, None])) * y_size
        norm = np.linalg.norm(w_star)
    if not 1 / LARGEST < norm < LARGEST:
        raise DataError(
            f"{table.source}: |w*| is beyond the range of numbers; rescale the features or "
            f"the target {wanted}"
        )
    missed = np.concatenate([u[:, rank:].T @ r_xy, r_y])
    eigenvalues = np.zeros(d)
    eigenvalues[d - rank :] = np.square(scale[:rank])[::-1]
    eigenvectors = np.ascontiguousarray(vt[::-1].T)
    kept = eigenvectors[:, d - rank :]  # of a wide table a few
    sigma = (kept * eigenvalues[d - rank :]) @ kept.T
    return Regression(
        n=n,
        d=d,
        rank=rank,
        risk_min=float(np.linalg.norm(missed) / math.sqrt(n)) ** 2,
        sigma=(sigma + sigma.T) / 2,
        w_star=w_star[:, 0].copy() if m == 1 else w_star,
        eigenvalues=eigenvalues,
        eigenvectors=eigenvectors,
        feature_names=scaled.features,
        target_names=table.targets,
        preparation=scaled.sentences,
        columns=scaled.summary,
    )
