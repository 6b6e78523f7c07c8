"""The page about a run: what is read, judged and written. `tests/runtime/test_report_page.py` opens it in a browser."""

import json
import re
from dataclasses import replace

import pytest

from omnirl.errors import ConfigError
from omnirl.track.report import Level, RunStatus, Series, Thumbnail, findings, load_run, render
from omnirl.track.report.charts import SECTIONS, layout
from omnirl.track.report.compare import config_rows, metric_rows
from omnirl.track.report.page import number, seconds, thin
from omnirl.track.report.samples import clip, pack
from tests.track.synthetic_run import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("report") / "run", steps=30, samples_every=10)


@pytest.fixture(scope="module")
def run(folder):
    return load_run(folder)


@pytest.fixture
def copy(folder, tmp_path):
    import shutil

    return shutil.copytree(folder, tmp_path / "copy")


def picture(path):
    return Thumbnail(f"data:image/webp;base64,{path[-7:-4]}")


def film(path, indices):
    return Thumbnail(f"data:image/webp;base64,{path[-7:-4]}{len(indices)}")


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


class TestLoad:
    def test_everything(self, run):
        assert run.policy["rollout/reward_mean"].steps == tuple(range(1, 31))
        assert run.policy["eval/accuracy"].steps == (0, 10, 20, 30)
        assert run.warmup["warmup/loss"].steps[-1] == 30
        assert (run.last_step, run.number("trainer.grad_clip"), run.number("model.family")) == (30, 1.0, None)
        assert [group["step"] for group in run.groups] == [10, 10, 20, 20, 30, 30]
        assert (run.status, run.seconds, run.notes) == (RunStatus.FINISHED, 42 * 60 + 7, ())

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda path: None, "is not a folder; give a folder of `omnirl train`"),
            (lambda path: path.mkdir(), r"is not a run folder \(it has no run\.json\)"),
            (lambda path: path.write_text(""), "is not a folder"),
            (lambda path: (path.mkdir(), (path / "run.json").write_text("{}")), "has no metrics yet"),
            (lambda path: (path.mkdir(), (path / "metrics.jsonl").write_text('{"step": 1, "tra')), "has no metrics yet"),
        ],
    )
    def test_what_is_no_run(self, tmp_path, make, message):
        make(tmp_path / "it")
        with pytest.raises(ConfigError, match=message):
            load_run(tmp_path / "it")

    def test_a_running_run_has_a_torn_last_line(self, copy):
        (copy / "metrics.jsonl").write_bytes((copy / "metrics.jsonl").read_bytes() + b'{"step": 31, "train/lo')
        assert load_run(copy).notes == ()

    def test_damage_is_left_out_and_named(self, copy):
        lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        lines[3], lines[5] = b"\xff\xfe garbage\n", b"[1]\n"
        (copy / "metrics.jsonl").write_bytes(b"".join(lines))
        (copy / "config.yaml").write_text("a: [")
        (copy / "run.json").write_text("{")
        run = load_run(copy)
        assert 3 not in run.policy["train/loss"].steps
        assert run.notes[0] == "metrics.jsonl: 2 damaged lines are left out (line 4, 6)"
        assert [note.split()[0] for note in run.notes[1:]] == ["run.json", "config.yaml"]
        assert render([run], picture, film)

    def test_values(self, copy):
        rows = ['{"step": 1, "a/b": NaN, "a/c": "text", "a/d": 1e999}', '{"step": 2, "a/b": null}', '{"step": 2, "a/b": 3}']
        rows += ['{"step": "x"}', '{"a/b": 5}', '{"step": 3, "a/b": 1' + "0" * 400 + "}"]
        (copy / "metrics.jsonl").write_text("\n".join(rows) + "\n")
        assert load_run(copy).policy == {"a/b": Series((1, 2, 3), (None, 3.0, None)), "a/d": Series((1,), (None,))}

    def test_samples_of_a_life_that_a_resume_cut_off(self, copy):
        (copy / "samples" / "step_000040.jsonl").write_text((copy / "samples" / "step_000030.jsonl").read_text())
        assert max(group["step"] for group in load_run(copy).groups) == 30

    @pytest.mark.parametrize(
        ("record", "status"),
        [
            ({}, RunStatus.RUNNING),
            ({"state": "failed"}, RunStatus.FAILED),
            ({"state": "failed", "resumed": [{"state": "stopped"}]}, RunStatus.STOPPED),
            ({"state": "finished", "resumed": [{}]}, RunStatus.RUNNING),
        ],
    )
    def test_status(self, copy, record, status):
        (copy / "run.json").write_text(json.dumps(record))
        assert load_run(copy).status == status

    def test_a_silent_run_is_lost(self, copy):
        import os

        (copy / "run.json").write_text("{}")
        for name in ("metrics.jsonl", "warmup.jsonl"):
            os.utime(copy / name, (1e9, 1e9))
        assert load_run(copy).status == RunStatus.LOST


def flat(value, count=30):
    return Series(tuple(range(count)), (value,) * count)


CASES = [
    ({"rollout/zero_variance_share": 0.95, "rollout/reward_mean": 0.0}, Level.BAD, "Nothing left to learn from", "All wrong"),
    (
        {"rollout/zero_variance_share": 0.95, "rollout/reward_mean": 0.99},
        Level.INFO,
        "Nothing left to learn from",
        "harder rows",
    ),
    ({"rollout/zero_variance_share": 0.95, "rollout/reward_mean": 0.5}, Level.BAD, "Nothing left to learn from", "temperature"),
    ({"rollout/zero_variance_share": 0.8, "rollout/reward_mean": 0.5}, Level.WARN, "Few groups teach", "group_size"),
    ({"train/token_mult_prob_error": 1.1}, Level.WARN, "Engine and trainer disagree", "omnirl parity"),
    ({"train/token_mult_prob_error": 1.5}, Level.BAD, "Engine and trainer disagree", "omnirl parity"),
    ({"train/gen_kl_error": 0.1}, Level.BAD, "Engine and trainer disagree", "float32"),
    ({"train/token_mult_prob_error_max": 600.0}, Level.WARN, "A few tokens are far off", "truncation"),
    ({"rollout/nonfinite_logprobs": 2.0}, Level.WARN, "Log-probs without a value", "parity"),
    ({"rollout/truncated_share": 0.4}, Level.WARN, "Many completions are cut off", "max_new_tokens"),
    ({"rollout/truncated_share": 0.9}, Level.BAD, "Many completions are cut off", "max_new_tokens"),
    ({"rollout/aborted_share": 0.2}, Level.WARN, "Many completions are aborted", "timeout_s"),
    ({"train/grad_norm": 30.0}, Level.WARN, "The gradient is always clipped", "trainer.lr"),
    ({"train/clip_share": 0.5}, Level.WARN, "Steps are too long", "train_batch_size"),
    ({"perf/tracker_failures": 3.0}, Level.WARN, "A tracker failed", "log"),
    ({"perf/model_share": 0.2}, Level.INFO, "Time goes elsewhere", "chart"),
    ({"train/loss": None}, Level.WARN, "Values that are not finite", "trainer.lr"),
]


class TestFindings:
    @pytest.mark.parametrize(("metrics", "level", "title", "remedy"), CASES)
    def test_rules(self, run, metrics, level, title, remedy):
        quiet = replace(run, policy={name: flat(value) for name, value in metrics.items()}, warmup={})
        (found,) = findings(quiet)
        assert (found.level, found.title) == (level, title)
        assert remedy in found.remedy
        assert found.metric in metrics

    @pytest.mark.parametrize(
        "metrics",
        [
            {"rollout/zero_variance_share": 0.69, "rollout/reward_mean": 0.5, "train/token_mult_prob_error": 1.05},
            {"train/gen_kl_error": 1e-3, "rollout/truncated_share": 0.2, "train/clip_share": 0.3, "train/grad_norm": 10.0},
            {"rollout/aborted_share": 0.05, "rollout/nonfinite_logprobs": 0.0, "train/token_mult_prob_error_max": 10.0},
        ],
    )
    def test_what_is_healthy_is_silent(self, run, metrics):
        assert findings(replace(run, policy={name: flat(value) for name, value in metrics.items()}, warmup={})) == []

    @pytest.mark.parametrize(
        ("values", "title"),
        [
            ((0.4, 0.6), "It learns"),
            ((0.6, 0.4), "Accuracy fell"),
            ((0.4, 0.7, 0.42), "Accuracy passed its best"),
            ((0.4, 0.41), "No clear change in accuracy"),
        ],
    )
    def test_accuracy(self, run, values, title):
        steps = tuple(range(len(values)))
        policy = {"eval/accuracy": Series(steps, values), "eval/accuracy_ci95": Series(steps, (0.05,) * len(values))}
        found = findings(replace(run, policy=policy | {"train/loss": flat(0.1)}, warmup={}))
        assert [finding.title for finding in found] == [title]

    def test_entropy_that_collapses_without_a_reward(self, run):
        policy = {"train/approx_entropy": Series(tuple(range(40)), (1.0,) * 20 + (0.01,) * 20)}
        assert [f.title for f in findings(replace(run, policy=policy, warmup={}))] == ["Entropy collapsed"]
        policy["rollout/reward_mean"] = flat(0.95, 40)
        assert findings(replace(run, policy=policy, warmup={})) == []

    def test_one_bad_step_is_a_note(self, run):
        policy = {"train/token_mult_prob_error": Series(tuple(range(60)), (9.0,) + (1.0,) * 59)}
        (found,) = findings(replace(run, policy=policy, warmup={}))
        assert (found.level, found.title) == (Level.INFO, "Engine and trainer disagreed at times")
        assert "1 of 60 steps are over 1.05" in found.text

    def test_ends(self, run):
        failed = replace(run, status=RunStatus.FAILED, record={"error": "the disk is full"}, policy={}, warmup={})
        assert findings(failed)[0].text == "the disk is full"
        assert findings(replace(failed, status=RunStatus.LOST))[0].title == "The run ended without a word"
        assert findings(replace(failed, status=RunStatus.RUNNING, notes=("x is damaged",)))[0].text == "x is damaged."

    def test_a_warm_up_that_missed_its_target(self, run):
        config = {"trainer.warmup.max_steps": 30, "trainer.warmup.stop_accuracy": 0.5}
        warmup = {"warmup/loss": Series((1, 30), (2.0, 1.0)), "eval/accuracy": Series((30,), (0.2,))}
        (found,) = findings(replace(run, policy={}, warmup=warmup, config=config))
        assert found.title == "The warm-up did not reach its target"

    def test_the_worst_comes_first(self, run):
        policy = {"perf/model_share": flat(0.1), "rollout/truncated_share": flat(0.9), "train/clip_share": flat(0.9)}
        found = findings(replace(run, policy=policy, warmup={}))
        assert [finding.level for finding in found] == [Level.BAD, Level.WARN, Level.INFO]


class TestCharts:
    def test_every_metric_is_drawn(self, run):
        sections = layout(run.policy, run.warmup, run.number)
        drawn = {name for s in sections if s.phase == "policy" for chart in s.charts for name in chart.metrics(run.policy)}
        bands = {name for section in SECTIONS for chart in section.charts for name in chart.band.values()}
        assert set(run.policy) - drawn - bands == set()
        assert [section.title for section in sections][-2:] == ["Supervised warm-up", "More metrics"]

    def test_limits_come_from_the_configuration(self):
        (section,) = layout(["train/grad_norm"], [], {"trainer.grad_clip": 2.0}.get)
        assert section.charts[0].limits[0].value == 2.0
        (section,) = layout(["train/grad_norm"], [], {}.get)
        assert section.charts[0].limits == ()

    def test_a_name_that_nobody_knows(self):
        (section,) = layout(["a/b"], [], {}.get)
        assert (section.title, section.charts[0].series) == ("More metrics", ("a/b",))

    def test_thinning_keeps_extremes_ends_and_holes(self):
        values = [float(i % 7) for i in range(10_000)]
        values[1234], values[5000] = 1e6, None
        steps, kept = thin(Series(tuple(range(10_000)), tuple(values)), 1000)
        assert len(steps) <= 1003
        assert {0, 1234, 5000, 9999} <= set(steps)
        assert kept[steps.index(1234)] == 1e6
        assert thin(Series((1, 2), (0.5, None)), 2) == ([1, 2], [0.5, None])


class TestComparison:
    def test_rows(self, run):
        other = replace(
            run, policy={"eval/accuracy": Series((0, 5), (0.1, 1.0)), "new/one": flat(2.0)}, config={"seed": 0, "x": 1}
        )
        found = {row.name: row for row in metric_rows(run, other)}
        assert found["eval/accuracy"].change == pytest.approx(1.0 - run.policy["eval/accuracy"].values[-1])
        assert (found["new/one"].first, found["new/one"].second, found["new/one"].change) == (None, 2.0, None)
        assert config_rows(run, replace(run, config={**run.config, "seed": 5})) == [("seed", 0, 5)]
        assert ("x", None, 1) in config_rows(run, other)


class TestPage:
    def test_what_a_model_wrote_stays_text(self, run):
        evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\ud800"
        group = {**run.groups[0], "prompt_id": evil, "answer": evil, "rendered": evil}
        group["messages"] = [{"role": evil, "parts": [0, evil]}]
        group["completions"] = [{"text": evil, "reward": float("nan"), "stop_reason": evil, "parts": {evil: 1e400}}]
        bad = replace(run, groups=(group,), config={evil: evil, "recipe_name": evil}, record={"command": [evil]}, notes=(evil,))
        html = render([bad], lambda path: Thumbnail("", evil), film)
        assert html.count("<script") == html.count("</script>") == 2
        assert "<img" not in html.partition('<script type="application/json"')[0]
        assert embedded(html)["samples"]["groups"][0]["c"][0][0] == evil
        html.encode()

    def test_nothing_is_fetched(self, run):
        html = render([run, run], picture, film)
        assert re.findall(r"""(?:src|href)=["']?(?!#|\{|")[^"'\s>]*""", html.partition("<script type")[0]) == []
        assert "default-src 'none'" in html
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", html) == []

    def test_pictures_and_prompts_are_kept_once(self, run):
        calls = []
        packed = pack([run, run], lambda path: (calls.append(path), picture(path))[1], film)
        assert len(calls) == len(set(calls)) == len(packed["pictures"])
        assert len(packed["prompts"]) == len({group["prompt_id"] for group in run.groups})
        assert {group["r"] for group in packed["groups"]} == {0, 1}

    @pytest.mark.parametrize(
        ("frames", "times", "shown"),
        [
            ([0, 6, 12], [0, 500, 1000], {"f": [0, 6, 12], "ms": [0, 500, 1000], "c": 3}),
            (
                list(range(15)),
                list(range(0, 1500, 100)),
                {"f": [0, 2, 4, 6, 8, 10, 12, 14], "ms": [0, 200, 400, 600, 800, 1000, 1200, 1400], "c": 15},
            ),
            ([0], [0], {"f": [0], "ms": [0], "c": 1}),
        ],
    )
    def test_a_clip_is_a_film_strip(self, run, frames, times, shown):
        clip = {"path": "clips/abc.mp4", "kind": "video", "height": 64, "width": 64, "frames": frames, "times_ms": times}
        packed = pack([replace(run, groups=({**run.groups[0], "media": [clip]},))], picture, film)
        (found,) = packed["prompts"][0]["i"]
        assert shown.items() <= found.items()
        assert packed["pictures"][found["u"]].endswith(f"abc{len(shown['f'])}")

    @pytest.mark.parametrize(("frames", "times"), [([0, 1], [0]), ([], []), ("01", [0, 1]), ([0, -1], [0, 1]), ([0.5], [0])])
    def test_a_clip_without_usable_frames_is_read_like_a_picture(self, run, frames, times):
        clip = {"path": "clips/abc.mp4", "frames": frames, "times_ms": times}
        packed = pack(
            [replace(run, groups=({**run.groups[0], "media": [clip]},))], lambda path: Thumbnail("", "no picture"), film
        )
        assert packed["prompts"][0]["i"][0]["e"] == "no picture"

    def test_a_missing_picture_says_why(self, run):
        packed = pack([run], lambda path: Thumbnail("", "no such file"), film)
        assert packed["missing"] == len({p["i"][0]["n"] for p in packed["prompts"]})
        assert packed["prompts"][0]["i"][0]["e"] == "no such file"

    def test_budgets(self, run, monkeypatch):
        monkeypatch.setattr("omnirl.track.report.samples.TEXT_BYTES", 5000)
        monkeypatch.setattr("omnirl.track.report.samples.PICTURE_BYTES", 40)
        packed = pack([run], picture, film)
        assert {group["s"] for group in packed["groups"]} == {10, 30}
        assert packed["left_out"] == 2
        assert "room for pictures is used up" in packed["prompts"][-1]["i"][0]["e"]

    def test_long_texts_are_cut_in_the_middle(self):
        assert clip("a" * 6000) == "a" * 6000
        assert re.fullmatch(r"a{3000}\n… 4,000 characters left out …\nb{3000}", clip("a" * 5000 + "b" * 5000))

    @pytest.mark.parametrize(
        "row",
        [
            {},
            {"prompt_id": 1},
            {"messages": "x", "completions": []},
            {"messages": [], "completions": [None]},
            {"messages": [{}]},
        ],
    )
    def test_rows_of_other_programs(self, run, row):
        assert render([replace(run, groups=({**row, "step": 1},))], picture, film)

    def test_numbers(self):
        cases = [
            (None, "–"),
            (1.0000002, "1.0000002"),
            (1, "1"),
            (0.123456, "0.1235"),
            (4194304.0, "4,194,304"),
            (1e12, "1e+12"),
        ]
        assert [number(value) for value, _ in cases] == [text for _, text in cases]
        assert [seconds(s) for s in (None, 5, 65, 7505)] == ["unknown", "5 s", "1 min 05 s", "2 h 05 min"]
