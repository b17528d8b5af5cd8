"""The callback of transformers' Trainer: what it writes, and that the training is the same to the bit."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from kernelworks.diagnose import diagnose
from kernelworks.integrations import trainer as integration
from kernelworks.integrations.trainer import DiagnoseCallback, TrainingState
from kernelworks.measure.clock.noise import Ambiguous

CONFIG = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16, hidden_dropout_prob=0.3, num_labels=2,
)  # fmt: skip


class Counting(BertForSequenceClassification):
    """A model with a buffer and a number that its forward changes."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        self.seen += 1
        self.calls += 1
        return super().forward(input_ids=input_ids, labels=labels, **more)


def train(folder: Path, *callbacks: Any, steps: int = 5, model: type[nn.Module] = Counting, **options: Any) -> Trainer:
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(1)
    data = [
        {"input_ids": torch.randint(0, 64, (8,), generator=generator), "labels": torch.tensor(i % 2)} for i in range(64)
    ]
    given = TrainingArguments(
        str(folder / "trainer"), max_steps=steps, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, seed=3, learning_rate=1e-2, **options,
    )  # fmt: skip
    made = Trainer(model(CONFIG), given, train_dataset=data, callbacks=list(callbacks))
    made.train()
    return made


def outcome(trainer: Trainer) -> tuple[list[tuple[float, float]], dict[str, bytes], int, bytes]:
    """All that a training leaves: losses, norms of gradients, parameters, buffers, optimizer state, random numbers."""
    logged = [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]
    tensors = {name: t.numpy().tobytes() for name, t in trainer.model.state_dict().items()}
    for number, held in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"{number} {name}": t.numpy().tobytes() for name, t in held.items() if isinstance(t, torch.Tensor)}
    return logged, tensors, trainer.model.calls, torch.get_rng_state().numpy().tobytes()


@pytest.fixture
def quick(ceilings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration, "diagnose", functools.partial(diagnose, peaks=ceilings, budget_s=0.3))


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (3, {}), (1, {"gradient_accumulation_steps": 2}),
        (2, {"optim": "sgd", "max_grad_norm": 0.0, "bf16": True}), (2, {"gradient_checkpointing": True}),
    ],
)  # fmt: skip
def test_the_training_is_the_same_to_the_bit(
    step: int,
    options: dict[str, Any],
    quick: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DiagnoseCallback, "_report", lambda self, record: None)  # another test's
    plain = outcome(train(tmp_path, **options))
    callback = DiagnoseCallback(step, tmp_path / "out")
    watched = outcome(train(tmp_path, callback, **options))
    said = capsys.readouterr().out
    assert callback.record is not None, said
    assert len(plain[0]) == 5 and watched == plain
    assert said.count("diagnosing step") == 1 and f"diagnosing step {step};" in said
    ops = {hotspot.op for hotspot in callback.record.hotspots}
    assert {"linear", "embedding"} & ops and callback.record.program == f"training step {step}"


def test_what_it_writes(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = DiagnoseCallback(2, tmp_path / "deep" / "out")
    train(tmp_path, callback, steps=3)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernelworks:")]
    assert "bound by" in said[2] and len(said) == 2 + integration.MOST_PRINTED + 1
    assert json.loads((tmp_path / "deep" / "out" / "training-step.json").read_text())["program"] == "training step 2"
    assert "</html>" in (tmp_path / "deep" / "out" / "training-step.html").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    train(tmp_path, DiagnoseCallback(1, tmp_path / "file" / "out"), steps=2)
    assert "could not write" in capsys.readouterr().out


def said_of(capsys: pytest.CaptureFixture[str]) -> str:
    return next(line for line in capsys.readouterr().out.splitlines() if "was not diagnosed" in line)


@pytest.mark.parametrize(
    "raised", [Ambiguous(0.5, "the peaks"), torch.OutOfMemoryError("no"), RuntimeError("a\nb"), KeyError()]
)
def test_what_fails_is_a_line_and_the_training_is_the_same(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Any, **options: Any) -> None:
        run()  # a step's worth of change
        raise raised

    monkeypatch.setattr(integration, "diagnose", fail)
    plain = outcome(train(tmp_path))
    assert outcome(train(tmp_path, DiagnoseCallback(2))) == plain
    assert "step 2 was not diagnosed" in said_of(capsys)


def test_an_interrupt_leaves_the_training_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(run: Any, **options: Any) -> None:
        run()
        raise KeyboardInterrupt

    monkeypatch.setattr(integration, "diagnose", interrupt)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    callback = DiagnoseCallback(1, loss=lambda outputs, inputs: outputs.sum())
    state = type("State", (), {"global_step": 0})
    callback.on_step_begin(None, state, None, model=model)
    model(torch.ones(1, 2))
    with pytest.raises(KeyboardInterrupt):
        callback.on_step_end(None, state, None, model=model, optimizer=optimizer)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)) and not optimizer.state


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": 2}, "several processes"), ({"n_gpu": 2}, "several GPUs"), ({"fsdp": ["full"]}, "FSDP"),
        ({"deepspeed": "x.json"}, "DeepSpeed"), ({"torch_compile": True}, "compiled"),
    ],
)  # fmt: skip
def test_what_is_not_diagnosed(options: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    callback, model = DiagnoseCallback(1), nn.Linear(2, 2)
    callback.on_step_begin(type("Args", (), options), type("State", (), {"global_step": 0}), None, model=model)
    assert words in said_of(capsys) and not model._forward_pre_hooks


class WithoutLoss(Counting):
    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        found = super().forward(input_ids, labels, **more)
        return {"logits": found.logits}


class OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        return nn.functional.cross_entropy(model(**inputs)["logits"], inputs["labels"])


def test_a_loss_of_ones_own(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "Trainer", OwnLoss)
    train(tmp_path, DiagnoseCallback(1), steps=2, model=WithoutLoss)
    assert "give DiagnoseCallback(loss=...)" in said_of(capsys)
    callback = DiagnoseCallback(
        1, tmp_path, loss=lambda outputs, inputs: nn.functional.cross_entropy(outputs["logits"], inputs["labels"])
    )
    train(tmp_path, callback, steps=2, model=WithoutLoss)
    assert callback.record is not None


def test_a_training_that_ends_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = train(tmp_path, DiagnoseCallback(), steps=2)
    assert "step 10 was not diagnosed: the training ended at step 2" in said_of(capsys)
    assert not trainer.model._forward_pre_hooks


@pytest.mark.parametrize(("step", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_step_that_is_none(step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="step must be"):
        DiagnoseCallback(step)


def test_state_that_is_put_back() -> None:
    """Gradients that are there, a state that is not yet there, a learning rate that is a tensor."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    optimizer.param_groups[0]["extra"] = [torch.zeros(2), {"deep": [torch.zeros(1)]}]
    model(torch.ones(2, 3)).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    values = [g.clone() for g in gradients if g is not None]
    kept, random = TrainingState(model, optimizer), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(2, 3)).pow(2).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"].fill_(7.0)
    optimizer.param_groups[0]["extra"][1]["deep"][0].fill_(7.0)
    torch.rand(3)
    model.zero_grad()
    model.eval()
    kept.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(p.grad, v) for p, v in zip(model.parameters(), values, strict=True) if p.grad is not None)
    assert model.training and not optimizer.state and optimizer.param_groups[0]["lr"] == torch.tensor(0.1)
    assert optimizer.param_groups[0]["extra"][1]["deep"][0] == 0 and torch.equal(torch.get_rng_state(), random)
