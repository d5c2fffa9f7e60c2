"""Numbers by token: those of the file, in colour, in a table and by keys."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from browsing import Watched, flaws, in_each_view, until
from made_runs import HOSTILE, Served, get, serving, write_run

COUNT = 250


def token_row(row: int, rng: np.random.Generator) -> dict:
    pieces = [["def", " solve", "(x):", "\n", "    return", " x"][i % 6] for i in range(COUNT)]
    mask = [int(i % 50 != 7) for i in range(COUNT)]
    names = ("logprob", "advantage", "ratio", "entropy", "kl")
    values = (
        -rng.exponential(0.5, COUNT),
        rng.normal(size=COUNT),
        np.exp(rng.normal(0, 0.2, COUNT)),
        rng.exponential(0.5, COUNT),
        rng.exponential(0.05, COUNT),
    )
    numbers = {name: [round(float(one), 4) for one in of] for name, of in zip(names, values, strict=True)}
    return {
        "row": row,
        "role": "policy",
        "ids": list(range(COUNT)),
        "pieces": pieces,
        "mask": mask,
        **numbers,
    }


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    base = tmp_path_factory.mktemp("tokens")
    folder = base / "runs"
    answers = write_run(folder / "run", 40, seed=0)
    rng = np.random.default_rng(0)
    first, second = token_row(0, rng), token_row(1, rng)
    long = {"row": 2, "pieces": ["x"] * 20_000, "logprob": [-0.5] * 20_000}
    hostile = {
        "row": 3,
        "role": [HOSTILE],
        "pieces": [HOSTILE, 7, None, ["a"]],
        "mask": "no",
        "logprob": ["NaN", -1e999, {}],
        "entropy": 5,
    }
    (folder / "run" / "tokens").mkdir()
    rows = "".join(
        json.dumps(one) + "\n" for one in (first, second, {**second, "role": "again"}, long, hostile)
    )
    (folder / "run" / "tokens" / "step_000020.jsonl").write_text("no row\n[1]\n" + rows + '{"row": 0, "pie')
    (base / "secret.jsonl").write_text(json.dumps(first) + "\n")
    os.symlink(base / "secret.jsonl", folder / "run" / "tokens" / "step_000030.jsonl")
    with serving([folder], None) as port:
        yield Served(folder, port, {"run": answers}), (first, second)


def asked(served, step: int, row: int) -> list[dict]:
    return get(served, f"/api/v1/runs/run/tokens?step={step}&row={row}")["turns"]


def test_turns_are_those_of_the_file(tokens):
    served, rows = tokens
    (found,) = asked(served, 20, 0)
    assert found["pieces"] == rows[0]["pieces"] and found["mask"] == rows[0]["mask"] and found["rest"] == 0
    assert (
        found["numbers"] == {name: rows[0][name] for name in found["numbers"]} and len(found["numbers"]) == 5
    )
    assert [turn["role"] for turn in asked(served, 20, 1)] == ["policy", "again"]
    assert asked(served, 20, 7) == asked(served, 10, 0) == []
    assert get(served, "/api/v1/runs/run/rollouts/20/0")["has_tokens"] is True
    assert get(served, "/api/v1/runs/run/rollouts/10/0")["has_tokens"] is False


def test_long_and_hostile_files_are_bounded_and_no_link_is_followed(tokens):
    served, _ = tokens
    (long,) = asked(served, 20, 2)
    assert len(long["pieces"]) == 8192 == len(long["numbers"]["logprob"]) and long["rest"] == 20_000 - 8192
    (odd,) = asked(served, 20, 3)
    assert odd["numbers"] == {"logprob": [None, None, None, None]} and odd["mask"] == [1, 1, 1, 1]
    assert "\u202e" not in odd["pieces"][0] and odd["pieces"][1:] == ["7", "None", "['a']"]
    with pytest.raises(AssertionError, match="link that leads out"):
        asked(served, 30, 0)


def test_tokens_are_coloured_read_by_keys_and_in_a_table(tokens, browser):
    served, (row, _) = tokens
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), served.url)
    page = watched.open("/r/run/rollouts/20/0?step=20", "pre.tokens span")
    bounds = [0.01, 0.1, 0.5, 1, 2, 4]
    for place in (0, 1, 7, 57, 100):
        level = sum(-row["logprob"][place] >= bound for bound in bounds)
        shown = page.locator("pre.tokens span").nth(place).get_attribute("class").split()
        assert ("not-own" in shown) == (not row["mask"][place])
        assert [one for one in shown if one.startswith("shade-")] == (
            [f"shade-{level}"] if level and row["mask"][place] else []
        )
    page.keyboard.press("t")
    page.wait_for_url("**colour=entropy*")
    page.locator("svg.heat").focus()
    page.keyboard.press("End")
    until(page, f"document.querySelector('#said').textContent.startsWith('token {COUNT} ')")
    said = page.locator("#said").inner_text()
    assert float(re.search(r"entropy ([\d.]+)", said)[1]) == pytest.approx(row["entropy"][-1], rel=1e-2)
    page.get_by_text("Table", exact=True).click()
    page.get_by_role("button", name="Later").click()
    first_row = page.locator("[aria-label='Numbers by token'] tbody tr").first.locator("td")
    first_row.get_by_text("101", exact=True).wait_for()
    cells = first_row.all_inner_texts()
    assert float(cells[2].replace("−", "-")) == pytest.approx(row["logprob"][100], abs=2e-4)
    page.keyboard.press("Escape")
    page.wait_for_selector(".answers tr.row")
    assert "colour" not in page.url and "step=20" in page.url
    page = watched.open("/r/run/rollouts/20/2", "pre.tokens span")  # a screenful of a long answer
    page.get_by_role("button", name="Tokens after").click()
    until(page, "document.querySelector('pre.tokens span').dataset.at === '1500'")
    assert page.locator("main *").count() < 3000
    page = watched.open("/r/run/rollouts/20/3", "pre.tokens span")
    assert page.evaluate("window.owned") is None and "<script>" in page.locator("pre.tokens").inner_text()
    context.close()
    assert watched.wrong == []


@in_each_view
def test_tokens_are_accessible_and_fit_a_phone(browser, tokens, axe, views):
    pages = {
        f"/r/run/rollouts/20/0?colour={name}": "pre.tokens span" for name in ("logprob", "advantage", "ratio")
    }
    assert flaws(browser, tokens[0].url, pages, axe, views) == []
