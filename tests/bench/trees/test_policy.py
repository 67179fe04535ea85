"""The policy of the experiment `trees`: it reads letter by letter, and what it is shown."""

import random
from pathlib import Path

from banyan.recipe import Task
from bench.trees import policy
from bench.trees.policy import STAGES, WRONG, Beliefs, Stage
from services.gateway.tasks import load
from services.gateway.tasks.chains_mod import FACTS, result


def test_every_letter_is_a_token_and_texts_come_back(tmp_path: Path) -> None:
    tokenizer = policy.tokenizer_in(tmp_path)
    for row in load(Task(name="chains-mod", size=20, config={"operations": 32}), Path()):
        ids = tokenizer(row["answer"])["input_ids"]
        assert len(ids) == len(row["answer"]) == 6 * 32
        assert (
            tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)
            == (row["answer"])
        )
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}], tokenize=False
        )
        assert prompt == row["question"] + " "


def test_it_is_shown_sixty_facts_wrong_more_often_than_right() -> None:
    beliefs, draws = Beliefs.made(), random.Random(0)
    assert len(beliefs.wrong) == WRONG == 60
    for fact in FACTS:
        shown = [beliefs.shown(fact, draws) for _ in range(400)]
        right = shown.count(result(*fact)) / len(shown)
        assert 0.3 < right < 0.5 if fact in beliefs.wrong else right == 1.0


def test_a_chain_that_is_shown_is_one_that_is_asked_for_but_for_wrong_facts() -> None:
    draws = random.Random(0)
    for stage in (*STAGES, Stage(1, (16,), 1, anywhere=False)):
        question, answer = policy.chain(Beliefs({}), stage, draws)
        now, *asked = question.split()
        steps = [answer[at : at + 6] for at in range(0, len(answer), 6)]
        assert len(steps) == len(asked) in stage.lengths
        for what, step in zip(asked, steps, strict=True):
            after = result(int(now), what[1], int(what[2]))
            assert step == f"{now}{what}={after}"
            now = str(after)


def test_only_answers_are_learned(tmp_path: Path) -> None:
    tokenizer = policy.tokenizer_in(tmp_path)
    ids_B_T, labels_B_T = policy.batch_of(tokenizer, [("7 a+4", "7a+4=1"), ("1 a+4 b+4", "1a")])
    learned = labels_B_T[0][labels_B_T[0] >= 0].tolist()
    assert tokenizer.decode(learned[:-1]) == "7a+4=1" and learned[-1] == tokenizer.eos_token_id
    assert (labels_B_T[0] >= 0).nonzero()[0].item() == len("7 a+4 ")
    assert ids_B_T.shape == labels_B_T.shape == (2, 13)
