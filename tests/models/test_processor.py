"""Processor files of checkpoints: what is read, what is refused, and that transformers' own files are understood."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnirl.errors import ModelError
from omnirl.models import read_spec
from omnirl.models.processor import FIXED, NESTED, SILENT

#: family → file and section of its image settings
IMAGES = {"*-*-": (NESTED, "image_processor"), "qwen_vl": ("preprocessor_config.json", None)}
FAMILIES = sorted(IMAGES)
#: an argument's value → one that gives other pixels
OTHER = {True: False, False: True, 3: 2, 1 / 255: 1.0}


@pytest.fixture(params=FAMILIES)
def images(request, omnis, tmp_path):
    """(a copy of a checkpoint, file and section of its image settings), a family."""
    return shutil.copytree(omnis[request.param].path, tmp_path / "copy"), *IMAGES[request.param]


@pytest.fixture
def omni_copy(omni, tmp_path):
    return shutil.copytree(omni.path, tmp_path / "copy")


def edit(folder, file, section=None, **changes):
    """Set arguments of a section (None: of the whole file); `"gone"` removes one."""
    data = json.loads((folder / file).read_text())
    part = data if section is None else data[section]
    part |= changes
    for key in [key for key, value in part.items() if value == "gone"]:
        del part[key]
    (folder / file).write_text(json.dumps(data))


def refused(folder, file, message):
    with pytest.raises(ModelError, match=f"{file}: {message}") as caught:
        read_spec(folder)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("key", FIXED)
def test_an_argument_that_gives_other_pixels_is_refused(images, key):
    folder, file, section = images
    edit(folder, file, section, **{key: OTHER[FIXED[key]]})
    refused(folder, file, rf"{key}={OTHER[FIXED[key]]!r} is not supported; omnirl follows {key}=")


@pytest.mark.parametrize("key", FIXED)
@pytest.mark.parametrize("section", ["video_processor", None])
def test_so_it_is_of_clips(omni_copy, key, section):
    """Inside processor_config.json, and in a file of its own."""
    file = NESTED if section else "video_preprocessor_config.json"
    if section is None:
        settings = json.loads((omni_copy / NESTED).read_text())["video_processor"]
        edit(omni_copy, NESTED, None, video_processor="gone")
        (omni_copy / file).write_text(json.dumps(settings))
    assert read_spec(omni_copy).video is not None
    edit(omni_copy, file, section, **{key: OTHER[FIXED[key]]})
    refused(omni_copy, file, rf"{key}={OTHER[FIXED[key]]!r} is not supported")


@pytest.mark.parametrize("key", [*FIXED, "crop_to_patches", "max_num_tiles"])
def test_null_is_the_processor_s_default(images, key):
    folder, file, section = images
    before = read_spec(folder)
    edit(folder, file, section, **{key: None})
    assert read_spec(folder) == before


@pytest.mark.parametrize("key", ["crop_to_patches", "max_num_tiles", "use_thumbnail", "do_flip_channel_order"])
def test_an_argument_that_nobody_knows_is_refused(images, key):
    folder, file, section = images
    edit(folder, file, section, **{key: True})
    refused(folder, file, f"'{key}' is not an argument of .*ImageProcessor.* that omnirl knows; remove it")


def test_an_argument_of_clips_that_nobody_knows_is_refused(omni_copy):
    edit(omni_copy, NESTED, "video_processor", min_frame=4)
    refused(omni_copy, NESTED, "'min_frame' is not an argument of NemotronH_Omni_Reasoning_V3VideoProcessor that omnirl knows")


def test_arguments_that_change_no_pixel_are_taken(images):
    """`use_fast` among them: neither the fast nor the slow processor runs."""
    folder, file, section = images
    before = read_spec(folder)
    edit(folder, file, section, **dict.fromkeys(SILENT - {"image_processor_type"}, True))
    assert read_spec(folder) == before


@pytest.mark.parametrize("kind", ["CLIPImageProcessor", "NemotronNanoVLV2ImageProcessor", None, 3, ["a"]])
def test_another_processor(images, kind):
    """The second one cuts pictures into tiles of one size."""
    folder, file, section = images
    edit(folder, file, section, image_processor_type=kind)
    name = str(kind).replace("[", r"\[").replace("]", r"\]")
    refused(folder, file, f"image processor '{name}' is not supported; supported: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": "16"}, "patch_size='16' must be a whole number of at least 1"),
        ({"patch_size": True}, "patch_size=True must be a whole number"),
        ({"patch_size": 14}, "says patch_size=14, but .*config.json says patch_size=16"),
        ({"patch_size": None}, "no value for 'patch_size'"),
        ({"image_mean": [0.5, 0.5]}, "image_mean=.* must be three finite numbers"),
        ({"image_mean": 0.5}, "image_mean=0.5 must be three finite numbers"),
        ({"image_mean": [0.5, float("nan"), 0.5]}, "image_mean=.* must be three finite numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std=.* must be three finite numbers above 0"),
        ({"rescale_factor": "1/255"}, "rescale_factor='1/255' is not supported; omnirl follows rescale_factor=1/255"),
        ({"resample": True}, "resample=True is not supported"),
    ],
)
def test_values_that_are_none(images, changes, message):
    folder, file, section = images
    edit(folder, file, section, **changes)
    with pytest.raises(ModelError, match=message):
        read_spec(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"downsample_ratio": 0.4}, "downsample_ratio=0.4 must be 1, 1/2, 1/3, "),
        ({"downsample_ratio": 0.25}, "says downsample_ratio=0.25, but .*config.json says downsample_ratio=0.5"),
        ({"max_num_patches": 0}, "max_num_patches=0 must be a whole number of at least 1"),
        ({"max_num_patches": 4}, "min_num_patches and max_num_patches leave no picture"),
        ({"image_mean": [0.5, 0.5, 0.5]}, "says image_mean=.*config.json says norm_mean="),
        ({"image_std": "gone", "norm_std": [1.0, 1.0, 1.0]}, "says norm_std=.*config.json says norm_std="),
    ],
)
def test_values_of_nemotron_omni(omni_copy, changes, message):
    edit(omni_copy, NESTED, "image_processor", **changes)
    with pytest.raises(ModelError, match=rf"{NESTED}.*{message}"):
        read_spec(omni_copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_frames": 0}, "num_frames=0 must be a whole number"),
        ({"fps": "2"}, "fps='2' must be a number"),
        ({"fps": 2, "num_frames": 8}, "num_frames and fps exclude each other"),
        ({"min_frames": 2.5}, "min_frames=2.5 must be a whole number"),
        ({"video_target_num_patches": 1}, "video_target_num_patches leaves no frame"),
        ({"patch_size": 14}, "says patch_size=14, but .*processor_config.json says patch_size=16"),
        ({"norm_mean": [0.5, 0.5, 0.5]}, "says norm_mean=.* says image_mean="),
        ({"video_temporal_patch_size": 4}, "says video_temporal_patch_size=4, but .*config.json says .*=2"),
    ],
)
def test_values_of_clips(omni_copy, changes, message):
    edit(omni_copy, NESTED, "video_processor", **changes)
    with pytest.raises(ModelError, match=rf"{NESTED}.*{message}"):
        read_spec(omni_copy)


def test_another_tubelet_beside_the_sections(omni_copy):
    edit(omni_copy, NESTED, video_temporal_patch_dim=3)
    with pytest.raises(ModelError, match=r"video_temporal_patch_dim=3, but .*config.json says video_temporal_patch_size=2"):
        read_spec(omni_copy)


def test_the_checkpoint_s_sampling_of_clips_is_read(omni_copy):
    edit(omni_copy, NESTED, "video_processor", fps=1.5, min_frames=2, max_frames=9)
    sampling = read_spec(omni_copy).video.sampling
    assert (sampling.num_frames, sampling.fps, sampling.min_frames, sampling.max_frames) == (None, 1.5, 2, 9)


def test_a_processor_config_without_sections_is_passed_over(omni_copy):
    """As older checkpoints have it, with the settings in files of their own."""
    before = read_spec(omni_copy)
    data = json.loads((omni_copy / NESTED).read_text())
    (omni_copy / "preprocessor_config.json").write_text(json.dumps(data.pop("image_processor")))
    (omni_copy / "video_preprocessor_config.json").write_text(json.dumps(data.pop("video_processor")))
    (omni_copy / NESTED).write_text(json.dumps({"processor_class": data["processor_class"]}))
    after = read_spec(omni_copy)
    assert (after.rule, after.video, after.mean) == (before.rule, before.video, before.mean)
    assert after.processor == "NemotronH_Omni_Reasoning_V3ImageProcessor (preprocessor_config.json)"


def test_the_section_wins_over_the_file(omni_copy):
    (omni_copy / "preprocessor_config.json").write_text("{}")
    assert read_spec(omni_copy).processor == "NemotronH_Omni_Reasoning_V3ImageProcessor (processor_config.json)"
    edit(omni_copy, NESTED, image_processor=[])
    refused(omni_copy, NESTED, "`image_processor` must be an object, found list")


def test_as_the_published_checkpoint_has_it(omni_copy):
    """With the names of its own code, which says Nano, and without a video section."""
    mean, std = read_spec(omni_copy).mean, read_spec(omni_copy).std
    published = {
        "image_processor_type": "NemotronH_Nano_Omni_Reasoning_V3ImageProcessor",
        "auto_map": {"AutoImageProcessor": "image_processing.NemotronH_Nano_Omni_Reasoning_V3ImageProcessor"},
        "patch_size": 16,
        "downsample_ratio": 0.5,
        "norm_mean": mean,
        "norm_std": std,
        "min_num_patches": 1024,
        "max_num_patches": 13312,
        "max_model_len": 16384,
    }
    (omni_copy / NESTED).unlink()
    (omni_copy / "preprocessor_config.json").write_text(json.dumps(published))
    spec = read_spec(omni_copy)
    assert (spec.rule.min_patches, spec.rule.max_patches, spec.mean, spec.video.rule.target_patches) == (1024, 13312, mean, 16)


def test_files_as_transformers_writes_them(omnis, tmp_path):
    """Its fast and slow classes, saved and read back, leave the spec as it is."""
    from transformers.models.nemotron_h_omni import image_processing_nemotron_h_omni as nemotron
    from transformers.models.nemotron_h_omni import video_processing_nemotron_h_omni as clips
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as slow
    from transformers.models.qwen2_vl import image_processing_qwen2_vl as fast

    omni = shutil.copytree(omnis["*-*-"].path, tmp_path / "omni")
    data = json.loads((omni / NESTED).read_text())
    image = nemotron.NemotronH_Omni_Reasoning_V3ImageProcessor(**data["image_processor"])
    video = clips.NemotronH_Omni_Reasoning_V3VideoProcessor(**data["video_processor"])
    sections = {"image_processor": json.loads(image.to_json_string()), "video_processor": json.loads(video.to_json_string())}
    (omni / NESTED).write_text(json.dumps(sections))
    assert same_pixels(read_spec(omni), omnis["*-*-"].spec)

    for module, name in ((fast, "Qwen2VLImageProcessor"), (slow, "Qwen2VLImageProcessorPil")):
        qwen = shutil.copytree(omnis["qwen_vl"].path, tmp_path / name)
        getattr(module, name).from_pretrained(qwen).save_pretrained(qwen)
        assert same_pixels(read_spec(qwen), omnis["qwen_vl"].spec)
        assert read_spec(qwen).processor == "Qwen2VLImageProcessor (preprocessor_config.json)"


def same_pixels(a, b):
    return (a.rule, a.mean, a.std, a.video) == (b.rule, b.mean, b.std, b.video)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.floats(), st.integers(-1, 3), st.none()), max_size=4),
    st.dictionaries(st.sampled_from(["shortest_edge", "longest_edge", "x"]), st.integers(-1, 10**5), max_size=2),
)
READ = ("patch_size", "merge_size", "size", "downsample_ratio", "min_num_patches", "max_num_patches", "image_mean", "norm_std")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*READ, *FIXED]), VALUES, max_size=4))
def test_any_value_is_read_or_refused(images, changes):
    folder, file, section = images
    kept = (folder / file).read_text()
    edit(folder, file, section, **changes)
    said = ""
    try:
        read_spec(folder)
    except ModelError as error:
        said = str(error)
    finally:
        (folder / file).write_text(kept)
    assert not said or str(folder) in said
