"""Tables from files (CSV, TSV, Excel, Parquet, .npy and .npz) or standard input, and example tables."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from io import BytesIO, TextIOWrapper
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from numpy.typing import NDArray

from askew import checks, io
from askew.cli.options import DATASETS, check_file, table_ending
from askew.estimators.cells import THOUSANDS

if TYPE_CHECKING:
    from pandas import DataFrame

# Column of the labels in all example tables.
LABEL = "class"
# Separators of columns; the one that the first line has most of is taken.
SEPARATORS = (",", ";", "\t", "|")
# Missing values, in addition to those that pandas knows (NA, NaN, null, empty, ...).
MISSING = ("?", "-", "--", ".")
# A cell that is a number with a comma or a point.
NUMBER = r"\s*[-+]?\d*{}\d+(?:[eE][-+]?\d+)?\s*"
# Cells such as 9.785 that, with cells such as 893 in the same column, are evidence of points between thousands.
ENOUGH_THOUSANDS = 10
# Errors of readers on files that are damaged or of another kind; MemoryError on one that declares a huge size.
DAMAGE = (ValueError, TypeError, KeyError, NotImplementedError, RuntimeError, MemoryError, OverflowError)
# Files whose columns have a type each.
TYPED = (".parquet", ".npy", ".npz")
# Bytes of text that a packed file may unpack to however small it is: equal values take no room in it.
MOST_TEXT = 1 << 28
# Times its size that a larger packed text may unpack to; tables of numbers unpack to 2 to 10 times.
MOST_PACKED = 50
# From this size on, a Parquet file may unpack to any amount of text.
SMALL_FILE = 1 << 24


def load_bundled(name: str) -> DataFrame:
    """Return an example table of scikit-learn; the column ``class`` has the labels.

    Parameters
    ----------
    name
        iris, wine, breast-cancer or digits.

    Examples
    --------
    >>> table = load_bundled("wine")
    >>> table.shape, sorted(set(table["class"]))
    ((178, 14), ['class_0', 'class_1', 'class_2'])
    """
    from sklearn import datasets

    checks.check_name(name, DATASETS, "--dataset")
    bunch = getattr(datasets, DATASETS[name])(as_frame=True)
    table: DataFrame = bunch.data.copy()
    table[LABEL] = [str(bunch.target_names[number]) for number in bunch.target]
    return table


def read_frame(path: str | os.PathLike[str], *, header: bool = True, text: Sequence[int] | None = None) -> DataFrame:
    r"""Return a table from a file as it is; nothing is encoded or left out, and nothing in the file is run.

    CSV and TSV: columns are separated by comma, semicolon, tab or bar; text is UTF-8, UTF-16 with a byte order mark,
    or else Latin-1, and may be packed (``.csv.gz``). Excel (``.xlsx``, its first sheet) needs ``pip install
    ".[excel]"``, Parquet ``pip install ".[parquet]"``. ``.npy``: a matrix, with columns
    ``x0``, ``x1``, ... ``.npz``: a vector is a column of its name, a matrix several, its name with a number.

    Parameters
    ----------
    path
        The file; its ending tells the format. ``-`` reads CSV from standard input.
    header
        Whether the first line of a text file has the names of the columns. Without, they are ``x0``, ``x1``, ...
    text
        Places of columns of a text file or ``.xlsx`` that alone are returned, as text: as a number, 007 is 7.

    Raises
    ------
    FileNotFoundError, ValueError
        If the file is missing, empty or no table; the message says what is wrong.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "fruit.csv"
    ...     _ = file.write_text("weight;fruit\n150,5;apple\n?;plum\n")
    ...     read_frame(file)
       weight  fruit
    0   150.5  apple
    1     NaN   plum
    """
    place = check_file(path)
    what, ending = f"TABLE {str(path)!r}", table_ending(place)
    options = {} if text is None else {"usecols": sorted(text), "dtype": str}
    try:
        frame = READERS[ending](place, header, **options)
    except DAMAGE as error:
        why = " ".join(str(error).split())[:200]
        must = f"a table as {ending} files have it" if str(path) != "-" else "a table as CSV files have it"
        raise ValueError(checks.message(what, must, but=f"reading it failed: {why}")) from error
    if len(frame) == 0 or frame.shape[1] == 0:
        raise ValueError(checks.message(what, "a table with rows and columns", _empty(frame)))
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(checks.message(what, "a table whose columns have different names", f"{twice[0]!r} twice"))
    return frame


def _empty(frame: DataFrame) -> str:
    return f"a header without rows: {', '.join(map(str, frame.columns[:5]))}" if frame.shape[1] else "an empty file"


def _text(path: Path, header: bool, **options: Any) -> DataFrame:
    import pandas

    source: Path | bytes = path
    if str(path) == "-":
        source = _whole(sys.stdin)
    elif path.suffix.lower() == ".gz":
        try:
            with gzip.open(path) as packed:
                source = packed.read(_most(path) + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it is no whole gzip file ({error})") from error
        _check_unpacked(len(source), path)

    def opened() -> Any:
        return BytesIO(source) if isinstance(source, bytes) else source.open("rb")

    with opened() as file:
        start = file.read(2)
    if not start:
        return pandas.DataFrame()
    marked = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    for encoding in ("utf-16",) if marked else ("utf-8-sig", "latin-1"):
        try:
            with TextIOWrapper(opened(), encoding=encoding) as file:
                lines = list(islice(iter(lambda: file.readline(1 << 20), ""), 100))
            first = lines[0] if lines else ""
            if "\x00" in first:
                hint = "save it as UTF-8"
                raise ValueError(f"it has zero bytes, as UTF-16 without a byte order mark has; {hint}")
            separator = "\t" if table_ending(path)[:4] == ".tsv" else max(SEPARATORS, key=first.count)
            with warnings.catch_warnings(), opened() as file:
                warnings.simplefilter("error", pandas.errors.ParserWarning)  # of rows longer than the header
                frame = pandas.read_csv(
                    file,
                    sep=separator,
                    header=0 if header else None,
                    index_col=False,
                    encoding=encoding,
                    na_values=list(MISSING),
                    skipinitialspace=True,
                    decimal="," if separator == ";" and _decimal_commas(lines) else ".",
                    low_memory=False,
                    **options,
                )
        except pandas.errors.ParserWarning:
            hint = "give each column a name in the first line"
            raise ValueError(f"its rows have more cells than its header; {hint}") from None
        except pandas.errors.EmptyDataError:  # line breaks alone
            return pandas.DataFrame()
        except UnicodeError:
            continue
        if not header:
            frame.columns = [f"x{number}" for number in frame.columns]
        return frame
    raise ValueError("its byte order mark says UTF-16, which it is not")  # Latin-1 reads every byte


@lru_cache(maxsize=1)
def _whole(stream: TextIO) -> bytes:
    """Return what a stream had, which gives it once; a table is read twice where a column names its rows."""
    return stream.buffer.read()


def _most(path: Path) -> int:
    return max(MOST_TEXT, MOST_PACKED * path.stat().st_size)


def _check_unpacked(size: int, path: Path) -> None:
    """Refuse a packed file that unpacks to far more than a table would."""
    if size > _most(path):
        raise ValueError(f"it has {path.stat().st_size} bytes that unpack to more than {_most(path)}")


def _excel(path: Path, header: bool, **options: Any) -> DataFrame:
    """Return the first sheet."""
    checks.optional_import("python_calamine", "excel", "Reading .xlsx")
    import pandas
    from python_calamine import CalamineError

    try:
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(sum(part.file_size for part in archive.infolist()), path)
        frame: DataFrame = pandas.read_excel(
            path, header=0 if header else None, na_values=list(MISSING), engine="calamine", **options
        )
    except (zipfile.BadZipFile, CalamineError, IndexError) as error:
        raise ValueError(str(error)) from error
    if not header:
        frame.columns = [f"x{number}" for number in frame.columns]
    return frame


def _decimal_commas(lines: Sequence[str]) -> bool:
    """Whether numbers between semicolons have decimal commas: some have, and points are but between thousands.

    Without any comma, points are between thousands where whole numbers below 1000 stand in the same column.
    """
    columns = list(zip_longest(*(line.rstrip("\r\n").split(";") for line in lines), fillvalue=""))
    dotted = [[cell.strip() for cell in column if re.fullmatch(NUMBER.format(r"\."), cell)] for column in columns]
    if not all(re.fullmatch(THOUSANDS[","], cell) for cells in dotted for cell in cells):
        return False
    return any(re.fullmatch(NUMBER.format(","), cell) for column in columns for cell in column) or any(
        len(cells) >= ENOUGH_THOUSANDS and any(re.fullmatch(r"\s*[1-9]\d{0,2}\s*", cell) for cell in column)
        for cells, column in zip(dotted, columns, strict=True)
    )


def _parquet(path: Path, header: bool) -> DataFrame:
    checks.optional_import("pyarrow", "parquet", "Reading Parquet")
    import pandas
    import pyarrow

    try:
        _check_parquet(path)
        frame: DataFrame = pandas.read_parquet(path, engine="pyarrow")
        for column in frame.columns:  # text is not looked at when it is read
            held = frame[column].array
            if hasattr(held, "__arrow_array__"):
                pyarrow.array(held).validate(full=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    # An index with a name is a column that somebody made the index.
    return frame.reset_index() if frame.index.name is not None else frame.reset_index(drop=True)


def _check_parquet(path: Path) -> None:
    """Refuse a small file that unpacks to far more: a run of equal values takes a few bytes, however long it is."""
    import pyarrow
    from pyarrow import compute, parquet, types

    # Text is a dictionary here, however it is called in the file.
    plain = (types.is_primitive, types.is_decimal, types.is_null, types.is_fixed_size_binary, types.is_dictionary)
    length = path.stat().st_size
    # The metadata of single columns are not looked at: some that are damaged end the process.
    with parquet.ParquetFile(path) as file:
        leaves = [file.schema.column(number).path for number in range(len(file.schema))]
    # Text is counted before it is written out: as numbers of the different values, it takes little memory.
    with parquet.ParquetFile(path, read_dictionary=leaves) as file:
        rows, fields = sum(io.group_rows(file)), list(file.schema_arrow)
        io.check_values(rows * max(1, len(leaves)), length)
        if len({field.name for field in fields}) < len(fields):
            raise ValueError("two of its columns have the same name")
        # Kinds that others have added, such as the periods of pandas, are held as another one.
        kinds = {field.name: getattr(field.type, "storage_type", field.type) for field in fields}
        for field in fields:
            if not any(fits(kinds[field.name]) for fits in plain):
                got = str(field.type).partition("<")[0]
                raise ValueError(f"{field.name!r} is a column of {got}; it must have one number, text or date a row")
        if length > SMALL_FILE:
            return
        total = rows * sum(kind.byte_width for kind in kinds.values() if types.is_fixed_size_binary(kind))
        texts = [name for name, kind in kinds.items() if types.is_dictionary(kind)]
        chunks = [chunk for column in file.read(columns=texts).columns for chunk in column.chunks] if texts else []
    for chunk in chunks:
        lengths = compute.take(compute.binary_length(chunk.dictionary), chunk.indices)
        total += compute.sum(compute.cast(lengths, pyarrow.int64())).as_py() or 0
    if total > max(MOST_TEXT, io.arrays.DEFLATE * length):
        raise ValueError(f"it has {length} bytes that say they are {total} bytes of text")


def _columns(arrays: dict[str, NDArray[Any]]) -> DataFrame:
    """Return vectors as columns of their names, and matrices as several of them."""
    import pandas

    parts = []
    for name, array in arrays.items():
        if array.ndim not in (1, 2) or array.dtype.kind not in "biufUSM":
            raise ValueError(f"{name!r} is {array.dtype} of shape {array.shape}; it must be a vector or a matrix")
        values = array.astype(str) if array.dtype.kind == "S" else array
        names = [name] if array.ndim == 1 else [f"{name}{i}" for i in range(array.shape[1])]
        parts.append(pandas.DataFrame(values.reshape(len(array), -1), columns=names))
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise ValueError(f"its arrays have {' and '.join(map(str, sorted(lengths)))} rows; they must have as many each")
    return pandas.concat(parts, axis=1) if parts else pandas.DataFrame()


READERS: dict[str, Callable[..., DataFrame]] = {
    ".csv": _text,
    ".tsv": _text,
    ".txt": _text,
    ".csv.gz": _text,
    ".tsv.gz": _text,
    ".txt.gz": _text,
    "": _text,  # of standard input
    ".xlsx": _excel,
    ".parquet": _parquet,
    ".npy": lambda path, _: _columns({"x": io.read_array(path)}),
    ".npz": lambda path, _: _columns(io.read_arrays(path)),
}
