"""A copy of a swapped model, however it is made, is the model as it was: it works alone and lives on."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from kernelworks.nn.swap import swap


def act(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(size) + 0.5), 1e-5

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Net(nn.Module):
    """One of everything that a swap changes on an instance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        self.norm, self.gate, self.up, self.down = Norm(16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def _after(self, x):
        return act(x)

    def forward(self, x):
        x = self.norm(self.body(x))
        return F.softmax(self._after(self.down(F.silu(self.gate(x)) * self.up(x))), dim=-1)


class OwnState(Net):
    def __getstate__(self):
        return {**self.__dict__, "asked": True}


class OwnDeepcopy(Net):
    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            made.__dict__[name] = copy.deepcopy(value, memo)
        return made


def llama() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=50))


def given(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if isinstance(model, LlamaForCausalLM):
        return torch.randint(0, 50, (2, 6), generator=generator)
    return torch.randn(3, 8, generator=generator)


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = model(x)
    return found if isinstance(found, torch.Tensor) else found.logits


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def from_weights(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        made = llama() if isinstance(model, LlamaForCausalLM) else type(model)()
    made.load_state_dict(torch.load(file, weights_only=True), assign=True)
    if isinstance(model, LlamaForCausalLM):  # buffers that are no part of the state
        made.model.rotary_emb = type(made.model.rotary_emb)(made.config)
    return made


def replicated(model: nn.Module) -> nn.Module:
    """What nn.DataParallel does on each device."""
    made = {m: m._replicate_for_data_parallel() for m in model.modules()}
    for module, replica in made.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else made[child]
        for name, parameter in module._parameters.items():
            replica._parameters[name] = None
            if parameter is not None:
                del replica._parameters[name]
                setattr(replica, name, parameter.detach().clone())
    return made[model]


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle, the oldest protocol": lambda model: pickle.loads(pickle.dumps(model, 2)),
    "torch.save": saved,
    "state_dict": from_weights,
    "DataParallel": replicated,
}
MODELS = [Net, OwnState, OwnDeepcopy, llama]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("make", MODELS)
@torch.no_grad()
def test_a_copy_lives_on_its_own(make, way) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = given(model)
    before = answer(model, x)
    swapped = swap(model, verbose=False)
    ours = answer(model, x)
    other = way(model).eval()
    # replicas share the configuration, and with it the attention that it names
    same = torch.equal if way is not replicated else lambda a, b: torch.allclose(a, b, atol=1e-6)
    if way is not replicated:
        for module in other.modules():
            assert not any("kernelworks" in name or name == "forward" for name in vars(module)), type(module)
        assert vars(other).keys() - {"asked"} <= vars(type(other)() if make is not llama else llama()).keys()
    assert same(answer(other, x), before)
    for parameter in (p for m in other.modules() for p in vars(m)["_parameters"].values() if p is not None):
        parameter.mul_(0.5)
    if way is replicated:
        for module in other.modules():
            for name in {"weight", "bias"} & vars(module).keys():
                vars(module)[name].mul_(0.5)
    changed = answer(other, x)
    assert not torch.equal(changed, before)
    assert torch.equal(answer(model, x), ours)  # the original does not notice
    swapped.undo()
    assert same(answer(other, x), changed) and torch.equal(answer(model, x), before)
    if way is not replicated:
        with swap(other, verbose=False) as again:
            assert {r.path for r in again.replaced} == {r.path for r in swapped.replaced}
            torch.testing.assert_close(answer(other, x), changed, rtol=1e-4, atol=1e-5)
        assert torch.equal(answer(other, x), changed)
    del model, swapped
    assert same(answer(other, x), changed)


def test_a_shallow_copy_shares_its_parts() -> None:
    model = Net().eval()
    x = given(model)
    want = model(x)
    with swap(model, verbose=False):
        other = copy.copy(model)
        torch.testing.assert_close(other(x), want)
    assert torch.equal(other(x), want)


class Shares(nn.Linear):
    """Its copies have the same entries, but parameters of their own to set."""

    def __copy__(self):
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__["_parameters"] = dict(self._parameters)
        return other


class SharesCalls(Shares):
    def forward(self, x):
        return F.gelu(F.linear(x, self.weight))


@pytest.mark.parametrize("cls", [Shares, SharesCalls])
def test_a_class_that_copies_itself_is_left(cls) -> None:
    model, x = nn.Sequential(cls(16, 16), nn.Linear(16, 16)), torch.randn(3, 16)
    swapped = swap(model, verbose=False)
    assert [left.path for left in swapped.left] == ["0"]
    assert "__copy__" in swapped.left[0].reason
    assert [r.path for r in swapped.replaced] == ["1"]
    other = copy.copy(model[0])
    other.weight = nn.Parameter(torch.ones(16, 16))
    torch.testing.assert_close(other(x), cls.forward(other, x))
    assert torch.equal(pickle.loads(pickle.dumps(other)).weight, other.weight)


class Slow(nn.Linear):
    """Its deep copy takes a while, in which others run the original."""

    def __deepcopy__(self, memo):
        meanwhile.append(self(torch.ones(1, 16)))
        return copy.deepcopy(nn.Linear(16, 16), memo)


meanwhile: list = []


def test_a_module_runs_while_it_is_copied() -> None:
    model = Slow(16, 16)
    want = model(torch.ones(1, 16))
    with swap(model, verbose=False):
        before, stop, faults = dict(model.__dict__), threading.Event(), []

        def keep_running() -> None:
            while not stop.is_set():
                try:
                    F.linear(torch.ones(1, 16), model._parameters["weight"], model._parameters["bias"])
                except Exception as error:
                    faults.append(error)

        thread = threading.Thread(target=keep_running)
        thread.start()
        for _ in range(200):
            copy.deepcopy(model)
        stop.set()
        thread.join()
        assert not faults
        assert model.__dict__ == before
    torch.testing.assert_close(meanwhile.pop(), want)


def test_dictionaries_copied_entry_by_entry_can_be_swapped() -> None:
    model, other = Net(), Net()
    linear, x = model.gate, torch.randn(3, 16)
    swapped = swap(model, verbose=False)
    stolen = nn.Linear(16, 16)
    stolen.__dict__ = dict(linear.__dict__)
    other.gate = stolen
    with swap(other, verbose=False):
        torch.testing.assert_close(stolen(x), F.linear(x, linear.weight, linear.bias))
    swapped.undo()
    assert torch.equal(stolen(x), F.linear(x, linear.weight, linear.bias))


def test_a_file_is_read_where_kernelworks_is_not(tmp_path) -> None:
    """Another process, which never imports us: the file names nothing of ours."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))
    x = torch.randn(2, 4)
    want = model(x)
    with swap(model, verbose=False):
        torch.save((model, x, want), tmp_path / "model.pt")
    program = (
        f"import sys, torch; sys.modules['kernelworks'] = None\n"
        f"model, x, want = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        f"assert torch.equal(model(x), want)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_configuration_goes_into_a_file_as_it_was(tmp_path) -> None:
    model = llama()
    with swap(model, verbose=False):
        assert copy.deepcopy(model.config)._attn_implementation == "sdpa"
        assert pickle.loads(pickle.dumps(model.config))._attn_implementation == "sdpa"
        model.save_pretrained(tmp_path)
    assert "kernelworks" not in (tmp_path / "config.json").read_text()
    with swap(LlamaForCausalLM.from_pretrained(tmp_path), verbose=False) as again:
        assert any(r.kind == "attention" for r in again.replaced)


def test_weights_come_and_go() -> None:
    model, other = Net(), Net()
    x = given(model)
    with swap(model, verbose=False), swap(other, verbose=False):
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(x), other(x))
        other.load_state_dict({k: v.clone() * 2 for k, v in model.state_dict().items()}, assign=True)
        want = torch.func.functional_call(model, {k: v * 2 for k, v in model.state_dict().items()}, (x,))
        torch.testing.assert_close(other(x), want)


def test_an_ensemble_of_swapped_models() -> None:
    models = [Net() for _ in range(3)]
    x = given(models[0])
    want = torch.stack([m(x) for m in models])
    swaps = [swap(m, verbose=False) for m in models]
    parameters, buffers = torch.func.stack_module_state(models)
    for base in (copy.deepcopy(models[0]).to("meta"), models[0]):
        got = torch.vmap(lambda p, b, base=base: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)
        torch.testing.assert_close(got, want)
    for s in swaps:
        s.undo()


def test_a_forked_process_uses_and_undoes_it() -> None:
    model = Net()
    x = given(model)
    want = model(x)
    swapped = swap(model, verbose=False)
    model(x)
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # threads do not come along, and torch's own GELU would wait for them
            torch.testing.assert_close(model(x), want)
            swapped.undo()
            os._exit(0 if torch.equal(model(x), want) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert swapped.active
    torch.testing.assert_close(model(x), want)
    swapped.undo()


class OwnLayer(LlamaDecoderLayer):
    """Copies its entries one by one, and asks nobody for a state."""

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made


@torch.no_grad()
def test_a_layer_in_one_piece_is_its_own() -> None:
    model = llama().eval()
    model.model.layers[0].__class__ = OwnLayer
    x = given(model)
    with swap(model, verbose=False) as swapped:
        assert any(r.kind == "decoder layer in one piece" for r in swapped.replaced)
        want = answer(model, x)
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.zero_()
        assert torch.equal(answer(model, x), want)
        assert not answer(other, x).any()


def test_threads_swap_and_drop_models_at_once() -> None:
    faults, x = [], given(Net())

    def work() -> None:
        try:
            for i in range(4):
                model = Net().eval()
                swapped = swap(model, verbose=False)
                model(x)
                if i % 2:
                    swapped.undo()
                del model, swapped
                gc.collect(0)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
