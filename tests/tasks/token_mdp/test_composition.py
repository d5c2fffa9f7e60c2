"""What a program is composed of, against parts that are counted by hand."""

from __future__ import annotations

from benchmarks.composition import inlined, missing, parts

from greenward.tasks.token_mdp.grammar import Grammar, N, Signature, Vocabulary

VOCABULARY = Vocabulary()
GRAMMAR = Grammar(Signature((N, N), N), VOCABULARY)


def of(text: str) -> set:
    return parts(GRAMMAR, VOCABULARY, text.split())


def test_a_program_is_reachable_where_each_of_its_parts_is_in_some_other_program() -> None:
    shown = [of("return <arg0> * <arg0> <end>"), of("return <arg0> - <arg1> <end>")]
    assert missing(
        of("return <arg0> * <arg0> - <arg1> <end>"), shown
    )  # "-" after a product, not after <arg0>
    shown.append(of("return <arg0> - <arg1> * <arg1> - <arg1> <end>"))
    assert not missing(of("return <arg0> * <arg1> - <arg1> <end>"), shown)


def test_what_is_missing_names_neighbours_and_productions() -> None:
    lacking = missing(of("return min ( <arg0> , <arg1> ) <end>"), [of("return <arg0> <end>")])
    assert {("return", "min"), ("min", "("), ("(", "<arg0>"), (",", "<arg1>")} <= lacking
    assert {token for symbol, token in lacking if isinstance(symbol, tuple)} >= {"min", "(", ",", ")"}
    assert ("return", "<arg0>") not in lacking


def test_a_program_lacks_nothing_of_itself() -> None:
    whole = of("result = 1 <newline> for x in range ( <arg0> ) : <newline> <indent> result *= x <newline> "
               "<dedent> return result <end>")  # fmt: skip
    assert not missing(whole, [whole])


def test_a_result_that_is_returned_at_once_is_inlined_and_nothing_else() -> None:
    product = "result = <arg0> * <arg1> <newline> return result <end>"
    assert " ".join(inlined(product.split())) == "return <arg0> * <arg1> <end>"
    for kept in (
        "result = <arg0> <newline> return result + 1 <end>",
        "result = <arg0> <newline> result += 1 <newline> return result <end>",
        "return <arg0> <end>",
    ):
        assert inlined(kept.split()) == kept.split()
