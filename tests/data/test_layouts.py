"""Each public layout on a small folder made in exactly that layout."""

import base64
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from omnirl.config.schema import DatasetConfig
from omnirl.data import Dataset
from omnirl.data.layouts import LAYOUTS
from omnirl.errors import ConfigError, DataError, PlaceholderMismatch
from omnirl.types import ImagePart, TextPart, VideoPart, VideoSettings


def png(color="red", size=(8, 6)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "png")
    return buffer.getvalue()


def picture(color="red"):
    return {"bytes": png(color), "path": f"{color}.png"}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "dataset"
    path.mkdir()
    return path


@pytest.fixture
def load(folder, tmp_path):
    def prompts(name, split="train", **options):
        return Dataset(DatasetConfig(name=name, path=str(folder), **options), tmp_path / "cache").prompts(split)

    return prompts


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)


def shape(prompt):
    """Texts and I for pictures, message by message."""
    return [["I" if isinstance(part, ImagePart) else part.text for part in message.parts] for message in prompt.messages]


def pictures(prompt):
    return [part.path for message in prompt.messages for part in message.parts if isinstance(part, ImagePart)]


def colors(prompt):
    return [Image.open(path).getpixel((0, 0)) for path in pictures(prompt)]


# -- tables in omnirl's own columns -----------------------------------------------------------------------------------------


OWN = [
    {
        "id": f"row-{i}",
        "answer": str(i),
        "messages": [{"role": "user", "content": [{"type": "image", "image": picture(), "text": None}, None, part]}],
        "kind": "count",
    }
    for i, part in enumerate([{"type": "text", "text": "How many?", "image": None}] * 3)
]


def test_parquet_rows_keep_bytes_out_of_prompts(load, folder, tmp_path):
    write(folder / "train.parquet", OWN)
    first, *_, last = load("parquet", eval_share=1e-9)
    assert (first.id, last.id, first.answer, first.meta["kind"]) == ("row-0", "row-2", "0", "count")
    assert shape(first) == [["I", "How many?"]]
    assert colors(first) == [(255, 0, 0)]
    assert pictures(first) == pictures(last)
    assert len([f for f in (tmp_path / "cache" / "pictures").rglob("*") if f.is_file()]) == 1


def test_shards_are_read_in_order(load, folder):
    write(folder / "data" / "train-00001-of-00002.parquet", OWN[2:])
    write(folder / "data" / "train-00000-of-00002.parquet", OWN[:2])
    write(folder / "data" / "validation-00000-of-00001.parquet", OWN[:1])
    assert [p.id for p in load("parquet", eval="validation")] == ["row-0", "row-1", "row-2"]
    assert [p.id for p in load("parquet", "eval", eval="validation")] == ["row-0"]


def test_a_share_is_held_out_where_there_is_no_other_split(load, folder):
    write(folder / "train.parquet", [{**OWN[0], "id": f"row-{i}"} for i in range(400)])
    train, held = ([p.id for p in load("parquet", split, eval_share=0.25)] for split in ("train", "eval"))
    assert sorted(train + held) == sorted(f"row-{i}" for i in range(400))
    assert 60 < len(held) < 140


@pytest.mark.parametrize("nested", [True, False])
def test_hugging_face_folders(load, folder, nested):
    import datasets

    features = datasets.Features(
        {
            "problem": datasets.Value("string"),
            "solution": datasets.Value("int64"),
            "image": datasets.Image(),
            "more": datasets.List(datasets.Image()),
        }
    )
    rows = [{"problem": "What is it?", "solution": 3, "image": picture(), "more": [picture("blue"), picture("lime")]}]
    table = datasets.Dataset.from_list(rows * 40, features=features)
    (datasets.DatasetDict({"train": table}) if nested else table).save_to_disk(str(folder))
    before = sorted(folder.rglob("*"))
    names = {"question": "problem", "answer": "solution", "images": "more"}
    prompts = load("hf", columns=names)
    assert (prompts[0].id, prompts[0].answer, shape(prompts[0])) == ("train-0", "3", [["I", "I", "What is it?"]])
    assert colors(prompts[0]) == [(0, 0, 255), (0, 255, 0)]
    assert colors(load("hf", columns={**names, "images": "image"})[0]) == [(255, 0, 0)]
    assert sorted(folder.rglob("*")) == before


def test_audio_columns_are_refused_by_name(load, folder):
    import datasets

    features = datasets.Features({"problem": datasets.Value("string"), "sound": datasets.Audio()})
    table = datasets.Dataset.from_list([{"problem": "x", "sound": None}], features=features)
    table.save_to_disk(str(folder))
    with pytest.raises(DataError, match="column 'sound' holds audio"):
        load("hf", columns={"question": "problem"})


@pytest.mark.parametrize("name", ["hf", "parquet"])
def test_class_labels_are_their_names(load, folder, name):
    import datasets

    features = datasets.Features({"q": datasets.Value("string"), "a": datasets.ClassLabel(names=["cat", "dog"])})
    table = datasets.Dataset.from_list([{"q": "Which?", "a": a} for a in (1, 0)], features=features)
    table.save_to_disk(str(folder)) if name == "hf" else table.to_parquet(str(folder / "train.parquet"))
    assert [p.answer for p in load(name, columns={"question": "q", "answer": "a"}, eval="x")] == ["dog", "cat"]


def test_a_column_that_is_no_longer_there_has_no_labels(load, folder):
    features = {"a": {"_type": "ClassLabel", "names": ["cat"]}, "gone": {"_type": "ClassLabel", "names": ["x"]}}
    table = pa.Table.from_pylist([{"q": "Which?", "a": "dog"}] * 2)
    described = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(described, folder / "train.parquet")
    assert load("parquet", columns={"question": "q", "answer": "a"}, eval="x")[0].answer == "dog"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "row 0: no column `messages`; there are: answer, image, question. .*dataset.columns"),
        ({"question": "question", "images": "img"}, "row 0: column `img` is missing; there are: answer, image, question"),
        ({"question": "question"}, "`image` is not read, and the messages hold no picture.*dataset.columns={images: image}"),
    ],
)
def test_pictures_of_a_table_are_not_lost(load, folder, columns, message):
    write(folder / "train.parquet", [{"question": "How many?", "answer": "3", "image": picture()}] * 2)
    with pytest.raises(DataError, match=message):
        load("parquet", columns=columns, eval="x")


@pytest.mark.parametrize("value", [picture(), [picture(), picture("blue")]])
def test_a_picture_column_of_any_name_is_not_lost(load, folder, value):
    write(folder / "train.parquet", [{"question": "How many?", "answer": "3", "img": value}] * 2)
    with pytest.raises(DataError, match=r"row 0 .*`img` is not read.*dataset.columns={images: img}"):
        load("parquet", columns={"question": "question"}, eval="x")
    assert len(load("parquet", columns={"question": "question", "images": "img"}, eval="x")) == 2


# -- public datasets --------------------------------------------------------------------------------------------------------


def test_clevr_cogent(load, folder):
    rows = [{"image": picture(), "problem": "How many?", "solution": f"<answer> {i} </answer>"} for i in range(3)]
    write(folder / "data" / "train-00000-of-00001.parquet", rows)
    write(folder / "data" / "valA-00000-of-00001.parquet", rows[:1])
    prompts = load("clevr_cogent", eval="valA")
    assert [(p.id, p.answer, p.target) for p in prompts][1] == ("train-1", "1", "<answer>1</answer>")
    assert shape(prompts[0]) == [["I", "How many?"]]
    assert [p.id for p in load("clevr_cogent", "eval", eval="valA")] == ["valA-0"]


def test_geometry3k(load, folder):
    rows = [
        {"images": [picture()], "problem": "<image>Find x.", "answer": "4.5"},
        {"images": [picture("blue")], "problem": "Find <image> y.", "answer": "\\sqrt{2}"},
        {"images": [picture()], "problem": "Find z.", "answer": "1"},
    ]
    write(folder / "data" / "train-00000-of-00001.parquet", rows)
    prompts = load("geometry3k")
    assert [shape(p)[0] for p in prompts] == [["I", "Find x."], ["Find ", "I", " y."], ["I", "Find z."]]
    assert prompts[1].answer == "\\sqrt{2}"


def test_geometry3k_with_a_marker_too_many(load, folder):
    write(folder / "train.parquet", [{"images": [picture()], "problem": "<image><image> x", "answer": "4"}])
    with pytest.raises(PlaceholderMismatch, match=r"train.parquet, row 0 \(id 'train-0'\).*more <image> markers"):
        load("geometry3k")


def mmpr(folder, question, count, answer="B"):
    for i in range(count):
        file = folder / "images" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(png())
    row = {
        "data_source": "mmpr",
        "images": [{"path": f"MMPR-Tiny/images/{i}.png"} for i in range(count)],
        "extra_info": {"question": question},
        "reward_model": {"ground_truth": answer, "style": "rule"},
    }
    write(folder / "mmpr_tiny.parquet", [row])


@pytest.mark.parametrize(
    ("question", "count", "expected"),
    [
        ("What?", 1, ["0", "What?"]),
        ("<image>\nWhat?", 1, ["0", "\nWhat?"]),
        ("A <image> B <image> C", 2, ["A ", "0", " B ", "1", " C"]),
        ("<image_2> or <image_1>?", 2, ["1", " or ", "0", "?"]),
        ("<image_1><image>", 2, ["0", "1"]),
        ("Both?", 2, ["0", "1", "Both?"]),
    ],
)
def test_mmpr_tiny_keeps_several_pictures(load, folder, question, count, expected):
    mmpr(folder, question, count)
    (prompt,) = load("mmpr_tiny", eval_share=1e-9)
    parts = [part.text if isinstance(part, TextPart) else part.path[7:8] for part in prompt.messages[0].parts]
    assert (parts, prompt.answer) == (expected, "B")


@pytest.mark.parametrize(
    ("question", "count", "message"),
    [
        ("<image_3>", 2, "<image_3> stands for picture 3, but the row has 2"),
        ("<image> only", 2, "uses 1 of its 2 pictures"),
    ],
)
def test_mmpr_tiny_with_the_wrong_number_of_pictures(load, folder, question, count, message):
    mmpr(folder, question, count)
    with pytest.raises(DataError, match=f"mmpr_tiny.parquet, row 0: .*{message}"):
        load("mmpr_tiny", eval_share=1e-9)


def test_refcoco_rescales_boxes(load, folder):
    (folder / "train2014").mkdir()
    (folder / "train2014" / "1.jpg").write_bytes(png(size=(200, 100)))
    row = {
        "captions": ["dog", "the brown dog", "left dog"],
        "bbox": [20.0, 10.0, 100.0, 100.0],
        "image_path": "coco/train2014/1.jpg",
        "raw_image_info": json.dumps({"width": 200, "height": 100}),
    }
    write(folder / "train.parquet", [row, {**row, "raw_image_info": None}])
    write(folder / "validation.parquet", [row])
    first, second = load("refcoco")
    assert first.answer == second.answer == "[100, 100, 500, 1000]"
    assert first.target == "<answer>[100, 100, 500, 1000]</answer>"
    assert pictures(first) == ["train2014/1.jpg"]
    assert load("refcoco")[0].messages == first.messages
    (held,) = load("refcoco", "eval", box_space=100)
    assert held.answer == "[10, 10, 50, 100]"
    assert "the brown dog" in shape(held)[0][1]
    assert "from 0 to 100" in shape(held)[0][1]


@pytest.mark.parametrize(
    ("bbox", "info", "message"),
    [
        ([20.0, 10.0, 15.0, 30.0], None, r"`bbox` must be x1 < x2 ≤ 200, y1 < y2 ≤ 100 as \[x1, y1, x2, y2\], found \[20"),
        ([150.0, 10.0, 220.0, 30.0], None, "`bbox` must be x1 < x2 ≤ 200"),
        ([1.0, 2.0, 3.0], None, "`bbox` must be"),
        ([float("nan"), 1.0, 2.0, 3.0], None, "`bbox` must be"),
        ([1.0, 1.0, 2.0, 2.0], '{"width": 0, "height": 100}', "`raw_image_info` says that .* has 0x100 pixels"),
        ([1.0, 1.0, 2.0, 2.0], '{"width": 200}', "`raw_image_info`: the size of .* cannot be found"),
    ],
)
def test_boxes_that_are_none_name_row_and_column(load, folder, bbox, info, message):
    (folder / "train2014").mkdir()
    (folder / "train2014" / "1.jpg").write_bytes(png(size=(200, 100)))
    row = {"captions": ["dog"], "bbox": bbox, "image_path": "train2014/1.jpg", "raw_image_info": info}
    write(folder / "train.parquet", [row])
    with pytest.raises(DataError, match=f"train.parquet, row 0: .*{message}"):
        load("refcoco")


# -- NeMo-Gym ---------------------------------------------------------------------------------------------------------------


def gym_row(content, **fields):
    return {"responses_create_params": {"input": [{"role": "user", "content": content}]}, "expected_answer": "3", **fields}


def jsonl(folder, *rows):
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_nemo_gym_rows(load, folder):
    url = f"data:image/png;base64,{base64.b64encode(png('blue')).decode()}"
    parts = [
        {"type": "input_text", "text": "How many <image>?"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        None,
    ]
    both = gym_row(parts, id=7, agent_ref={"name": "a"})
    both["responses_create_params"]["input"].insert(0, {"role": "developer", "content": "Be brief."})
    jsonl(folder, both, {"responses_create_params": {"input": "Count."}, "ground_truth": 4})
    first, second = load("nemo_gym", eval_share=1e-9)
    assert [m.role for m in first.messages] == ["system", "user"]
    assert (first.id, first.answer, shape(first)) == ("7", "3", [["Be brief."], ["How many <image>?", "I"]])
    assert colors(first) == [(0, 0, 255)]
    assert first.meta["agent_ref"] == {"name": "a"}
    assert (second.id, second.answer, shape(second)) == ("train-1", "4", [["Count."]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "input_audio"}], "is of type 'input_audio': .*no sound"),
        ([{"type": "input_image", "image_url": None}], r"\[0\].image_url` must be the path .*, found None"),
        ([{"type": "input_image", "image_url": "data:image/png;base64,@@"}], "image_url`: the data URL is not base64"),
        ([{"type": "input_image", "image_url": "data:image/png"}], "not a data URL: it has no comma"),
        ([{"type": "audio_url", "audio_url": "a.wav"}], "is of type 'audio_url': .*no sound"),
        ([{"type": "audio", "audio": "a.wav"}], "is of type 'audio': .*no sound"),
        ([{"type": "input_file", "file_url": "a"}], "is of type 'input_file': choose one of text"),
        ([{"type": "input_image", "image_url": "a.png", "max_pixels": 9}], "has max_pixels; a picture takes image, image_url"),
        ([{"type": "input_image", "image_url": "data:image/png;base64,"}], r"the picture is empty \(0 bytes\)"),
        (3, "must be text or a list of parts, found int"),
    ],
)
def test_nemo_gym_rows_that_cannot_be_used(load, folder, content, message):
    jsonl(folder, gym_row(content))
    with pytest.raises(DataError, match=rf"train.jsonl, line 1: `responses_create_params.input\[0\].content.*{message}"):
        load("nemo_gym")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({"metadata": {"chat_template_kwargs": {"enable_thinking": True}}}, {"enable_thinking": True}),
        ({"metadata": {"extra_body": '{"chat_template_kwargs": {"enable_thinking": false}}'}}, {"enable_thinking": False}),
        ({"metadata": {"extra_body": {"stop": ["x"]}}}, None),
    ],
)
def test_what_a_gym_row_asks_of_the_template_is_kept(load, folder, more, expected):
    row = gym_row("Count.")
    row["responses_create_params"] |= {"instructions": "Be brief."} | more
    jsonl(folder, row)
    (prompt,) = load("nemo_gym", eval_share=1e-9)
    assert prompt.meta.get("template_kwargs") == expected
    assert (prompt.messages[0].role, prompt.messages[0].parts) == ("system", (TextPart("Be brief."),))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": [{"type": "function", "name": "click"}]}, "`responses_create_params.tools` are not supported"),
        ({"metadata": {"extra_body": "{"}}, "`responses_create_params.metadata.extra_body` is not JSON"),
        ({"metadata": {"chat_template_kwargs": "[1]"}}, "metadata.chat_template_kwargs` must be an object, found list"),
        ({"instructions": 3}, "`responses_create_params.instructions` must be text"),
    ],
)
def test_requests_of_gym_rows_that_cannot_be_met(load, folder, more, message):
    row = gym_row("Count.")
    row["responses_create_params"] |= more
    jsonl(folder, row)
    with pytest.raises(DataError, match=rf"train.jsonl, line 1: .*{message}"):
        load("nemo_gym")


def test_nemo_gym_clips_keep_their_sampling(load, folder):
    clip = {"type": "input_video", "video_url": "file:///a.mp4", "fps": 2, "max_frames": 8}
    jsonl(folder, gym_row([clip, {"type": "input_text", "text": "What?"}]))
    (prompt,) = load("nemo_gym", eval_share=1e-9)
    assert prompt.messages[0].parts[0] == VideoPart("file:///a.mp4", VideoSettings(fps=2, max_frames=8))
    jsonl(folder, gym_row([{**clip, "nframes": 8}]))
    with pytest.raises(DataError, match=r"train.jsonl, line 1: .*content\[0\]` has nframes; a clip takes"):
        load("nemo_gym")


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"jsonl", "nemo_gym", "vstat", "hf"}))
def test_parquet_columns_of_audio_are_refused_by_name(load, folder, name):
    import datasets

    features = datasets.Features({"problem": datasets.Value("string"), "sounds": datasets.List(datasets.Audio())})
    table = datasets.Dataset.from_list([{"problem": "x", "sounds": []}], features=features)
    table.to_parquet(str(folder / f"{LAYOUTS[name].train}.parquet"))
    with pytest.raises(DataError, match=r"parquet: column 'sounds' holds audio"):
        load(name)


def test_nemo_gym_tool_calls_are_refused(load, folder):
    row = gym_row("x")
    row["responses_create_params"]["input"].append({"type": "function_call_output", "output": "42"})
    jsonl(folder, row)
    with pytest.raises(
        DataError, match=r"`responses_create_params.input\[1\]` must be a message, found 'function_call_output'"
    ):
        load("nemo_gym")


# -- what is wrong with a folder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"jsonl", "nemo_gym", "vstat"}))
def test_a_split_that_is_not_there_names_those_that_are(load, folder, name):
    write(folder / "test-0.parquet", OWN)
    with pytest.raises(DataError, match=r"no split .*; there are: test"):
        load(name)


def test_a_damaged_file_is_named(load, folder):
    write(folder / "train.parquet", OWN)
    data = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"train.parquet: cannot be read after row 0"):
        load("parquet")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("clevr_cogent", {"problem": "x"}, "row 0: column `solution` is missing; there are: problem"),
        ("clevr_cogent", {"problem": "x", "solution": "3", "image": picture()}, "column `solution` holds no <answer>"),
        (
            "clevr_cogent",
            {"problem": 3, "solution": "<answer>3</answer>", "image": picture()},
            "`problem` must be str, found int",
        ),
        ("clevr_cogent", {"problem": "x", "solution": "<answer>3</answer>", "image": {"bytes": b"", "path": ""}}, "is empty"),
        ("geometry3k", {"problem": "x", "images": "a.png", "answer": "1"}, "column `images` must be list, found str"),
        ("mmpr_tiny", {"images": [{"path": "a.png"}]}, "no picture .*a.png, nor"),
        ("refcoco", {"captions": [], "bbox": [1.0, 2.0, 3.0, 4.0]}, "column `captions` holds no text"),
        ("refcoco", {"captions": [None, " "], "bbox": [1.0]}, "column `captions` holds no text"),
        ("parquet", {"question": "x"}, "no column `messages`; there are: question"),
    ],
)
def test_bad_rows_name_row_and_column(load, folder, name, row, message):
    write(folder / f"{LAYOUTS[name].train}.parquet", [row])
    with pytest.raises(
        DataError, match=f"{LAYOUTS[name].train}.parquet, row 0.*{message}" if "row 0" not in message else message
    ):
        load(name, eval_share=1e-9)


def test_columns_that_make_no_sense(load, folder):
    write(folder / "train.parquet", OWN)
    with pytest.raises(ConfigError, match="must map some of id, question, answer, images"):
        load("parquet", columns={"questoin": "x"})


def test_layouts_but_jsonl_need_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"dataset.name=refcoco needs its folder: set dataset.path"):
        Dataset(DatasetConfig(name="refcoco"), tmp_path)


def rows_of_its_own(count):
    return [{"id": i, "messages": [{"role": "user", "content": f"Q{i}"}], "answer": str(i)} for i in range(count)]


@pytest.mark.parametrize(("name", "file"), [("jsonl", "mine.jsonl"), ("parquet", "mine.parquet"), ("hf", "mine[1].parquet")])
def test_one_file_is_a_dataset_of_which_a_share_is_held_out(folder, tmp_path, name, file):
    rows = rows_of_its_own(200)
    if name == "jsonl":
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "eval.jsonl").write_text("not its own")
    else:
        write(folder / file, rows)
        write(folder / "mine-2.parquet", rows_of_its_own(300))
    dataset = Dataset(DatasetConfig(name=name, path=str(folder / file)), tmp_path / "cache")
    train, held_out = ([prompt.id for prompt in dataset.prompts(split)] for split in ("train", "eval"))
    assert sorted(train + held_out, key=int) == [str(i) for i in range(200)]
    assert 2 <= len(held_out) <= 25
    other = Dataset(DatasetConfig(name=name, path=str(folder / file), eval=dataset.source("train").name), tmp_path / "cache")
    assert [prompt.id for prompt in other.prompts("eval")] == held_out


@pytest.mark.parametrize(("others", "wanted"), [(("test", "validation"), "validation"), (("test",), "test"), ((), "train")])
def test_tables_hold_out_the_split_that_is_there(folder, tmp_path, others, wanted):
    for split in ("train", *others):
        write(folder / f"{split}-00000-of-00001.parquet", rows_of_its_own(40))
    dataset = Dataset(DatasetConfig(name="parquet", path=str(folder)), tmp_path / "cache")
    assert dataset.source("eval").name == wanted
    assert len(dataset.prompts("train")) == (40 if others else 40 - len(dataset.prompts("eval")))


def test_a_file_that_is_no_dataset(folder, tmp_path):
    file = folder / "mine.parquet"
    write(file, rows_of_its_own(3))
    for options, message in (
        ({}, r"dataset.name=jsonl reads \*.jsonl; dataset.name may be parquet, hf, clevr_cogent"),
        ({"name": "vstat"}, r"dataset.name=vstat reads \*.json; dataset.name may be parquet"),
        ({"name": "parquet", "train": "other"}, "already names the file of training rows; leave one out"),
    ):
        with pytest.raises(DataError, match=message):
            Dataset(DatasetConfig(path=str(file), **options), tmp_path / "cache")
    (folder / "notes.md").write_text("")
    with pytest.raises(DataError, match="give the folder of the dataset"):
        Dataset(DatasetConfig(path=str(folder / "notes.md")), tmp_path / "cache")
