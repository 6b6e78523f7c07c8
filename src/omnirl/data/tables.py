"""Tables (parquet files, Hugging Face dataset folders) → rows. Pictures in them become files, undecoded: there is one decoder.

Example:
    for where, row in read_table(Path("geometry3k"), "train", pictures): row["problem"], row["images"] → ["…/4f0c….png"]
"""

import json
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from omnirl.errors import DataError

from .pictures import PictureFolder
from .rows import Rows

_BATCH = 64


def read_table(folder: Path, split: str, pictures: PictureFolder) -> Rows:
    """`("FILE, row N", row)`, N counted from 0, of a split: parquet files `split*.parquet` in `folder` or its `data` folder, or
    a folder that `datasets` saved. A picture (`{"bytes", "path"}`) is its path, a class label its name.

    Raises `DataError`, naming what is there when the split is not.
    """
    saved = (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file()
    for where, row in _saved(folder, split) if saved else _parquet(parquet_files(folder, split)):
        yield where, {name: _as_files(value, pictures, f"{where}, column {name!r}") for name, value in row.items()}


def _as_files(value: Any, pictures: PictureFolder, where: str) -> Any:
    """`value` with each picture in it replaced by the path of a file."""
    if isinstance(value, list):
        return [_as_files(item, pictures, where) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() <= {"bytes", "path"} and value:
        data = value.get("bytes")
        return value.get("path") if data is None else pictures.keep(data, where)
    return {key: _as_files(item, pictures, where) for key, item in value.items()}


def splits_of(folder: Path) -> list[str]:
    """Names of the splits that `read_table` would find; of a saved table without any, `train`."""
    if (folder / "dataset_info.json").is_file():
        return ["train"]
    if (folder / "dataset_dict.json").is_file():
        return sorted(path.name for path in folder.iterdir() if (path / "dataset_info.json").is_file())
    files = [*folder.glob("*.parquet"), *(folder / "data").glob("*.parquet")]
    return sorted({file.name.removesuffix(".parquet").split("-")[0] for file in files})


def parquet_files(folder: Path, split: str) -> list[Path]:
    """The split's files: `split.parquet`, else `split-00000-of-00002.parquet` …, in `folder` or its `data` folder."""
    for parent in (folder, folder / "data"):
        whole = parent / f"{split}.parquet"
        if found := [whole] if whole.is_file() else sorted(parent.glob(f"{escape(split)}-*.parquet")):
            return found
    raise _missing(folder, split)


def _parquet(files: list[Path]) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        number = 0
        try:
            with pq.ParquetFile(file) as table:
                _refuse_sound(table.schema_arrow, file)
                labels = {name: kind["names"] for name, kind in _kinds(table.schema_arrow).items() if _is_label(kind)}
                for batch in table.iter_batches(batch_size=_BATCH):
                    for row in batch.to_pylist():
                        yield f"{file}, row {number}", _named(row, labels)
                        number += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: cannot be read after row {number} ({error}); is it a whole parquet file?") from error


def _saved(folder: Path, split: str) -> Rows:
    import datasets

    datasets.disable_progress_bars()
    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: not a whole dataset folder ({error}); save it again with `save_to_disk`") from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise _missing(folder, split)
        found = found[split]
    _refuse_audio(found, folder)
    labels = {name: kind.names for name, kind in found.features.items() if isinstance(kind, datasets.ClassLabel)}
    plain = found.with_format("arrow")  # features are not applied, so pictures stay bytes and no cache file is written
    for start in range(0, len(plain), _BATCH):
        for number, row in enumerate(plain[start : start + _BATCH].to_pylist(), start=start):
            yield f"{folder / split}, row {number}", _named(row, labels)


def _named(row: dict[str, Any], labels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """`row` with the names of its class labels, which are stored as numbers; -1 means none."""
    for column, names in labels.items():
        if isinstance(number := row.get(column), int):  # what is written beside a table may be older than it
            row[column] = names[number] if 0 <= number < len(names) else None
    return row


def _is_label(kind: Any) -> bool:
    return isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list)


def _kinds(schema: Any) -> dict[str, Any]:
    """`datasets` writes the kinds of its columns beside a parquet file's schema."""
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, ValueError, TypeError):
        return {}


def _refuse_sound(schema: Any, file: Path) -> None:
    for name, feature in _kinds(schema).items():
        if "Audio" in json.dumps(feature):
            raise DataError(f"{file}: column {name!r} holds audio, which this version does not have; remove the column")


def _refuse_audio(table: Any, folder: Path) -> None:
    import datasets

    for name, feature in table.features.items():
        if isinstance(getattr(feature, "feature", feature), datasets.Audio):
            raise DataError(f"{folder}: column {name!r} holds audio, which this version does not have; remove the column")


def _missing(folder: Path, split: str) -> DataError:
    there = ", ".join(splits_of(folder)) if folder.is_dir() else ""
    return DataError(
        f"{folder}: no split {split!r}; {f'there are: {there}' if there else 'there are no tables'}. "
        "Set dataset.path, dataset.train and dataset.eval"
    )
