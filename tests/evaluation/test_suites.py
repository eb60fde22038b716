"""The suites: `qa-text` against a twin that reads one answer at a time, and files that are refused at once."""

import json

import pytest
import torch
import transformers

from srt_peft import OptionError
from srt_peft.evaluation.suites import Model, Options, ask, check, parse
from srt_peft.evaluation.targets import target_of
from tests.evaluation import world as facts


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base that knows the old facts and has never seen the new ones, nor a letter for an answer."""
    return facts.build(tmp_path_factory.mktemp("world"), n_old=60, n_new=20)


def views_of(world, tmp_path, suite, file="questions.jsonl"):
    model = Model(target_of(str(world / "base")), "float32")
    return ask(model, parse([f"{suite}={world / file}"]), Options(), tmp_path / suite)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_line(view):
    return {record["line"]: record for record in view.records}


def share(view, split):
    values = [record["value"] for record in view.records if record["split"] == split]
    return sum(values) / len(values)


@torch.no_grad()
def likeliest(model, tokenizer, prompt, choices):
    """The choice of the highest log-likelihood a character, each read by itself, token by token."""
    found = []
    for choice in choices:
        tokens = tokenizer(f"{prompt} {choice}")["input_ids"]
        begin = len(tokenizer(prompt)["input_ids"])
        chances = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        found.append(sum(float(chances[i - 1, tokens[i]]) for i in range(begin, len(tokens))) / len(choice))
    return found.index(max(found))


def test_qa_text_chooses_as_a_twin_does(world, tmp_path):
    """Question by question, with the question before its eyes and without."""
    [view] = views_of(world, tmp_path, "qa-text")
    model = transformers.AutoModelForCausalLM.from_pretrained(world / "base").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(world / "base")
    rows, records = rows_of(world / "questions.jsonl"), by_line(view)
    assert len(records) == len(rows) == 80
    for line, row in enumerate(rows, 1):
        choice = likeliest(model, tokenizer, f"Question: {row['question']}\nAnswer:", row["choices"])
        assert records[line]["choice"] == choice, row
        assert records[line]["value"] == float(choice == row["answer"])
    blind = likeliest(model, tokenizer, "Answer:", rows[0]["choices"])  # all have the same choices
    for split in ("old", "new"):
        right = [row["answer"] == blind for row in rows if row["split"] == split]
        assert view.baselines["text, question left out"][split] == pytest.approx(sum(right) / len(right))


def test_qa_text_finds_what_was_planted(world, tmp_path):
    """The base was taught the old facts. Told that other answers are right, it knows none; new ones it guesses."""
    [view] = views_of(world, tmp_path, "qa-text")
    assert share(view, "old") == 1.0
    assert share(view, "new") < 0.6
    rows = [{**row, "answer": (row["answer"] + 1) % len(row["choices"])} for row in rows_of(world / "questions.jsonl")]
    (world / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [view] = views_of(world, tmp_path, "qa-text", "other.jsonl")
    assert share(view, "old") == 0.0


def test_qa_text_is_qa_without_its_letters(world, tmp_path):
    """The same answers by text, and no figure of letters, nor time spent on them."""
    [alone], [letter, text] = views_of(world, tmp_path, "qa-text"), views_of(world, tmp_path, "qa")
    assert (alone.title, alone.metric, letter.title) == ("qa, by text", "accuracy", "qa, by letter")
    assert by_line(alone) == by_line(text)
    assert set(alone.baselines) == set(text.baselines) - {"letter, question left out"}
    [file] = (tmp_path / "qa-text").glob("*.jsonl")
    modes = {row["mode"] for row in rows_of(file) if "mode" in row}
    assert modes == {"text", "text-blind"}


def test_all_files_that_cannot_be_asked_are_told_at_once(world, tmp_path):
    """Each with what is wrong with it, and not only the first."""
    new = [line for line in (world / "questions.jsonl").read_text().splitlines() if '"split": "new"' in line]
    (tmp_path / "new.jsonl").write_text("\n".join(new) + "\n")
    words = [f"qa={world / 'questions.jsonl'}", f"qa={tmp_path / 'new.jsonl'}", f"qa-text={tmp_path / 'gone.jsonl'}"]
    with pytest.raises(OptionError) as error:
        check(parse([*words, f"temporalwiki={world / 'old.jsonl'}"]))
    first, second, third = error.value.faults
    assert first.startswith(f"1 fault in the questions of {tmp_path / 'new.jsonl'}:\n    split 'old' is empty")
    assert "gone.jsonl does not exist" in second
    assert "has no column subject" in third
    with pytest.raises(OptionError, match="split 'old' is empty") as error:
        check(parse(words[:2]))
    assert len(error.value.faults) == 1
