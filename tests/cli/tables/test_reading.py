"""Tables come out of files as they are, and files that are none say why."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pytest

import askew
from askew.cli.options import DATASETS
from askew.cli.tables import load_bundled, read_frame


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_found(tmp_path: Path, separator: str) -> None:
    file = write(tmp_path, "a.csv", f"a{separator}b\n1{separator}x\n2.5{separator}y\n")
    frame = read_frame(file)
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("a;b\n1,5;x\n2,25;y\n", [1.5, 2.25]), ("a;b\n1.5;x,z\n2.25;y\n", [1.5, 2.25]), ("a,b\n1.5,1\n2,1\n", [1.5, 2.0])],
)
def test_decimal_comma(tmp_path: Path, text: str, numbers: list[float]) -> None:
    assert read_frame(write(tmp_path, "a.csv", text))["a"].tolist() == numbers


def test_points_between_thousands(tmp_path: Path) -> None:
    """They are no decimal points: the column stays text, which its line then says how it is read."""
    rows = [f"{number}.785;7" for number in range(1, 11)] + ["893;7"]
    for text, numbers in (
        ("a;b\n9.785;1,5\n893;2,5\n", [9785.0, 893.0]),
        ("\n".join(["a;b", *rows]), [1785.0]),
        ("a;b\n9.785;1,5\n893;2.5\n", [9.785, 893.0]),
        ("\n".join(["a;b", *rows[:-1]]), [1.785]),  # nothing tells
    ):
        columns = askew.Columns(drop=["b"])
        points = columns.fit_transform(read_frame(write(tmp_path, "a.csv", text)))
        assert points[: len(numbers), 0].tolist() == numbers
        assert (f"'{text[4:9]}' is read as {numbers[0]:.0f}" in columns.notes_[0]) == (numbers[0] > 1000)


def test_gaps_are_gaps(tmp_path: Path) -> None:
    frame = read_frame(write(tmp_path, "a.csv", "a,b\n1,?\n,NA\n3,-\n"))
    assert frame["a"].isna().tolist() == [False, True, False]
    assert frame["b"].isna().all()


def test_byte_order_mark_and_latin_1(tmp_path: Path) -> None:
    assert list(read_frame(write(tmp_path, "a.csv", b"\xef\xbb\xbfa,b\n1,2\n")).columns) == ["a", "b"]
    assert read_frame(write(tmp_path, "b.csv", "a\nZürich\n".encode("latin-1")))["a"].tolist() == ["Zürich"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_byte_order_mark_says_how_text_is_written(tmp_path: Path, encoding: str) -> None:
    text = "\ufeffgröße;ort\n1,5;Zürich\n?;שלום\n"
    frame = read_frame(write(tmp_path, "a.csv", text.encode(encoding)))
    assert list(frame.columns) == ["größe", "ort"]
    assert frame["größe"].isna().tolist() == [False, True]
    assert frame["größe"][0] == 1.5
    assert frame["ort"].tolist() == ["Zürich", "שלום"]
    tabs = read_frame(write(tmp_path, "a.tsv", text.replace(";", "\t").encode(encoding)), header=False)
    assert tabs["x1"].tolist() == ["ort", "Zürich", "שלום"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "a,b\n1,2\n".encode("utf-16-le"),
            "it has zero bytes, as UTF-16 without a byte order mark has; save it as UTF-8",
        ),
        ("\ufeffa,b\n1,2\n".encode("utf-16-le")[:-1], "its byte order mark says UTF-16, which it is not"),
        ("\ufeffa,b\n1,2\n".encode("utf-32-le"), "it has zero bytes"),
    ],
)
def test_text_that_is_not_what_it_says(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_frame(write(tmp_path, "a.csv", content))


def test_without_header(tmp_path: Path) -> None:
    frame = read_frame(write(tmp_path, "a.csv", "1,2\n3,4\n"), header=False)
    assert frame.to_dict("list") == {"x0": [1, 3], "x1": [2, 4]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "a,b,label\n1,2,x,\n3,4,y,\n"),
        ("a.csv", "a,b,label\n1,2,x,\n3,4,y\n"),
        ("a.csv", "a;b;label\n1;2;x;\n3;4;y;\n"),
        ("a.tsv", "a\tb\tlabel\n1\t2\tx\t\n3\t4\ty\t\n"),
    ],
)
def test_empty_cells_behind_the_last_column_are_left_out(tmp_path: Path, name: str, text: str) -> None:
    frame = read_frame(write(tmp_path, name, text))
    assert frame.to_dict("list") == {"a": [1, 3], "b": [2, 4], "label": ["x", "y"]}


@pytest.mark.parametrize(
    "text", ["a, id ,b\n1,007,x\n\n2, ,y\n", "a;id;b\n1,5;007;x\n2;;y\n", "\ta,id,b\n1,007,x,\n2,,y,\n"]
)
def test_columns_as_text(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", text)
    frame = read_frame(file, text=[1])
    assert frame.columns.tolist() == ["id"]
    assert frame["id"].iloc[0] == "007"
    assert frame["id"].isna().tolist() == [False, True]
    frame = read_frame(file, header=False, text=[2, 1])
    assert frame["x1"].tolist()[1:2] == ["007"]
    assert frame["x2"].tolist() == ["b", "x", "y"]


def test_cells_that_number_the_rows_are_no_index(tmp_path: Path) -> None:
    """The index that pandas makes of such a column looks as if it had made none."""
    frame = read_frame(write(tmp_path, "a.csv", "index,b\n0,5,\n1,6,\n"))
    assert frame.to_dict("list") == {"index": [0, 1], "b": [5, 6]}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "a,b,label\n1,2,x,7\n3,4,y,\n", "its rows have more cells than its header"),
        ("a.csv", "a,b,label\n0,2,x,\n1,4,y,7\n", "its rows have more cells than its header"),
        ("a.csv", "a,b\n1,2,,\n3,4,,\n", "its rows have more cells than its header"),
        ("a.csv", "a\n1,,7\n3,,\n", "its rows have more cells than its header"),
        ("a.tsv", "a\tb\n1\t2\tx\t\n3\t4\t\t\n", "its rows have more cells than its header"),
        ("a.csv", "a,b\n1,2\n3,4,\n", "Expected 2 fields in line 3, saw 3"),
    ],
)
def test_cells_without_a_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_frame(write(tmp_path, name, text))


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(
        {"a": [1.0, None], "b": ["x", "y"], "when": pandas.to_datetime(["2020-01-01", "2021-01-01"])}
    )
    table.to_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(read_frame(tmp_path / "a.parquet"), table)
    with pytest.raises(ValueError, match=r"must be a table as \.parquet files have it"):
        read_frame(write(tmp_path, "bad.parquet", "not parquet"))


def test_parquet_of_other_kinds(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    kinds = {
        "text": pyarrow.array(["a", None], pyarrow.large_string()),
        "bytes": pyarrow.array([b"a", b"b"], pyarrow.large_binary()),
        "fixed": pyarrow.array([b"a", b"b"], pyarrow.binary(1)),
        "class": pyarrow.array(["a", "b"]).dictionary_encode(),
        "day": pyarrow.array([0, 1], pyarrow.int32()).cast(pyarrow.date32()),
        "price": pyarrow.array([1, 2]).cast(pyarrow.decimal128(30, 2)),
        "nothing": pyarrow.nulls(2),
        "v.w": pyarrow.array(["a", "b"]),
    }
    parquet.write_table(pyarrow.table(kinds), tmp_path / "a.parquet")
    frame = read_frame(tmp_path / "a.parquet")
    assert list(frame.columns) == list(kinds)
    assert [str(value) for value in frame.iloc[1]][3:] == ["b", "1970-01-02", "2.00", "None", "b"]
    months = pandas.DataFrame({"month": pandas.period_range("2020-01", periods=2, freq="M")})
    months.to_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(read_frame(tmp_path / "a.parquet"), months)


def test_parquet_that_is_no_table(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for table, words in (
        (pyarrow.table({"s": [{"a": 1}]}), "'s' is a column of struct; it must have one number, text or date a row"),
        (pyarrow.table({"l": [[1]]}), "'l' is a column of list; it must have"),
        (pyarrow.table([[1], ["x"]], names=["a", "a"]), "two of its columns have the same name"),
    ):
        parquet.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=words):
            read_frame(tmp_path / "a.parquet")


def test_arrays(tmp_path: Path) -> None:
    points = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "a.npy", points)
    assert read_frame(tmp_path / "a.npy").to_dict("list") == {"x0": [0, 2, 4], "x1": [1, 3, 5]}
    np.savez(tmp_path / "a.npz", X=points, y=np.array(["a", "b", "a"]))
    assert list(read_frame(tmp_path / "a.npz").columns) == ["X0", "X1", "y"]
    np.savez(tmp_path / "b.npz", X=points, y=np.zeros(2))
    with pytest.raises(ValueError, match="its arrays have 2 and 3 rows"):
        read_frame(tmp_path / "b.npz")


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a table as \.npy files have it"):
        read_frame(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "", "a table with rows and columns. Got an empty file instead"),
        ("a.csv", "\n\n", "Got an empty file instead"),
        ("a.csv", "a,b\n", "Got a header without rows: a, b instead"),
        ("a.csv", "a,b\n1,2,3,4\n1\n5,6,7,8,9,9\n", "a table as .csv files have it"),
        ("a.xls", "x", "a file that ends in .csv"),
        ("a.gz", "x", "a file that ends in .csv"),
        ("a.csv.gz", "x", "reading it failed: it is no whole gzip file"),
        ("a.npz", "x", "a table as .npz files have it"),
    ],
)
def test_what_is_no_table(tmp_path: Path, name: str, content: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_frame(write(tmp_path, name, content))


def test_packed_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress("größe;ort\n1,5;Zürich\n".encode())
    file = write(tmp_path, "a.CSV.gz", content)
    assert read_frame(file).to_dict("list") == {"größe": [1.5], "ort": ["Zürich"]}
    tabs = write(tmp_path, "a.tsv.gz", gzip.compress(b"a,b\tc\n1\t2\n"))
    assert read_frame(tabs).to_dict("list") == {"a,b": [1], "c": [2]}
    with pytest.raises(ValueError, match="reading it failed: it is no whole gzip file"):
        read_frame(write(tmp_path, "b.csv.gz", content[:-9]))
    monkeypatch.setattr("askew.cli.tables.reading.MOST_TEXT", 1000)
    with pytest.raises(ValueError, match="bytes that unpack to more than"):
        read_frame(write(tmp_path, "c.csv.gz", gzip.compress(b"a\n" + b"1\n" * 100_000)))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("ort;x\nZürich;1,5\n".encode("latin-1"))))
    assert read_frame("-").to_dict("list") == {"ort": ["Zürich"], "x": [1.5]}
    assert read_frame("-", text=[1]).to_dict("list") == {"x": ["1,5"]}  # it is kept
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match=r"TABLE '-' must be a table with rows and columns\. Got an empty file"):
        read_frame("-")


SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="1"><c r="A1" '
    't="inlineStr"><is><t>ort</t></is></c><c r="B1" t="inlineStr"><is><t>x</t></is></c></row><row r="2"><c r="A2" '
    't="inlineStr"><is><t>Zürich</t></is></c><c r="B2"><v>1.5</v></c></row></sheetData></worksheet>'
)


def workbook(path: Path) -> Path:
    """Write a workbook with one sheet of two columns and one row."""
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{relation}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": '<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
        f'xmlns:r="{relation}"><sheets><sheet name="a" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{relation}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": SHEET,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def test_excel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("python_calamine")
    file = workbook(tmp_path / "a.xlsx")
    assert read_frame(file).to_dict("list") == {"ort": ["Zürich"], "x": [1.5]}
    assert read_frame(file, header=False)["x0"].tolist() == ["ort", "Zürich"]
    assert read_frame(file, text=[1]).to_dict("list") == {"x": ["1.5"]}
    with pytest.raises(ValueError, match=r"a table as \.xlsx files have it, but reading it failed"):
        read_frame(write(tmp_path, "b.xlsx", "no workbook"))
    monkeypatch.setattr("askew.cli.tables.reading.MOST_TEXT", 10)
    monkeypatch.setattr("askew.cli.tables.reading.MOST_PACKED", 0)
    with pytest.raises(ValueError, match="bytes that unpack to more than"):
        read_frame(file)


def test_excel_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[excel\]"'):
        read_frame(write(tmp_path, "a.xlsx", "x"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"TABLE must be a file that exists\. Got .*none\.csv"):
        read_frame(tmp_path / "none.csv")
    with pytest.raises(FileNotFoundError, match="It is a folder: name a file in it"):
        read_frame(tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_bundled_tables(name: str) -> None:
    table = load_bundled(name)
    assert table["class"].nunique() >= 2
    assert not table.isna().any().any()


def test_damaged_files_are_errors_in_words(tmp_path: Path) -> None:
    """Files with random changes are read, or refused with an error message; nothing else happens."""
    random = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", random.normal(size=(5, 3)))
    np.savez(tmp_path / "a.npz", X=random.normal(size=(5, 3)), y=np.array(list("abcde")))
    write(tmp_path, "a.csv", 'id,age,name\n1,2.5,ann\n2,?,bob\n3,inf,"c,d"\n')
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npy").read_bytes())
    with pytest.raises(ValueError, match="it is no whole archive of arrays"):
        read_frame(tmp_path / "b.npz")
    read = refused = 0
    for name in ("a.npy", "a.npz", "a.csv"):
        content = (tmp_path / name).read_bytes()
        for _ in range(60):
            changed = bytearray(content)
            for place in random.integers(len(changed), size=4):
                changed[place] = random.integers(256)
            file = write(
                tmp_path, f"changed{Path(name).suffix}", bytes(changed[: random.integers(1, len(changed) + 1)])
            )
            try:
                read_frame(file)
            except ValueError as error:
                refused += "TABLE" in str(error)
            else:
                read += 1
    assert read + refused == 180
    assert refused > 50
