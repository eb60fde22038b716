"""A model in a folder, held to the format."""

import pytest
import tokenizers
import torch
import transformers

from srt_peft.corpora.qa import local as local_maker, making
from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.items import Item
from srt_peft.corpora.qa.local import CHOICE, QUESTION, Local
from srt_peft.errors import OptionError
from tests.corpora.qa import world

SAID = "Kestrel Bay has 4,210 inhabitants."


def build(folder, *, chats=False, positions=2048):
    """A Llama that says anything at all, in bytes."""
    torch.manual_seed(0)
    letters = [chr(i) for i in range(32, 127)] + ["\n", "<pad>", "</s>"]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token=" "))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    core.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")
    if chats:
        tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(letters) + 6, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=positions, bos_token_id=None, eos_token_id=letters.index("</s>"),
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=2.0)
    model.save_pretrained(folder)
    return folder


def item(passage=SAID):
    return Item("1", "d", "Kestrel Bay", None, "new", passage, 0, len(SAID))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("model"))


def test_any_model_answers_in_the_format(folder):
    """Five fields, none empty, each one line within its limit; the same each time."""
    ((_, draft),) = Local(str(folder), 0).drafts([item()])
    assert isinstance(draft, Draft)
    assert len(draft.wrong) == 3
    for text, most in ((draft.question.removeprefix("Kestrel Bay: "), QUESTION), *((c, CHOICE) for c in draft.choices)):
        assert 0 < len(text) <= most
        assert "\n" not in text
        assert text[0].isalnum()
    assert list(Local(str(folder), 0).drafts([item()])) == [(item(), draft)]


class Parrot(torch.nn.Module):
    """Says the same field over and over, whatever it was asked."""

    def __init__(self, model, line):
        super().__init__()
        self.model, self.line, self.at, self.shown = model, line, 0, []

    def forward(self, input_ids, past_key_values=None, **_):
        out = self.model(input_ids=input_ids, past_key_values=past_key_values, use_cache=True)
        if input_ids.shape[1] > 1:
            self.at = 0
            self.shown.append(input_ids[0].tolist())
        out.logits[0, -1] *= 0.01
        out.logits[0, -1, self.line[self.at % len(self.line)]] += 5
        self.at += 1
        return out

    def __getattr__(self, name):
        return super().__getattr__(name) if name in ("model", "_modules") else getattr(self.model, name)


def test_what_is_written_ends_with_its_line_and_wrong_answers_differ(folder):
    """The greedy answer is what the model wants to say; said again, another one is drawn."""
    local = Local(str(folder), 0)
    line = local._tokenizer("ab cd\n", add_special_tokens=False).input_ids
    local._model = Parrot(local._model, line)
    ((_, draft),) = local.drafts([item()])
    assert draft.question == "Kestrel Bay: ab cd"
    assert draft.right == "ab cd"
    assert len({draft.right, *draft.wrong}) > 1
    asked = local._tokenizer.decode(local._model.shown[-1])
    assert SAID in asked
    assert "Question: ab cd\nRight answer: ab cd\nWrong answer 1:" in asked


def test_a_model_that_chats_is_spoken_to_in_its_template(tmp_path):
    local = Local(str(build(tmp_path, chats=True)), 0)
    opening = local._opening("Statement: x")
    assert opening.startswith("[user] You write multiple-choice questions")
    assert opening.endswith("Statement: x\n[assistant] ")


@pytest.mark.parametrize(("positions", "kind"), [(1100, Draft), (400, Draft), (250, str)])
def test_what_does_not_fit_is_left_out(tmp_path, positions, kind):
    local = Local(str(build(tmp_path, positions=positions)), 0)
    ((_, found),) = local.drafts([item(SAID + " It rained." * 200)])
    assert isinstance(found, kind)
    if kind is str:
        assert found == "passage and question do not fit the model"


def test_what_a_random_model_writes_is_refused_and_counted(tmp_path, monkeypatch):
    """Not one of its questions passes, and each is kept, counted, and not asked for again."""
    monkeypatch.setattr(local_maker, "QUESTION", 12)
    monkeypatch.setattr(local_maker, "CHOICE", 6)
    towns = world.build(tmp_path / "towns", trained=2, held=1)
    folder = build(tmp_path / "model", positions=400)  # with no room for the passage it writes sooner
    for _ in range(2):
        with pytest.raises(OptionError, match=r"yields no question \(old: 4 statements; .*; new: 3 statements; "):
            making.make(towns, towns / "qa.jsonl", 2, lambda _: Local(str(folder), 0), 0, {})
    assert len(world.rows(towns / "qa.jsonl.drafts")) == 1 + 7


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(OptionError, match="expected a folder with config"):
        Local(str(tmp_path), 0)
