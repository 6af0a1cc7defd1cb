"""Files to blocks of numbers: every format, everything that can be wrong, and memory."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatmin.core.errors import DataError
from flatmin.data.generators import gaussian_samples
from flatmin.data.preparation import Preparation
from flatmin.data.regression import Regression, read_regression
from flatmin.data.samples import read_samples
from flatmin.data.tables import open_table
from flatmin.data.tables.source import Place
from flatmin.data.tables.table import Reading
from flatmin.data.tables.text import _Lent
from processes import run


@pytest.fixture(scope="module")
def frame():
    samples = gaussian_samples(n=300, d=4, seed=9)
    frame = pd.DataFrame(samples.X, columns=list("abcd"))
    frame["y"] = samples.y
    frame["z"] = samples.y**2
    return frame


def write(frame, path):
    if path.suffix in (".parquet", ".pq"):
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    else:
        frame.to_csv(path, index=False, sep="," if path.suffix.lower() == ".csv" else "\t")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".CSV", ".tsv", ".tab", ".parquet", ".pq", ".npz"])
def test_every_format_gives_the_bits_of_the_arrays(frame, tmp_path, suffix):
    path = write(frame, tmp_path / f"data{suffix}")
    expected = Regression.from_arrays(frame[list("dbac")], frame["y"])
    problem = read_regression(path, "y", ["d", "b", "a", "c"])
    assert np.array_equal(problem.w_star, expected.w_star)
    assert np.array_equal(problem.sigma, expected.sigma)
    assert problem.risk_min == expected.risk_min
    assert problem.feature_names == ("d", "b", "a", "c")
    samples = read_samples(str(path), ["y", "z"])
    assert np.array_equal(samples.X, frame[list("abcd")])
    assert np.array_equal(samples.y, frame[["y", "z"]])
    assert samples.target_names == ("y", "z")


def test_a_long_file_crosses_blocks_without_losing_rows(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.standard_normal((40_000, 3)), columns=["a", "b", "y"])
    csv, parquet = write(frame, tmp_path / "d.csv"), write(frame, tmp_path / "d.parquet")
    assert np.array_equal(read_samples(csv, "y").X, frame[["a", "b"]])
    expected = read_regression(frame, "y")
    for path in (csv, parquet):
        problem = read_regression(path, "y")
        assert problem.n == 40_000
        assert np.array_equal(problem.w_star, expected.w_star)
        assert problem.risk_min == expected.risk_min


def test_a_row_wider_than_a_block_of_text(tmp_path):
    rng = np.random.default_rng(2)
    names = [f"feature{j:06d}" for j in range(30_000)]
    values = rng.integers(0, 9, (3, 30_000)) / 7
    lines = [",".join(names), *(",".join(map(repr, row.tolist())) for row in values)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(lines))
    assert np.array_equal(read_samples(path, names[-1]).X, values[:, :-1])


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfa,b,y\n1,2,3\n4,5,7\n",
        b"a,b,y\r\n1,2,3\r\n4,5,7\r\n",
        b"a,b,y\n1,2,3\n4,5,7",
        b"\n\na,b,y\n1,2,3\n\n4,5,7\n\n  \n\n",
        b'"a","b","y"\n"1","2","3"\n4,5,7\n',
        b" a , b , y \n 1 ,+2, 3\n4e0,5. ,7\n",
        b"a,y,b,note\n1,3,2,x\n4,7,5,\xc3\xa9\n",
        b'a,note,b,y\n1,"two\nlines",2,3\n4,"a ""b"", c",5,7\n',
    ],
)
def test_harmless_variety_in_text(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_bytes(text)
    samples = read_samples(path, "y", ["a", "b"])
    assert np.array_equal(samples.X, [[1, 2], [4, 5]])
    assert np.array_equal(samples.y, [3, 7])


def test_text_of_several_lines_across_blocks_of_text(tmp_path):
    path = tmp_path / "notes.csv"
    note = '"' + "line\n" * 2000 + '"'
    path.write_text("note,a,y\n" + "".join(f"{note},{k},{k * k}\n" for k in range(100)))
    assert np.array_equal(read_samples(path, "y", "a").X[:, 0], np.arange(100))


def test_numbers_of_every_kind(tmp_path):
    frame = pd.DataFrame(
        {
            "flag": [True, False, True],
            "whole": np.array([3, 2**60, 5], dtype=np.int64),
            "byte": np.array([1, 2, 255], dtype=np.uint8),
            "short": np.array([0.5, 1.5, 2.5], dtype=np.float32),
            "y": [1.0, 2.0, 4.0],
        }
    )
    expected = frame.astype(float)[["flag", "whole", "byte", "short"]]
    for suffix in (".csv", ".parquet", ".npz"):
        samples = read_samples(write(frame, tmp_path / f"d{suffix}"), "y")
        assert np.array_equal(samples.X, expected), suffix


def test_a_numbered_header_is_a_header(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("0,1,2\n1,2,3\n4,5,7\n")
    assert read_samples(path, "2").feature_names == ("0", "1")


def test_the_index_of_a_frame_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [1.0, 3.0]}, index=[7, 9])
    frame.to_parquet(tmp_path / "d.parquet")
    assert read_samples(tmp_path / "d.parquet", "y").feature_names == ("a",)
    frame.to_csv(tmp_path / "d.csv")
    with pytest.raises(DataError, match="column 1 has no name"):
        read_samples(tmp_path / "d.csv", "y")
    assert read_samples(tmp_path / "d.csv", "y", ["a"]).d == 1


def test_npz_matrices_are_groups_of_columns(tmp_path):
    X, Y = np.arange(12.0).reshape(4, 3) ** 2, np.eye(4)[:, :2]
    np.savez(tmp_path / "d.npz", X=X, Y=Y, extra=np.ones(4), title=np.array("about"))
    path = tmp_path / "d.npz"
    samples = read_samples(path, "Y", ["X"])
    assert samples.feature_names == ("X0", "X1", "X2")
    assert samples.target_names == ("Y0", "Y1")
    assert np.array_equal(samples.X, X)
    assert np.array_equal(samples.y, Y)
    assert read_samples(path, "Y1", ["extra", "X2"]).feature_names == ("extra", "X2")


GOOD = "a,b,y\n1,2,3\n4,5,7\n"
BAD_TEXT = {
    "text": ("a,b,y\n1,2,3\n4,five,7\n", "line 3, column 'b': 'five' where a number belongs"),
    "underscore": ("a,b,y\n1,2,3\n4,5_0,7\n", "line 3, column 'b': '5_0' where a number belongs"),
    "missing": ("a,b,y\n,2,3\n4,5,7\n", "line 2, column 'a': the value is missing"),
    "NA": ("a,b,y\n1,2,NA\n4,5,7\n", "line 2, column 'y': the value is missing (NA)"),
    "nan": ("a,b,y\n1,2,3\n\n4,nan,7\n", "line 4, column 'b': the value is nan"),
    "infinity": ("a,b,y\n1,2,3\n4,5,-inf\n", "line 3, column 'y': the value is -inf"),
    "1e999": ("a,b,y\n1,2,3\n4,5,1e999\n", "line 3, column 'y': the value is inf"),
    "overflow": ("a,b,y\n1,1e180,3\n4,5,6\n", "line 2, column 'b': the value is 1e+180, beyond"),
    "long row": ("a,b,y\n1,2,3\n4,5,7,9\n", "line 3: expected 3 values, got 4"),
    "short row": ("a,b,y\n1,2,3\n4,5\n", "line 3: expected 3 values, got 2"),
    "open quote": ('a,b,y\n1,2,3\n4,"5,7\n8,9,1\n', "line 3: expected 3 values, got 2"),
    "not logical": ("a,b,y\nTrue,2,3\n2,5,7\n", "line 3, column 'a': '2' where true or false"),
    "repeated": ("a,a,y\n1,2,3\n4,5,7\n", "the column name 'a' occurs 2 times"),
    "empty": ("", "the file is empty"),
    "blank": ("\n \n\n", "the file is empty"),
    "header only": ("a,b,y\n", "no rows below the header"),
    "header only, unfinished": ("a,b,y", "no rows below the header"),
    "one row": ("a,b,y\n1,2,3\n", "at least two rows, got 1"),
    "one column": ("y\n1\n2\n", "only one column ('y')"),
    "semicolons": ("a;b;y\n1;2;3\n", "the columns seem to be separated by ';'"),
    "no header": ("1,2,3\n4,5,7\n", "no header"),
    "NUL": ("a,b,y\n1,\0,3\n4,5,7\n", "it contains NUL bytes"),
    "late NUL": (
        "a,b,y\n1,2,3\n4,5\0,7\n",
        "line 3, column 'b': not a text table (it contains NUL",
    ),
    "not UTF-8": (b"a,b,y\n1,\xff,3\n", "byte 0xff is not UTF-8"),
    "late not UTF-8": (b"a,b,y\n" + b"1,2,3\n" * 9999 + b"1,\xff,3\n", "byte 0xff is not UTF-8"),
    "binary": (bytes(range(256)) * 20, "not a text table"),
    "UTF-16": (GOOD.encode("utf-16"), "byte 0xff is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text_is_refused_in_one_line(tmp_path, case):
    content, fragment = BAD_TEXT[case]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(path, fragment)


def assert_refused(path, fragment, target="y", features=None):
    with pytest.raises(DataError) as caught:
        read_regression(path, target, features)
    message = str(caught.value)
    assert fragment in message
    assert message.startswith(str(path))
    assert "\n" not in message


BAD_CHOICE = {
    "unknown target": ("Y_", None, "no column 'Y_' (target); columns: a, b, y"),
    "close target": ("yy", None, "no column 'yy' (target); did you mean 'y'?"),
    "unknown feature": ("y", ["a", "bb"], "no column 'bb' (feature); did you mean 'b'?"),
    "target as feature": ("y", ["a", "y"], "the target 'y' is also among the features"),
    "feature twice": ("y", ["a", "a"], "the feature 'a' is given twice"),
    "target twice": (["y", "y"], None, "the target 'y' is given twice"),
    "no target": ([], None, "no target given"),
    "no features": ("y", [], "no features left beside the target y"),
    "all targets": (["a", "b", "y"], None, "no features left beside the target a, b, y"),
}


@pytest.mark.parametrize("case", BAD_CHOICE)
def test_bad_choices_of_columns(tmp_path, case):
    target, features, fragment = BAD_CHOICE[case]
    path = tmp_path / "data.csv"
    path.write_text(GOOD)
    assert_refused(path, fragment, target, features)


def test_a_long_list_of_columns_is_shortened(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(",".join(f"c{j}" for j in range(99)) + "\n" + "1," * 98 + "1\n")
    assert_refused(path, "c6, c7, ... (99)", "target")


def bad_files():
    def npz(**arrays):
        return lambda path: np.savez(path, **arrays)

    def table(**columns):
        return lambda path: pq.write_table(pa.table(columns), path)

    y, ones = np.arange(3.0), np.ones(3)
    return {
        "folder": ("d.csv", lambda path: path.mkdir(), "is a folder"),
        "missing": ("d.csv", lambda path: None, "no such file"),
        "suffix": ("d.xlsx", lambda path: path.write_text(GOOD), "'.xlsx'; expected one of .csv"),
        "broken parquet": ("d.parquet", lambda path: path.write_text(GOOD), "not a readable Parq"),
        "cut parquet": ("d.pq", cut(table(a=ones, y=y)), "not a readable Parquet file"),
        "broken npz": ("d.npz", lambda path: path.write_text(GOOD), "not a readable NPZ archive"),
        "cut npz": ("d.npz", cut(npz(a=ones, y=y)), "not a readable NPZ archive"),
        "damaged npz": ("d.npz", damage(npz(a=ones, y=y)), "array 'a' of the NPZ archive cannot"),
        "npz objects": ("d.npz", npz(a=np.array([1, "b", None]), y=y), "array 'a' of the NPZ"),
        "npz text": ("d.npz", npz(a=np.array(["u", "v", "w"]), y=y), "array 'a' is of type <U1"),
        "npz length": ("d.npz", npz(a=np.ones(4), y=y), "array 'a' has shape (4,); expected"),
        "npz scalar": ("d.npz", npz(a=np.float64(4), y=y), "array 'a' has shape ()"),
        "npz cube": ("d.npz", npz(a=np.ones((3, 2, 2)), y=y), "array 'a' has shape (3, 2, 2)"),
        "npz clash": ("d.npz", npz(X=np.ones((3, 2)), X1=ones, y=y), "'X1' occurs 2 times"),
        "npz nan": ("d.npz", npz(a=[1, np.nan, 2], y=y), "column 'a', row 1 (counting from 0)"),
        "npz empty": ("d.npz", npz(a=[], y=[]), "at least two rows, got 0"),
        "parquet text": (
            "d.parquet",
            table(a=["u", "v"], y=[1, 2]),
            "column 'a' is of type string",
        ),
        "parquet null": ("d.parquet", table(a=[1, None], y=[1, 2]), "column 'a', row 1 (counting"),
        "parquet inf": ("d.pq", table(a=[1.0, np.inf], y=[1, 2]), "row 1 (counting from 0) is inf"),
    }


def cut(make):
    def made(path):
        make(path)
        path.write_bytes(path.read_bytes()[:-40])

    return made


def damage(make):
    def made(path):
        make(path)
        content = path.read_bytes()
        place = content.index(np.ones(3).tobytes())
        path.write_bytes(content[:place] + b"\x55" * 8 + content[place + 8 :])

    return made


@pytest.mark.parametrize("case", bad_files())
def test_bad_files_are_refused_in_one_line(tmp_path, case):
    name, make, fragment = bad_files()[case]
    path = tmp_path / name
    make(path)
    assert_refused(path, fragment)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "d.csv"
    path.write_text(GOOD)

    def refuse(*_args, **_settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("flatmin.data.tables.source.open", refuse, raising=False)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied"):
        open_table(path, Reading("y"))


def test_a_large_csv_is_summarised_in_little_memory(tmp_path):
    """600,000 x 50 numbers are 229 MiB; the child grows by less than 0.6 of that."""
    rng = np.random.default_rng(0)
    rows, repeats, names = 2000, 300, [f"x{j}" for j in range(49)]
    values = rng.standard_normal((rows, 50)).round(4)
    text = pd.DataFrame(values, columns=[*names, "y"]).to_csv(index=False)
    header, body = text.split("\n", 1)
    path = tmp_path / "large.csv"
    with open(path, "w") as stream:
        stream.write(header + "\n")
        for _ in range(repeats):
            stream.write(body)
    code = (
        "import resource, sys, pyarrow.csv\n"
        "from flatmin.data.regression import read_regression\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "problem = read_regression(sys.argv[1], 'y')\n"
        "print(problem.n, peak() - before, problem.w_star[0].hex())\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    returned, out, err = run([sys.executable, "-c", code, path], env=environment)
    assert (returned, err) == (0, "")
    n, grown, first = out.split()
    assert int(n) == rows * repeats
    assert int(grown) < 0.6 * rows * repeats * 50 * 8 / 2**20
    expected = np.linalg.lstsq(values[:, :49], values[:, 49], rcond=None)[0]
    assert float.fromhex(first) == pytest.approx(expected[0], rel=1e-9)


def test_every_source_goes_through_one_door(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [0.5, 0.0, 1.0], "y": [1.0, 3.0, 2.0]})
    X, y = frame[["a", "b"]], frame["y"]
    path = write(frame, tmp_path / "d.csv")
    expected = read_samples(frame, "y")
    for source, target in (
        (path, "y"),
        (frame, "y"),
        (frame, ["y"]),
        (frame.to_dict("list"), "y"),
        (dict(frame.items()), "y"),
        (X, y),
        (X, y.set_axis([7, 8, 9])),  # by place, not by index
        (X, frame[["y"]]),
        (X, y.tolist()),
    ):
        found = read_samples(source, target)
        assert (found.feature_names, found.target_names) == (("a", "b"), ("y",))
        assert np.array_equal(found.X, expected.X)
        assert np.array_equal(found.y, expected.y)
        assert np.array_equal(read_regression(source, target).w_star, expected.regression().w_star)
    plain = read_samples(X.to_numpy(), y.to_numpy(), ["p", "q"])
    assert (plain.feature_names, plain.target_names) == (("p", "q"), ("y",))
    assert np.array_equal(plain.X, expected.X)
    two = read_samples({"X": X.to_numpy(), "y": y, "note": ["u", "v", "w"]}, "y", "X")
    assert (two.feature_names, two.n) == (("X0", "X1"), 3)
    assert read_samples(X, np.ones((3, 2))).target_names == ("y0", "y1")
    labelled = {"kind": pd.Series(["u", "v", "u"]), "y": [1.0, 2.0, 3.0]}
    prepared = Preparation(one_hot="kind")
    found = read_samples(labelled, "y", preparation=prepared)
    assert found.feature_names == ("kind=u", "kind=v")


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (np.ones((3, 2)), "y", "the target 'y' is a name, but columns of an array have none"),
        ({"a": [1.0], "y": [1.0]}, [1.0], "target must be the name of an array"),
        ({"a": [1.0, 2.0], "y": [1.0]}, "y", "the dictionary: array 'a' has shape"),
        (pd.DataFrame({"a": [1.0, 2.0]}), [1.0], "X has 2 rows and y has 1"),
        (pd.DataFrame({"y": [1.0, 2.0]}), [1.0, 2.0], "'y', is also that of a column of X"),
        (pd.DataFrame({"a": [1.0, 2.0]}), ["u", 2.0], "y is of type"),
    ],
)
def test_sources_that_do_not_fit_their_target(source, target, message):
    with pytest.raises(DataError) as raised:
        read_samples(source, target)
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["a,y\n" + "1,2\n" * 99, "a,y\n1,2\n3,x\n", "a,y\n1,2\n3\n"])
def test_no_thread_of_the_parser_holds_anything_when_a_table_has_been_read(tmp_path, text):
    """One that lets go of an object of Python's while the interpreter ends aborts the process."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    streams = []
    table = open_table(path, Reading("y"))
    with pytest.MonkeyPatch.context() as patch:
        opened = Place.open
        patch.setattr(Place, "open", lambda place: streams.append(opened(place)) or streams[-1])
        with suppress(DataError):
            for _ in table.rows():
                pass
    assert streams
    assert all(stream.closed for stream in streams)
    assert not [one for one in gc.get_objects() if type(one) is _Lent]


def test_letters_of_several_bytes_may_lie_across_blocks(tmp_path):
    path, count = tmp_path / "t.csv", 30_000
    rows = (f"{'é日😀' * (i % 7)},{i},{i % 3}" for i in range(count))
    path.write_text("t,a,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert path.stat().st_size > 2 << 18  # blocks
    table = open_table(path, Reading(("y",), features=("a",)))
    found = np.concatenate(list(table.rows()))
    assert sorted(found.sum(axis=0)) == sorted(
        [sum(range(count)), sum(i % 3 for i in range(count))]
    )


def test_what_a_mask_hides_is_missing(frame):
    """NumPy takes the numbers behind a mask for values."""
    X, y = frame[list("abcd")].to_numpy(), frame["y"].to_numpy()
    hidden = np.ma.masked_array(X.copy(), mask=np.zeros(X.shape, dtype=bool))
    hidden[3, 2], hidden[5, 0] = 1e9, np.nan
    hidden[3, 2] = hidden[5, 0] = np.ma.masked
    for source, target in ((hidden, y), (X, np.ma.masked_where(y == y[0], y))):
        with pytest.raises(DataError, match=r"is nan; .* or say what to do"):
            read_regression(source, target)
    with pytest.raises(DataError, match=r"row 3 .* is nan"):
        read_regression({"a": hidden[:, 2], "y": y}, "y")
    without = np.delete(np.arange(len(X)), [3, 5])
    dropped = read_regression(hidden, y, preparation=Preparation(missing="drop"))
    assert np.array_equal(dropped.w_star, read_regression(X[without], y[without]).w_star)
    nothing_hidden = read_regression(np.ma.masked_array(X), y)
    assert np.array_equal(nothing_hidden.w_star, read_regression(X, y).w_star)
    rows = [np.ma.masked_equal(row, row[0]) for row in X[:9]]
    with pytest.raises(DataError, match=r"column 'x0', row 0 .* is nan"):
        read_regression(rows, y[:9])


def test_a_number_may_name_a_column_of_a_frame(frame):
    numbered = frame[list("abcdy")].set_axis(range(5), axis=1)
    expected = read_regression(frame[list("abcdy")], "y")
    assert np.array_equal(read_regression(numbered, 4).w_star, expected.w_star)
    with pytest.raises(DataError, match=r"y has shape \(\); .* or names of columns"):
        read_regression(numbered, 7)


def test_hints_are_of_use(tmp_path, frame):
    """A target cannot be one-hot or dropped, and what is nested cannot be one-hot."""
    (tmp_path / "text.csv").write_text("a,y\n1,low\n2,high\n")
    nested = pa.table({"a": [[1.0], [2.0], [3.0]], "b": [1.0, 2.0, 3.0], "y": ["1", "2", "4"]})
    pq.write_table(nested, tmp_path / "nested.parquet")
    listed = frame.assign(a=[[1.0]] * len(frame))
    one_hot = Preparation(one_hot="a")
    for source, target, preparation, hint in (
        (tmp_path / "text.csv", "y", Preparation(), "belongs; a target must be numbers"),
        (tmp_path / "nested.parquet", "b", Preparation(), "not numbers; drop leaves it out"),
        (tmp_path / "nested.parquet", "b", one_hot, "not text or numbers; drop leaves it out"),
        (tmp_path / "nested.parquet", "y", Preparation(drop="a"), "; a target must be numbers"),
        (listed, "y", one_hot, "not text or numbers; drop leaves it out"),
        (frame.assign(a=1j), "y", Preparation(), "not numbers; drop leaves it out"),
        (frame.assign(y="1"), "y", Preparation(), "not numbers; a target must be numbers"),
        (pa.table({"a": [1.0], "y": [1.0]}), "y", Preparation(), "got Table .its to_pandas"),
    ):
        with pytest.raises(DataError, match=hint):
            read_regression(source, target, preparation=preparation)
