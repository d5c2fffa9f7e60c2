"""The query language of answers, against the same conditions on plain rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from greenward.common.errors import RunError
from greenward.runs.answers import holds_text, read_answer_columns, read_rows_at, text_hash
from greenward.runs.directory import RunDirectory
from greenward.runs.selection import Condition, Selection, parse_query

TEXTS = ("return 0", "return x & y", "eval('1')", "return 0  ")


@pytest.fixture(scope="module", params=range(3))
def made(request, tmp_path_factory):
    """(columns, (step, row) pairs, path) of 400 random answers, some without a field."""
    rng = np.random.default_rng(request.param)
    path = tmp_path_factory.mktemp("run") / "run"
    every = []
    with RunDirectory.create(path, {"algorithm": {"name": "grpo"}}) as run:
        for step in range(1, 41):
            rows = []
            for index in range(10):
                row = {
                    "problem": f"task/{rng.integers(6)}",
                    "group": int(index // 5 + 2 * step),
                    "answer": TEXTS[rng.integers(4)],
                    "status": ("passed", "failed", "syntax_error")[rng.integers(3)],
                    "rewards": {"a": float(rng.integers(4)) / 2, "b": float(rng.normal())},
                    "terms": {"tests": float(rng.integers(3)) / 2},
                    "advantage": float(rng.normal()),
                    "tokens": int(rng.integers(1, 50)),
                    "stop": ("end", "length")[rng.integers(2)],
                    "error_class": ("NameError", None)[rng.integers(2)],
                }
                if row["answer"] == "return 0":
                    row["status"] = "passed"
                if rng.random() < 0.1:
                    del row["advantage"], row["terms"]
                if index < 5 and step % 4 == 0:
                    row["rewards"] = {"a": 1.0, "b": 0.5}
                rows.append(row)
            run.write_rollouts(step, rows)
            every += [(step, row) for row in rows]
    return read_answer_columns(path), every, path


def reward(row):
    return max(row["rewards"].values())


CASES = {
    "step=10-20": lambda step, row, every: 10 <= step <= 20,
    "step=7": lambda step, row, every: step == 7,
    "step=-3&passed=1": lambda step, row, every: step <= 3 and row["status"] == "passed",
    "step>=30&stop=length": lambda step, row, every: step >= 30 and row["stop"] == "length",
    "status=failed,syntax_error": lambda step, row, every: row["status"] != "passed",
    "problem=task/3": lambda step, row, every: row["problem"] == "task/3",
    "task=sk/3": lambda step, row, every: row["problem"] == "task/3",
    "error=NameError&tokens<10": lambda step, row, every: (
        row["error_class"] == "NameError" and row["tokens"] < 10
    ),
    "term.tests=0": lambda step, row, every: row.get("terms", {}).get("tests") == 0,
    "reward.b>0.1": lambda step, row, every: np.float32(row["rewards"]["b"]) > np.float32(0.1),
    "advantage<=-1": lambda step, row, every: row.get("advantage", 0.0) <= -1,
    "reward>=0.4&reward<=0.6": lambda step, row, every: any(
        0.4 <= value <= 0.6 for value in row["rewards"].values()
    ),
    "tokens>=p90": lambda step, row, every: (
        row["tokens"] >= np.percentile([other["tokens"] for _, other in every], 90)
    ),
    f"same={text_hash('return 0'):016x}": lambda step, row, every: row["answer"] == "return 0",
    "group=41": lambda step, row, every: row["group"] == 41,
    "groups=constant": lambda step, row, every: (
        len({round(reward(other), 6) for _, other in every if other["group"] == row["group"]}) == 1
    ),
    "groups=all_fail": lambda step, row, every: (
        not any(other["status"] == "passed" for _, other in every if other["group"] == row["group"])
    ),
    "mixed=1": lambda step, row, every: (
        len(
            {
                other["status"] == "passed"
                for _, other in every
                if (other["answer"], other["problem"]) == (row["answer"], row["problem"])
            }
        )
        == 2
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_a_query_holds_for_the_answers_that_the_condition_holds_for(made, text):
    columns, every, _ = made
    expected = [CASES[text](step, row, every) for step, row in every]
    assert parse_query(text, strict=True).mask(columns).tolist() == expected
    assert any(expected) and not all(expected)


def test_texts_are_found_in_any_case_and_only_in_texts(made):
    columns, every, path = made
    rows = read_rows_at(path, columns, np.arange(len(columns)))
    found = [holds_text(row, "X & Y") for _, row in rows]
    assert found == ["x & y" in row["answer"] for _, row in every]
    assert not any(holds_text(row, "advantage") for _, row in every)


def test_bytes_leave_out_no_row_that_holds_a_text(tmp_path):
    texts = ['say "a/b"', "Grüße", "tab\there", "SLASH a/b", "plain", "\ud800 half"]
    folder = tmp_path / "run" / "rollouts"
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}):
        folder.mkdir(exist_ok=True)
        lines = [json.dumps({"answer": text, "status": "passed"}) for text in texts]
        lines += [line.replace("/", "\\/") for line in lines]  # as some writers of JSON escape it
        lines += [json.dumps({"answer": text}, ensure_ascii=False) for text in texts[:5]]
        (folder / "step_000001.jsonl").write_text("\n".join(lines) + "\n")
    columns = read_answer_columns(tmp_path / "run")
    every = list(read_rows_at(tmp_path / "run", columns, np.arange(len(columns))))
    assert len(every) == len(lines)
    for wanted in ("a/b", "A/B", '"a', "grüße", "GRÜSSE", "b\there"[1:], "half", "plain", "answer", "zzz"):
        found = read_rows_at(tmp_path / "run", columns, np.arange(len(columns)), texts=[wanted])
        assert [p for p, row in found if holds_text(row, wanted)] == [
            p for p, row in every if holds_text(row, wanted)
        ]


@pytest.mark.parametrize("most", [None, 1, 7, 399])
@pytest.mark.parametrize("sort", ["reward", "-reward", "-advantage", "tokens", "-term.tests"])
def test_the_first_of_an_order_are_those_of_a_whole_sort(made, sort, most):
    columns, every, _ = made
    name, sign = sort.lstrip("-"), -1 if sort.startswith("-") else 1

    def value(row):
        if name == "term.tests":
            return row.get("terms", {}).get("tests")
        return reward(row) if name == "reward" else row.get(name)

    def key(place):
        found = value(every[place][1])
        return np.inf if found is None else sign * float(np.float32(found))

    expected = sorted(range(len(every)), key=key)[:most]
    assert parse_query(f"sort={sort}").order(columns, np.arange(len(columns)), most).tolist() == expected


def test_a_query_is_its_own_text_and_what_means_nothing_is_named():
    text = "step=40-&status=failed,timeout&reward>=0.5&term.a%20b=1&text=x%26y&sort=-tokens"
    found = parse_query(text)
    assert parse_query(str(found)) == found and found.unknown == ()
    assert found.text == ("x&y",)
    assert found.conditions[3] == Condition("term.a b", "=", "1")
    odd = parse_query("step=x&reward=nan&groups=odd&status>1&foo&same=1&sort=status")
    assert odd.conditions == () and len(odd.unknown) == 7
    with pytest.raises(RunError, match="step=x"):
        parse_query("step=x", strict=True)
    assert parse_query("") == Selection()


ODD = (
    b'{"status": "passed", "rewards": {"a": 1.0}, "terms": {"t": 1}, "tokens": 3, "answer": "x"}',
    b'{"status": "failed", "rewards": {"a": 2, "b": "Infinity"}, "terms": {"t": true}, "tokens": 0, "answer": "xy"}',
    b'{"status": 1, "rewards": {"b": NaN, "a": -1}, "terms": [1], "tokens": 18446744073709551616, "answer": null}',
    b'{"status": true, "rewards": null, "tokens": 1e400, "answer": "\\ud800", "group": [1], "advantage": "x"}',
    b'{"status": 1.0, "rewards": {}, "tokens": "5", "group": {"a": 1}, "advantage": 2, "answer": 7}',
)


@pytest.mark.parametrize("seed", range(20))
def test_files_with_other_lines_have_the_same_answers_as_line_by_line(tmp_path, seed):
    rng = np.random.default_rng(seed)
    folder = tmp_path / "run" / "rollouts"
    folder.mkdir(parents=True)
    few = [ODD[i] for i in rng.choice(len(ODD), 1 + seed % 3, replace=False)]
    for step in (1, 2):
        lines = [few[rng.integers(len(few))] for _ in range(12)]
        if seed % 4 == 3:
            lines.insert(3, (b"", b"  ")[seed % 2])
        end = (b"\n", b"\n" + ODD[0][:40])[rng.integers(2)]
        (folder / f"step_{step:06d}.jsonl").write_bytes(b"\n".join(lines) + end)
    found = read_answer_columns(tmp_path / "run")
    rows = [
        (step, line, row)
        for step in (1, 2)
        for line in (folder / f"step_{step:06d}.jsonl").read_bytes().split(b"\n")[:-1]
        if line.strip() and (row := json.loads(line))
    ]
    assert found.steps.tolist() == [step for step, _, _ in rows]
    for place, row in read_rows_at(tmp_path / "run", found, np.arange(len(rows))):
        assert str(row) == str(rows[place][2])
    for place, (_, line, row) in enumerate(rows):
        said = {name: found.codes[name].names[found.names[name][place]] for name in found.names}
        group = row.get("group")
        assert said["status"] == str(row["status"]) and said["group"] == ("" if group is None else str(group))
        text = str(row["answer"])
        assert found.same[place] == text_hash(text) and found.sizes[place] == len(line) + 1
        assert found.numbers["passed"][place] == (row["status"] == "passed")
        tokens = row["tokens"]
        sound = type(tokens) in (int, float) and abs(tokens) < 2**64
        beyond = type(tokens) is float and np.isinf(tokens)
        numbers = {name: float(values[place]) for name, values in found.numbers.items()}
        assert numbers["tokens"] == tokens if sound or beyond else np.isnan(numbers["tokens"])
        assert numbers["length"] == (tokens if (sound and tokens) or beyond else len(text))
        given = {"Infinity": np.inf}
        rewards = [given.get(value, value) for value in (row["rewards"] or {}).values()]
        rewards = [value for value in rewards if value == value]
        assert numbers["reward"] == max(rewards) if rewards else np.isnan(numbers["reward"])
        term = row["terms"]["t"] if type(row.get("terms")) is dict else None
        if "term.t" in numbers:
            assert numbers["term.t"] == term if type(term) is int else np.isnan(numbers["term.t"])
        else:
            assert type(term) is not int


@pytest.mark.parametrize("lines", [
    b'{"a": 1},{"b": 2}\n{"c": [{}\n{}]}\n',
    b'{"a": 1},0,{"b": 2}\n{"c": [{}\n{}]}\n',
    b'{"a": 1}\n[1]\n',
    b'{"a": 1}\n{"b": \n2}\n',
])  # fmt: skip
def test_lines_that_make_sense_only_together_are_refused(tmp_path, lines):
    folder = tmp_path / "run" / "rollouts"
    folder.mkdir(parents=True)
    (folder / "step_000001.jsonl").write_bytes(lines + b'{"answer": "x"}\n')
    with pytest.raises(RunError, match="expected a JSON object"):
        read_answer_columns(tmp_path / "run")
